"""The options of a problem on a target, by the table of algorithms; the default; and what an option
computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from superopt.kernels.algorithms.algorithm import Algorithm, Prediction
from superopt.kernels.algorithms.digests import problem_digest
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.algorithms.table import ALGORITHMS
from superopt.kernels.loops.option import Option
from superopt.te.expr.symbolic_int import masks_tiles

DEFAULT_WARPS, DEFAULT_STAGES = 4, 3  # of a GPU kernel, unless its option says otherwise


def choose(
    p: Problem,
    requested: Option | None = None,
    target: str = "cpu",
    vendor: bool = True,
    forms: bool = True,
    fallback: Mapping[str, Option] | None = None,
) -> Choice:
    """Return the choice of the requested option, if the problem has it; else of that of its key in
    `fallback`; else of the default. vendor, forms: see `options`."""
    some = [requested]
    if requested is not None and fallback:
        some.append(fallback.get(problem_digest(p)))
    for o in some:
        if o is not None and o in options(p, target, vendor, forms):
            return build_choice(p, o, target)
    return build_choice(p, best_option(p, target, vendor, forms), target)


def options(
    p: Problem, target: str = "cpu", vendor: bool = True, forms: bool = True
) -> Iterator[Option]:
    """Yield all options, the default first. vendor: include vendor libraries. forms: allow
    algorithms that replace the sum by another computation."""
    first = best_option(p, target, vendor, forms)
    yield first
    some = (o for a, m in matched_algorithms(p, target, vendor, forms) for o in a.options(p, m))
    yield from (o for o in dict.fromkeys(some) if o != first)


def best_option(p: Problem, target: str = "cpu", vendor: bool = True, forms: bool = True) -> Option:
    """Return the option that is estimated to be the fastest."""
    return best_prediction(p, target, vendor, forms).option


def best_prediction(
    p: Problem, target: str = "cpu", vendor: bool = True, forms: bool = True
) -> Prediction:
    """Return the option that is estimated to be the fastest, with its estimated time."""
    found = [a.prediction(p, m) for a, m in matched_algorithms(p, target, vendor, forms)]
    return min((x for x in found if x is not None), key=lambda x: x.relative_time)


def matched_algorithms(
    p: Problem, target: str, vendor: bool = True, forms: bool = True
) -> Iterator[tuple[Algorithm[Any], Any]]:
    """Yield the algorithms that compute a problem, and what they recognised."""
    for a in ALGORITHMS[target]:
        if (a.uses_vendor_library and not vendor) or (a.replaces_sums and not forms):
            continue
        match = a.recognise(p)
        if match is not None:
            yield a, match
            if a.exclusive:
                return


def build_choice(p: Problem, option: Option, target: str = "cpu") -> Choice:
    """Return the choice of an option. Raises ValueError or KeyError if the problem does not have
    it."""
    for a, match in matched_algorithms(p, target):
        if option.algorithm in a.names:
            return a.schedule(p, match, option)
    raise ValueError(f"{option} is not an option of {p.tensor.name}")


def build_symbolic_choice(p: Problem, option: Option, target: str = "cpu") -> Choice | None:
    """Return the choice of an option, chosen at the example sizes, for a problem of symbolic sizes;
    None if its algorithm computes another tensor, whose form is known for fixed sizes only. Where
    tiles are masked, any algorithm schedules symbolic sizes; what it decides becomes guards."""
    for a in ALGORITHMS[target]:
        if option.algorithm not in a.names:
            continue
        if a.schedule_symbolic is not None:
            return a.schedule_symbolic(p, option)
        if masks_tiles() and (match := a.recognise(p)) is not None:
            return a.schedule(p, match, option)
    return None


def launch_parameters(option: Option) -> tuple[int, int]:
    """Return the number of warps of an option's GPU kernels, and of pipeline stages."""
    knobs = dict(option.knobs)
    return knobs.get("warps", DEFAULT_WARPS), knobs.get("stages", DEFAULT_STAGES)
