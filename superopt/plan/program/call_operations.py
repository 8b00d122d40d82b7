"""The element operations of each call of a program: those of its kernel's algorithm, and those of
the model, which are computed directly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.llvm.operation_count import count_operations
from superopt.kernels.loops.option import Option
from superopt.plan.program.program import Program


@dataclass(frozen=True, slots=True)
class CallOperations:
    """own: operations of the kernel's algorithm. model: of a direct computation; of several calls
    of one problem, the difference is in the main one. is_main: whether the call does most of its
    problem's work. is_last: of its problem's calls."""

    own: int = 0
    model: int = 0
    is_main: bool = False
    is_last: bool = True


def count_call_operations(
    program: Program, build_choice: Callable[[Problem, Option], Choice]
) -> tuple[CallOperations, ...]:
    """Return the operations of each call; none for a loop and for a call without a problem."""
    out: list[CallOperations] = []
    stages: dict[str, tuple[int, ...]] = {}
    rows = zip(program.call_problems, program.call_results, strict=True)
    for (key, _), group in groupby(rows, key=lambda row: (row[0], id(row[1]))):
        calls = len(list(group))
        if not key:
            out += [CallOperations()] * calls
            continue
        problem = program.problems[key]
        total = count_operations(problem.tensor)
        if key not in stages:
            choice = build_choice(problem, program.options[key])
            stages[key] = stage_operations(choice, total)
        out += _problem_calls(calls, stages[key], total)
    return tuple(out)


def _problem_calls(calls: int, stages: tuple[int, ...], total: int) -> Iterator[CallOperations]:
    """Yield the operations of the calls that solve one problem; the first may zero a border."""
    own = [0] * (calls - len(stages)) + list(stages)[-calls:]
    main = max(range(len(own)), key=lambda n: (own[n], n))
    model = total - sum(own) + own[main]
    for n, count in enumerate(own):
        yield CallOperations(count, model if n == main else count, n == main, n == len(own) - 1)


def stage_operations(choice: Choice, total: int) -> tuple[int, ...]:
    """Return the operations of each kernel of a choice, in execution order.

    The tensors of attention in several kernels only record what is read: one does all the work.
    """
    roots = (*(t for t, _ in choice.producers), choice.root)
    counts = tuple(count_operations(t, choice.tables) for t in roots)
    if choice.producers and choice.root in choice.kernels:
        main = counts.index(max(counts))
        return tuple(total if n == main else 0 for n in range(len(roots)))
    return counts
