"""Where a choice guards what is read for it: an index may be out of range where it is not taken. It
does not where the test reads the same: the guarded loads would be others than the test's, and all
of it would be read several times (a leaky ReLU behind a convolution: 444 loads for 60)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from superopt.te.dtype import INDEX
from superopt.te.expr import Tensor
from superopt.te.node import Apply, Expr, Load
from superopt.te.walk import loads


def guarded(e: Expr, test: Expr, registers: Collection[Tensor]) -> bool:
    """Is what one side of a choice reads to be guarded by its test? registers: what is no memory.

    Not where the test has no part in which indices are right: it compares none, and those of this
    side are no numbers that are read."""
    own = {x for x in loads(e) if x.tensor not in registers}
    there = {x for x in _always(test) if x.tensor not in registers}
    if not own & there:
        return bool(own)
    plain = not _compares(test) and not any(any(loads(i)) for x in own for i in x.index)
    return not (own <= there or plain)


def _always(e: Expr) -> Iterator[Load]:
    """What is read for it whatever its own choices are."""
    match e:
        case Load():
            yield from loads(e)
        case Apply("select", (test, _, _)):
            yield from _always(test)
        case Apply(_, args):
            for a in args:
                yield from _always(a)


def _compares(e: Expr) -> bool:
    """Does it look at indices, but for those of what it reads?"""
    match e:
        case Load():
            return False
        case Apply(_, args):
            return any(a.dtype == INDEX or _compares(a) for a in args)
    return e.dtype == INDEX
