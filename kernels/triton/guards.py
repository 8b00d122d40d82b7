"""Masks of loads in the branches of a select, where an index may be out of range if the branch is
not taken. A branch is not masked if the test reads the same elements: the masked loads would differ
from the test's, and all would be loaded several times (a leaky ReLU behind a convolution: 444 loads
instead of 60)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from superopt.te.analysis.walk import loads
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Expr, Load
from superopt.te.expr.tensor import Tensor


def needs_guard(e: Expr, test: Expr, registers: Collection[Tensor]) -> bool:
    """True if the loads of a branch need its test as mask. registers: buffers that are not in
    memory.

    A test that compares no indices cannot protect a branch whose indices contain no data.
    """
    own = {x for x in loads(e) if x.tensor not in registers}
    there = {x for x in _unconditional_loads(test) if x.tensor not in registers}
    if not own & there:
        return bool(own)
    plain = not _compares_indices(test) and not any(any(loads(i)) for x in own for i in x.index)
    return not (own <= there or plain)


def _unconditional_loads(e: Expr) -> Iterator[Load]:
    """Yield the loads that happen whatever the expression's own selects choose."""
    match e:
        case Load():
            yield from loads(e)
        case Apply("select", (test, _, _)):
            yield from _unconditional_loads(test)
        case Apply(_, args):
            for a in args:
                yield from _unconditional_loads(a)


def _compares_indices(e: Expr) -> bool:
    """True if the expression uses indices other than those of its loads."""
    match e:
        case Load():
            return False
        case Apply(_, args):
            return any(a.dtype == INDEX or _compares_indices(a) for a in args)
    return e.dtype == INDEX
