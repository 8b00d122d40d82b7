"""Which pairs of a family are worth a proof.

A pair is first generalised to any fitting batch and channels, and to the family's sizes. Its
correction, as a formula, is built again at typical sizes of models, and priced as the search prices
graphs, by the estimated time of this compiler's kernels. Either side may be the program: both
directions are tried, and the one that saves more is kept. Pairs that are more expensive than their
program by so much that no measurement could change it are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from superopt.cost.fusion import compiled_away
from superopt.cost.model import Costs
from superopt.cost.modelled import by_kernels
from superopt.generate import dims
from superopt.generate.family import Family
from superopt.generate.image_families import borders, strided
from superopt.generate.partial import Partial
from superopt.generate.pattern import holes
from superopt.ir.op import InferError
from superopt.partial.correct.formulas import parse_formula
from superopt.partial.correct.generalize import pair_from_sizes
from superopt.partial.correct.partial_rules import CORRECTION_KINDS, corrected_rule
from superopt.partial.correct.sized_pairs import SizedPair, sides_at
from superopt.partial.correct.symbolic_boxes import NoFormula, SymbolicRegions, symbolic_regions
from superopt.partial.regions.cells import TooManyCells
from superopt.pipeline.program_mutants import with_weights
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.term import App, Binary, Formula, Lit, Part, walk


@dataclass(frozen=True, slots=True)
class Sizes:
    """A family of any sizes: sample_sizes are those at which it is enumerated and generalised.
    common_conditions: what all of these have in common."""

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
# Channels and batch at these three sizes. No two of all sizes (nor halves of spatial sizes) grow by
# amounts of the same proportion: one would be taken for a formula of the other.
COUNTS = {
    "c": (2, 4, 3), "o": (3, 2, 5), "q": (2, 5, 3), "r": (2, 3, 5), "s": (6, 2, 3), "t": (3, 6, 2),
    "d": (2, 3, 6), "e": (3, 2, 6), "n": (2, 3, 4), "m": (2, 7, 3),
}  # fmt: skip
# Sizes at which prices are compared: early and late in a network, and with a batch.
PRICED = tuple(
    {"h": h, "w": w, **dict.fromkeys(dims.CHANNELS, c), **dict.fromkeys(dims.IMAGES, n)}
    for h, w, c, n in ((56, 60, 64, 1), (14, 12, 256, 1), (14, 12, 256, 16))
)
# The price of a mutant with its correction, relative to its program, where it is lowest, is at most
# this: a correction that recomputes the whole program costs as much, and nothing can make it
# cheaper.
NEAR = 2.0
SOME = 0  # elements compared beside some of each cell, for pricing: proofs cover all
STEPS = ("steps", "strides")  # attributes that select every n-th element
FREE = "it only moves elements, which costs nothing"
DEARER = "more expensive than the program"
UNFIT = "it does not fit at other sizes"


class Dropped(Exception):
    """Why a pair is not worth a proof."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair, the program and its mutant at several sizes, where they are equal, the kind of
    correction, and the resulting rule; for a mutant without a correction, the pair. prices_us: of
    the program and of the rule's other side, estimates in microseconds at each of PRICED_SIZES."""

    pair: Rule
    some: tuple[SizedPair, ...]
    found: SymbolicRegions
    how: str
    rule: Rule
    us: tuple[tuple[float, float], ...]

    @property
    def ratio(self) -> float:
        """The lowest ratio of the prices."""
        return min(after / before for before, after in self.us)

    @property
    def order(self) -> tuple[bool, float]:
        """Sort key: pairs with a correction first, then those that save most."""
        return not self.how, self.ratio


def estimates() -> Costs:
    """Return the cost model of the compiler's kernels, which is independent of the machine."""
    return Costs({}, by_kernels(), compiled_away)


def alone(p: Partial, sizes: Sizes, costs: Costs) -> float:
    """Return the price of a mutant without a correction, relative to its program, at the sizes and
    in the direction where it is lowest. Raises RejectedPair if no side costs anything, or if it is
    too expensive."""
    some = _dims(p, sizes)
    told: list[float] = []
    for at in PRICED:
        family = sizes.make(h=at["h"], w=at["w"], c=at["c"])
        try:
            inputs = dims.given(p.sides, family, some, at)
            both = [dims.value(s, family, inputs) for s in (p.sides.left, p.sides.right)]
        except InferError:
            continue
        before, after = (costs.of_graph(with_weights([v])) for v in both)
        if before:
            told.append(after / before)
        if after and _turns(p):
            told.append(before / after)
    if not told:
        raise Dropped(FREE)
    if min(told) > NEAR:
        raise Dropped(DEARER)
    return min(told)


def candidate(name: str, p: Partial, sizes: Sizes, costs: Costs) -> Candidate:
    """Return a pair with its cheapest correction, in the direction with the lowest relative price.
    Raises RejectedPair."""
    made = candidates(name, p, sizes, costs)
    if not made:
        raise Dropped(FREE)
    best = min(made, key=lambda c: c.order)
    if best.ratio > NEAR:
        raise Dropped(DEARER)
    return best


def candidates(name: str, p: Partial, sizes: Sizes, costs: Costs) -> list[Candidate]:
    """Return all candidates in both directions; none for programs that cost nothing. Raises
    RejectedPair."""
    try:
        some = _sized(p, sizes)
        found = symbolic_regions(some, SOME)
        if not found.equal:
            raise Dropped("equal nowhere at other sizes")
        out: list[Candidate] = []
        for turned in (False, True) if _turns(p) else (False,):
            both = (
                [replace(s, program=s.mutant, mutant=s.program) for s in some] if turned else some
            )
            pair = replace(
                pair_from_sizes(name, both), where=_where(pair_from_sizes(name, both), found, sizes)
            )
            out += _candidates(pair, found, both, costs)
    except NoFormula:
        raise Dropped("no formula of the sizes") from None
    except TooManyCells:
        raise Dropped("too many break points") from None
    return out


def _turns(p: Partial) -> bool:
    """True if the mutant may be the program: it must read all that the program reads."""
    return set(holes(p.sides.left)) == set(holes(p.sides.right))


def _dims(p: Partial, sizes: Sizes) -> list[dims.Dims]:
    family = sizes.make(**sizes.at[0], c=3)
    try:
        return dims.dims(p.sides, family)
    except (dims.Unlike, InferError):
        own = [family.inputs[i][0] for i in p.sides.inputs]
        return [(1 if n == 1 else "c", "c") for n in own]


def _sized(p: Partial, sizes: Sizes) -> list[SizedPair]:
    """Return the pair at several sizes. Raises RejectedPair if it does not fit."""
    some = _dims(p, sizes)
    names = [d for d in COUNTS if any(d in two for two in some)]
    out = []
    for k, at in enumerate(sizes.at):
        own = {**at, **{d: COUNTS[d][k] for d in names}}
        family = sizes.make(**at, c=2)
        inputs = dims.given(p.sides, family, some, own)
        try:
            left, right = (dims.value(s, family, inputs) for s in (p.sides.left, p.sides.right))
        except InferError:
            raise Dropped(UNFIT) from None
        if left.type != right.type:
            raise Dropped(UNFIT)
        out.append(SizedPair(own, left, right))
    return out


def _where(pair: Rule, found: SymbolicRegions, sizes: Sizes) -> tuple[Formula, ...]:
    """Return the conditions that the sizes have in common, if anything depends on them."""
    ends = (f for part in (*found.equal, *found.different) for r in part for f in (r.begin, r.end))
    formulas = map(parse_formula, dict.fromkeys((*found.shape, *ends)))
    every = chain.from_iterable(map(walk, (*pair.lhs, *pair.rhs, *formulas)))
    return tuple(map(parse_formula, sizes.where)) if any(map(_in_parts, every)) else ()


def _in_parts(part: Part) -> bool:
    """True if it divides a size or selects every n-th element."""
    match part:
        case Binary(op):
            return op == "//"
        case App(attrs=attrs):
            steps = (step for name, value in attrs if name in STEPS for step in walk(value))
            return any(isinstance(step, Lit) and step.value != 1 for step in steps)
    return False


def _candidates(
    pair: Rule, found: SymbolicRegions, some: Sequence[SizedPair], costs: Costs
) -> Iterator[Candidate]:
    rules = {"equal": replace(pair, float_class="E2")}
    if found.different:
        made = {how: corrected_rule(how, pair, found, some) for how in CORRECTION_KINDS}
        rules = {how: r for how, r in made.items() if r is not None}
    for how, rule in rules.items() or (("", pair),):
        us = prices(rule, some[0].sizes, costs)
        if us:
            yield Candidate(pair, tuple(some), found, how, rule, us)


def prices(rule: Rule, names: Mapping[str, int], costs: Costs) -> tuple[tuple[float, float], ...]:
    """Return the prices of both sides at each fitting size of PRICED_SIZES; none for programs that
    cost nothing. size_names: of the rule."""
    both = [sides_at(rule, {n: at[n] for n in names}) for at in PRICED]
    told = (tuple(costs.of_graph(with_weights(s)) for s in x) for x in both if x is not None)
    return tuple((before, after) for before, after in told if before > 0)
