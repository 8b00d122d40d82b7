"""Find where a program and its mutant are equal for all sizes.

Regions at a few sizes give box bounds; formulas of the sizes that fit these bounds are claims,
which the verifier proves: the part of the program equals the part of the mutant (`claims.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement
from math import prod

from superopt.partial.correct.sized_pairs import SizedPair
from superopt.partial.regions.boxes import Box
from superopt.partial.regions.find import MAX_EXHAUSTIVE_ELEMENTS, Regions, find_regions

FormulaText = str  # of a formula of sizes, as rules have them
Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SymbolicRange:
    """The indices begin, begin + step, ... below end of an axis; whole: the full axis."""

    begin: FormulaText
    end: FormulaText
    step: int = 1
    is_full: bool = False

    def __str__(self) -> str:
        if self.is_full:
            return ":"
        return f"{self.begin}:{self.end}" + (f":{self.step}" if self.step > 1 else "")


SymbolicBox = tuple[SymbolicRange, ...]


@dataclass(frozen=True, slots=True)
class SymbolicRegions:
    """equal, different: boxes that partition the shape. seen: the sampled regions."""

    shape: tuple[FormulaText, ...]
    equal: tuple[SymbolicBox, ...]
    different: tuple[SymbolicBox, ...]
    sampled_regions: tuple[tuple[Sizes, Regions], ...]


class NoFormula(ValueError):
    """Boxes at several sizes fit no common formula."""


def format_symbolic_box(part: SymbolicBox) -> str:
    return "[" + ", ".join(map(str, part)) + "]"


def symbolic_regions(
    some: Sequence[SizedPair], max_exhaustive: int = MAX_EXHAUSTIVE_ELEMENTS
) -> SymbolicRegions:
    """Return symbolic regions. max_exhaustive: see `find_regions`. Raises NoFormula if the regions
    have different structures, or there are too few sizes."""
    if len(some) < 2:
        raise NoFormula(f"the sizes fit at {len(some)} places only")
    found = [(s.sizes, find_regions(s.program, s.mutant, max_exhaustive)) for s in some]
    sizes = [dict(s) for s, _ in found]
    shape = tuple(
        fit_formula(sizes, [r.shape[d] for _, r in found]) for d in range(len(found[0][1].shape))
    )
    equal = _symbolic_boxes(sizes, [r.equal for _, r in found], shape)
    return SymbolicRegions(
        shape, equal, _symbolic_boxes(sizes, [r.different for _, r in found], shape), tuple(found)
    )


def _symbolic_boxes(
    sizes: Sequence[Sizes], boxes: Sequence[Sequence[Box]], shape: Sequence[FormulaText]
) -> tuple[SymbolicBox, ...]:
    if len(set(map(len, boxes))) > 1:
        counts = " and ".join(str(len(b)) for b in boxes)
        raise NoFormula(f"at the sizes that were tried there are {counts} boxes")
    return tuple(_symbolic_box(sizes, b, shape) for b in zip(*boxes, strict=True))


def _symbolic_box(
    sizes: Sequence[Sizes], boxes: Sequence[Box], shape: Sequence[FormulaText]
) -> SymbolicBox:
    """Return the boxes at several sizes as one symbolic box."""
    out = []
    for d, spans in enumerate(zip(*boxes, strict=True)):
        steps = {s.step for s in spans if s.count > 1}
        if len(steps) > 1:
            raise NoFormula(f"steps of {sorted(steps)}")
        begin = fit_formula(sizes, [s.begin for s in spans])
        end = fit_formula(sizes, [s.end for s in spans])
        step = steps.pop() if steps else 1
        out.append(SymbolicRange(begin, end, step, begin == "0" and end == shape[d] and step == 1))
    return tuple(out)


def fit_formula(sizes: Sequence[Sizes], values: Sequence[int]) -> FormulaText:
    """Return the simplest candidate formula with these values. Raises NoFormula if there is
    none."""
    if len(set(values)) == 1:
        return str(values[0])
    for text, value in _candidate_formulas(sizes[0]):
        for factor in (1, 2, 3, 4):
            rest = {v - factor * value(s) for v, s in zip(values, sizes, strict=True)}
            if len(rest) == 1:
                (base,) = rest
                scaled = text if factor == 1 else f"{factor}*{text}"
                return scaled if not base else f"{scaled}{'+' if base > 0 else '-'}{abs(base)}"
    raise NoFormula(f"no formula of {', '.join(sizes[0])} is {values} at {[*map(dict, sizes)]}")


def _candidate_formulas(names: Sizes) -> Iterator[tuple[FormulaText, Callable[[Sizes], int]]]:
    """Yield candidate formulas and their evaluators, simplest first."""
    for n in names:
        yield n, partial(_product, (n,))
    for n in names:
        yield from ((f"({n}//{by})", partial(_quotient, n, by, 0)) for by in (2, 3))
        yield f"(({n}+1)//2)", partial(_quotient, n, 2, 1)
    for n in names:
        for by, more in ((3, 2), (3, 1), (4, 0), (4, 3)):
            said = f"(({n}+{more})//{by})" if more else f"({n}//{by})"
            yield said, partial(_quotient, n, by, more)
    for a, b in combinations_with_replacement(names, 2):
        yield f"({a}+{b})", partial(_sum, a, b)
    for count in (2, 3):
        for some in combinations_with_replacement(names, count):
            yield f"({'*'.join(some)})", partial(_product, some)


def _product(names: Sequence[str], s: Sizes) -> int:
    return prod(s[n] for n in names)


def _quotient(n: str, by: int, more: int, s: Sizes) -> int:
    return (s[n] + more) // by


def _sum(a: str, b: str, s: Sizes) -> int:
    return s[a] + s[b]
