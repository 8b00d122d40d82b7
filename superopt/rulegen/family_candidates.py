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

from superopt.cost.fusion import is_fused_when_compiled
from superopt.cost.graph_cost import GraphCosts
from superopt.cost.kernel_cost import kernel_cost_model
from superopt.generate.enumeration import dim_inference
from superopt.generate.enumeration.partial_equality import PartialEquality
from superopt.generate.enumeration.pattern import variable_numbers
from superopt.generate.families.family import Family
from superopt.generate.families.images import borders, strided
from superopt.ir.op import InferError
from superopt.partial.correct.formulas import parse_formula
from superopt.partial.correct.generalize import pair_from_sizes
from superopt.partial.correct.partial_rules import CORRECTION_KINDS, corrected_rule
from superopt.partial.correct.sized_pairs import SizedPair, sides_at
from superopt.partial.correct.symbolic_boxes import NoFormula, SymbolicRegions, symbolic_regions
from superopt.partial.regions.cells import TooManyCells
from superopt.rulegen.subprogram_mutants import graph_with_constant_weights
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.term import App, Binary, Formula, Lit, Part, walk


@dataclass(frozen=True, slots=True)
class FamilySizes:
    """A family of any sizes: sample_sizes are those at which it is enumerated and generalised.
    common_conditions: what all of these have in common."""

    make_family: Callable[..., Family]
    sample_sizes: tuple[Mapping[str, int], ...]
    common_conditions: tuple[str, ...]


MUTANT_FAMILIES = {
    "borders": FamilySizes(
        borders, ({"h": 8, "w": 10}, {"h": 12, "w": 15}, {"h": 14, "w": 9}), ("h % 2 == 0",)
    ),
    "strided": FamilySizes(
        strided,
        ({"h": 8, "w": 10}, {"h": 12, "w": 14}, {"h": 14, "w": 6}),
        ("h % 2 == 0", "w % 2 == 0"),
    ),
}
# Channels and batch at these three sizes. No two of all sizes (nor halves of spatial sizes) grow by
# amounts of the same proportion: one would be taken for a formula of the other.
SAMPLE_COUNTS = {
    "c": (2, 4, 3), "o": (3, 2, 5), "q": (2, 5, 3), "r": (2, 3, 5), "s": (6, 2, 3), "t": (3, 6, 2),
    "d": (2, 3, 6), "e": (3, 2, 6), "n": (2, 3, 4), "m": (2, 7, 3),
}  # fmt: skip
# Sizes at which prices are compared: early and late in a network, and with a batch.
PRICED_SIZES = tuple(
    {
        "h": h,
        "w": w,
        **dict.fromkeys(dim_inference.CHANNEL_NAMES, c),
        **dict.fromkeys(dim_inference.IMAGE_NAMES, n),
    }
    for h, w, c, n in ((56, 60, 64, 1), (14, 12, 256, 1), (14, 12, 256, 16))
)
# The price of a mutant with its correction, relative to its program, where it is lowest, is at most
# this: a correction that recomputes the whole program costs as much, and nothing can make it
# cheaper.
MAX_PRICE_RATIO = 2.0
EXTRA_COMPARED_ELEMENTS = (
    0  # elements compared beside some of each cell, for pricing: proofs cover all
)
STEP_ATTRIBUTES = ("steps", "strides")  # attributes that select every n-th element
FREE_REASON = "it only moves elements, which costs nothing"
DEARER_REASON = "more expensive than the program"
UNFIT_REASON = "it does not fit at other sizes"


class RejectedPair(Exception):
    """Why a pair is not worth a proof."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair, the program and its mutant at several sizes, where they are equal, the kind of
    correction, and the resulting rule; for a mutant without a correction, the pair. prices_us: of
    the program and of the rule's other side, estimates in microseconds at each of PRICED_SIZES."""

    pair: Rule
    sized_pairs: tuple[SizedPair, ...]
    regions: SymbolicRegions
    correction_kind: str
    rule: Rule
    prices_us: tuple[tuple[float, float], ...]

    @property
    def price_ratio(self) -> float:
        """The lowest ratio of the prices."""
        return min(after / before for before, after in self.prices_us)

    @property
    def sort_key(self) -> tuple[bool, float]:
        """Sort key: pairs with a correction first, then those that save most."""
        return not self.correction_kind, self.price_ratio


def estimated_costs() -> GraphCosts:
    """Return the cost model of the compiler's kernels, which is independent of the machine."""
    return GraphCosts({}, kernel_cost_model(), is_fused_when_compiled)


def uncorrected_price_ratio(p: PartialEquality, sizes: FamilySizes, costs: GraphCosts) -> float:
    """Return the price of a mutant without a correction, relative to its program, at the sizes and
    in the direction where it is lowest. Raises RejectedPair if no side costs anything, or if it is
    too expensive."""
    some = _input_dims(p, sizes)
    told: list[float] = []
    for at in PRICED_SIZES:
        family = sizes.make_family(h=at["h"], w=at["w"], c=at["c"])
        try:
            inputs = dim_inference.graph_inputs(p.equation, family, some, at)
            both = [
                dim_inference.term_value(s, family, inputs)
                for s in (p.equation.left, p.equation.right)
            ]
        except InferError:
            continue
        before, after = (costs.graph_cost(graph_with_constant_weights([v])) for v in both)
        if before:
            told.append(after / before)
        if after and _is_reversible(p):
            told.append(before / after)
    if not told:
        raise RejectedPair(FREE_REASON)
    if min(told) > MAX_PRICE_RATIO:
        raise RejectedPair(DEARER_REASON)
    return min(told)


def cheapest_candidate(
    name: str, p: PartialEquality, sizes: FamilySizes, costs: GraphCosts
) -> Candidate:
    """Return a pair with its cheapest correction, in the direction with the lowest relative price.
    Raises RejectedPair."""
    made = all_candidates(name, p, sizes, costs)
    if not made:
        raise RejectedPair(FREE_REASON)
    best = min(made, key=lambda c: c.sort_key)
    if best.price_ratio > MAX_PRICE_RATIO:
        raise RejectedPair(DEARER_REASON)
    return best


def all_candidates(
    name: str, p: PartialEquality, sizes: FamilySizes, costs: GraphCosts
) -> list[Candidate]:
    """Return all candidates in both directions; none for programs that cost nothing. Raises
    RejectedPair."""
    try:
        some = _sized_pairs(p, sizes)
        found = symbolic_regions(some, EXTRA_COMPARED_ELEMENTS)
        if not found.equal:
            raise RejectedPair("equal nowhere at other sizes")
        out: list[Candidate] = []
        for turned in (False, True) if _is_reversible(p) else (False,):
            both = (
                [replace(s, program=s.mutant, mutant=s.program) for s in some] if turned else some
            )
            pair = replace(
                pair_from_sizes(name, both),
                where=_pair_conditions(pair_from_sizes(name, both), found, sizes),
            )
            out += _candidates_of_pair(pair, found, both, costs)
    except NoFormula:
        raise RejectedPair("no formula fits the sizes") from None
    except TooManyCells:
        raise RejectedPair("too many break points") from None
    return out


def _is_reversible(p: PartialEquality) -> bool:
    """True if the mutant may be the program: it must read all that the program reads."""
    return set(variable_numbers(p.equation.left)) == set(variable_numbers(p.equation.right))


def _input_dims(p: PartialEquality, sizes: FamilySizes) -> list[dim_inference.Dims]:
    family = sizes.make_family(**sizes.sample_sizes[0], c=3)
    try:
        return dim_inference.infer_dims(p.equation, family)
    except (dim_inference.DimsNotGeneral, InferError):
        own = [family.inputs[i][0] for i in p.equation.inputs]
        return [(1 if n == 1 else "c", "c") for n in own]


def _sized_pairs(p: PartialEquality, sizes: FamilySizes) -> list[SizedPair]:
    """Return the pair at several sizes. Raises RejectedPair if it does not fit."""
    some = _input_dims(p, sizes)
    names = [d for d in SAMPLE_COUNTS if any(d in two for two in some)]
    out = []
    for k, at in enumerate(sizes.sample_sizes):
        own = {**at, **{d: SAMPLE_COUNTS[d][k] for d in names}}
        family = sizes.make_family(**at, c=2)
        inputs = dim_inference.graph_inputs(p.equation, family, some, own)
        try:
            left, right = (
                dim_inference.term_value(s, family, inputs)
                for s in (p.equation.left, p.equation.right)
            )
        except InferError:
            raise RejectedPair(UNFIT_REASON) from None
        if left.type != right.type:
            raise RejectedPair(UNFIT_REASON)
        out.append(SizedPair(own, left, right))
    return out


def _pair_conditions(
    pair: Rule, regions: SymbolicRegions, sizes: FamilySizes
) -> tuple[Formula, ...]:
    """Return the conditions that the sizes have in common, if anything depends on them."""
    ends = (
        f for part in (*regions.equal, *regions.different) for r in part for f in (r.begin, r.end)
    )
    formulas = map(parse_formula, dict.fromkeys((*regions.shape, *ends)))
    every = chain.from_iterable(map(walk, (*pair.lhs, *pair.rhs, *formulas)))
    return (
        tuple(map(parse_formula, sizes.common_conditions))
        if any(map(_depends_on_divisibility, every))
        else ()
    )


def _depends_on_divisibility(part: Part) -> bool:
    """True if it divides a size or selects every n-th element."""
    match part:
        case Binary(op):
            return op == "//"
        case App(attrs=attrs):
            steps = (
                step for name, value in attrs if name in STEP_ATTRIBUTES for step in walk(value)
            )
            return any(isinstance(step, Lit) and step.value != 1 for step in steps)
    return False


def _candidates_of_pair(
    pair: Rule, regions: SymbolicRegions, sized_pairs: Sequence[SizedPair], costs: GraphCosts
) -> Iterator[Candidate]:
    rules = {"equal": replace(pair, float_class="E2")}
    if regions.different:
        made = {how: corrected_rule(how, pair, regions, sized_pairs) for how in CORRECTION_KINDS}
        rules = {how: r for how, r in made.items() if r is not None}
    for how, rule in rules.items() or (("", pair),):
        us = estimate_prices(rule, sized_pairs[0].sizes, costs)
        if us:
            yield Candidate(pair, tuple(sized_pairs), regions, how, rule, us)


def estimate_prices(
    rule: Rule, size_names: Mapping[str, int], costs: GraphCosts
) -> tuple[tuple[float, float], ...]:
    """Return the prices of both sides at each fitting size of PRICED_SIZES; none for programs that
    cost nothing. size_names: of the rule."""
    both = [sides_at(rule, {n: at[n] for n in size_names}) for at in PRICED_SIZES]
    told = (
        tuple(costs.graph_cost(graph_with_constant_weights(s)) for s in x)
        for x in both
        if x is not None
    )
    return tuple((before, after) for before, after in told if before > 0)
