"""What of the pairs of a family is worth a proof.

A pair is generalised first: to any images and channels that fit, and to the family's sizes. Its
correction, as a formula, is made again at sizes that models have, and priced as the search prices
graphs. It must be cheaper than its program at one of them, and than what known rules make of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from superopt.cost.fusion import compiled_away
from superopt.cost.model import Costs, by_roofline
from superopt.generate import dims
from superopt.generate.family import Family
from superopt.generate.image_families import borders, strided
from superopt.generate.partial import Partial
from superopt.generate.pattern import holes, in_order, size
from superopt.ir.op import InferError
from superopt.partial.cells import TooMany
from superopt.partial.generalise import pair_of
from superopt.partial.pairs import HOW, corrected
from superopt.partial.regions import regions
from superopt.partial.sizes import Sized, sides
from superopt.partial.symbolic import NoFormula, Parts, parts
from superopt.partial.terms import parsed
from superopt.pipeline.program_mutants import with_weights
from superopt.rules.rule import Rule
from superopt.rules.term import Formula
from superopt.search.backtrack import Limits, search
from superopt.search.book import Book
from superopt.search.move import Refusals


@dataclass(frozen=True, slots=True)
class Sizes:
    """A family of any sizes: those at which it is enumerated are its own, and those at which its
    terms are generalised. where: what all of these have in common."""

    make: Callable[..., Family]
    at: tuple[Mapping[str, int], ...]
    where: tuple[str, ...]


FAMILIES = {
    "borders": Sizes(
        borders, ({"h": 8, "w": 10}, {"h": 12, "w": 15}, {"h": 14, "w": 9}), ("h % 2 == 0",)
    ),
    "strided": Sizes(
        strided,
        ({"h": 8, "w": 10}, {"h": 12, "w": 14}, {"h": 14, "w": 6}),
        ("h % 2 == 0", "w % 2 == 0"),
    ),
}
# Channels and images at these three. From one to the next no two of all sizes (nor halves of sides)
# differ by amounts of the same proportion: one would be taken for a formula of the other.
COUNTS = {
    "c": (2, 4, 3), "o": (3, 2, 5), "q": (2, 5, 3), "r": (2, 3, 5), "s": (6, 2, 3), "t": (3, 6, 2),
    "d": (2, 3, 6), "e": (3, 2, 6), "n": (2, 3, 4), "m": (2, 7, 3),
}  # fmt: skip
# Where a mutant must be cheaper: early and late in a network, and for a batch.
PRICED = tuple(
    {"h": h, "w": w, **dict.fromkeys(dims.CHANNELS, c), **dict.fromkeys(dims.IMAGES, n)}
    for h, w, c, n in ((56, 60, 64, 1), (14, 12, 256, 1), (14, 12, 256, 16))
)
GAIN = 0.99  # of a program's price is what a mutant and its correction must be below
SOME = 0  # elements that are compared beside some of each cell: proofs are what tells
SEARCH = Limits(
    graphs=40, patience=20, seconds=60, queue=2_000
)  # counted, so that it hangs on no clock
STEPS = ("//", "steps=", "strides=(2", "strides=(1, 2")  # what is said of some sizes only
ALIKE = "neither costs less than the other"
CORRECTED = "the mutant with its correction is no cheaper than the program"


class Dropped(Exception):
    """Why a pair is not worth a proof."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair, how many operators its program has, where it is right, how it is corrected, and the
    rule that this makes. us: of the program and of the corrected mutant, estimates in microseconds
    at each of PRICED."""

    operators: int
    pair: Rule
    found: Parts
    how: str
    rule: Rule
    us: tuple[tuple[float, float], ...]

    @property
    def ratio(self) -> float:
        """Of the prices, where that is least."""
        return min(after / before for before, after in self.us)


def estimates() -> Costs:
    """Prices by the roofline, of compiled models: what hangs on no machine."""
    return Costs({}, by_roofline(1), compiled_away)


def candidate(name: str, p: Partial, sizes: Sizes, costs: Costs) -> Candidate:
    """A pair, its cheaper side as the mutant, and its cheapest correction. Raises Dropped."""
    way = next((q for q in _ways(p) if _saves(q, sizes, costs)), None)
    if way is None:
        raise Dropped(ALIKE)
    p = way
    try:
        some = _sized(p, sizes)
        if not regions(some[0].left, some[0].right, SOME).equal:
            raise Dropped("equal nowhere at other sizes")
        found = parts(some, SOME)
        pair = pair_of(name, some)
    except NoFormula:
        raise Dropped("no formula of the sizes") from None
    except TooMany:
        raise Dropped("too many break points") from None
    except (InferError, ValueError):
        raise Dropped("it does not fit at other sizes") from None
    pair = replace(pair, where=_where(pair, found, sizes))
    made = list(_corrections(size(p.sides.left), pair, found, some, costs))
    if not made:
        raise Dropped("no correction along axes")
    for c in sorted(made, key=lambda c: c.ratio):
        if c.ratio < GAIN and _right(c.rule, some[0].sizes):
            return c
    raise Dropped(CORRECTED)


def _ways(p: Partial) -> Iterator[Partial]:
    """Either side as the program, if it reads what the other one does."""
    yield p
    if set(holes(p.sides.left)) == set(holes(p.sides.right)):
        turned = replace(p.sides, left=p.sides.right, right=p.sides.left)
        yield replace(p, sides=in_order(turned))


def _saves(p: Partial, sizes: Sizes, costs: Costs) -> bool:
    """Does the mutant as it is cost less than its program, at one of PRICED?"""
    some = _dims(p, sizes)
    for at in PRICED:
        family = sizes.make(h=at["h"], w=at["w"], c=at["c"])
        inputs = dims.given(p.sides, family, some, at)
        try:
            both = [dims.value(s, family, inputs) for s in (p.sides.left, p.sides.right)]
        except (InferError, ValueError):
            continue
        before, after = (costs.of_graph(with_weights([v])) for v in both)
        if after < GAIN * before:
            return True
    return False


def _dims(p: Partial, sizes: Sizes) -> list[dims.Dims]:
    family = sizes.make(**sizes.at[0], c=3)
    try:
        return dims.dims(p.sides, family)
    except (dims.Unlike, InferError):
        own = [family.inputs[i][0] for i in p.sides.inputs]
        return [(1 if n == 1 else "c", "c") for n in own]


def _sized(p: Partial, sizes: Sizes) -> list[Sized]:
    """The pair at several sizes. Raises InferError, ValueError where it does not fit."""
    some = _dims(p, sizes)
    names = [d for d in COUNTS if any(d in two for two in some)]
    out = []
    for k, at in enumerate(sizes.at):
        own = {**at, **{d: COUNTS[d][k] for d in names}}
        family = sizes.make(**at, c=2)
        inputs = dims.given(p.sides, family, some, own)
        out.append(
            Sized(own, *(dims.value(s, family, inputs) for s in (p.sides.left, p.sides.right)))
        )
    return out


def _where(pair: Rule, found: Parts, sizes: Sizes) -> tuple[Formula, ...]:
    """What sizes have in common, where anything hangs on it."""
    text = " ".join(map(str, (pair, *found.shape, *found.equal, *found.different)))
    return tuple(map(parsed, sizes.where)) if any(s in text for s in STEPS) else ()


def _corrections(
    operators: int, pair: Rule, found: Parts, some: Sequence[Sized], costs: Costs
) -> Iterator[Candidate]:
    if not found.different:
        rules = {"equal": replace(pair, float_class="E2")}
    else:
        made = {how: corrected(how, pair, found, some) for how in HOW}
        rules = {how: r for how, r in made.items() if r is not None}
    for how, rule in rules.items():
        us = _prices(rule, some[0].sizes, costs)
        if us:
            yield Candidate(operators, pair, found, how, rule, us)


def _right(rule: Rule, at: Mapping[str, int]) -> bool:
    """Is the program the corrected mutant at these sizes? Zeros in between are not all that a
    mutant may lack."""
    both = sides(rule, at)
    return both is not None and not regions(both[0][0], both[1][0], SOME).different


def _prices(rule: Rule, names: Mapping[str, int], costs: Costs) -> tuple[tuple[float, float], ...]:
    both = [sides(rule, {n: at[n] for n in names}) for at in PRICED]
    return tuple(
        (costs.of_graph(with_weights(x[0])), costs.of_graph(with_weights(x[1])))
        for x in both
        if x is not None
    )


def otherwise(c: Candidate, known: Book, costs: Costs) -> bool:
    """Do known rules make the program as cheap, at each size at which the candidate saves?"""
    names = c.found.seen[0][0]
    for at in PRICED:
        both = sides(c.rule, {n: at[n] for n in names})
        if both is None:
            continue
        before, after = map(with_weights, both)
        price = costs.of_graph(after)
        if price >= GAIN * costs.of_graph(before):
            continue
        if price < GAIN * search(before, known, costs, SEARCH, Refusals()).cost:
            return False
    return True
