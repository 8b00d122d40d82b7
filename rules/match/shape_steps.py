"""The step of matching that requires a shape and binds its sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from superopt.rules.match.operand_steps import Cells, Continuation, Step
from superopt.te.expr.node import Dim


@dataclass(frozen=True, slots=True)
class ShapePattern:
    """A shape pattern: for each axis the required size, or a slot to bind or compare."""

    before: tuple[tuple[int | None, Dim | None, bool], ...]  # slot, number, bind
    middle: tuple[int, bool] | None = None  # of `*s`: slot, bind
    after: tuple[tuple[int | None, Dim | None, bool], ...] = ()


def _shape_test(
    pattern: ShapePattern,
) -> Callable[[Cells, tuple[Dim, ...] | None, bool], bool]:
    """Return a test of a shape, which binds sizes, or only compares them (again)."""
    head, tail = len(pattern.before), len(pattern.after)
    middle = pattern.middle
    places = [(k, *d) for k, d in enumerate(pattern.before)]
    places += [(k - tail, *d) for k, d in enumerate(pattern.after)]

    def fits(env: Cells, shape: tuple[Dim, ...] | None, again: bool) -> bool:
        if shape is None:
            return False
        if len(shape) < head + tail if middle is not None else len(shape) != head:
            return False
        for k, at, number, bind in places:
            d = shape[k]
            if at is None:
                if number is not None and d != number:
                    return False
            elif bind and not again:
                env[at] = d
            elif env[at] != d:
                return False
        if middle is not None:
            at, bind = middle
            run = shape[head : len(shape) - tail]
            if bind and not again:
                env[at] = run
            elif env[at] != run:
                return False
        return True

    return fits


def shape_step(slot: int, pattern: ShapePattern, text: str) -> Step:
    """Require the shape of a value, or of each value of a run, and bind sizes."""
    fits = _shape_test(pattern)

    def make(go: Continuation) -> Continuation:
        def run(env: Cells) -> None:
            v = env[slot]
            if type(v) is not tuple:
                if fits(env, v.type.shape, False):
                    go(env)
            elif all(fits(env, x.type.shape, k > 0) for k, x in enumerate(v)):
                go(env)

        return run

    def why(env: Cells) -> str:
        values = env[slot] if type(env[slot]) is tuple else (env[slot],)
        return f"the type is {', '.join(str(v.type) for v in values)}, the rule needs {text}"

    return Step(make, why)
