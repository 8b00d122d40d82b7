"""In-place stages: stages of a row kernel that are stored in the result's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from superopt.kernels.llvm.operation_count import function_operations
from superopt.kernels.loops.tile import For, Kernel, Stmt, Store, flat_statements
from superopt.te.analysis.affine import affine, interval
from superopt.te.analysis.walk import loads
from superopt.te.expr.node import Apply, Expr, Load
from superopt.te.expr.tensor import Tensor

MIN_FUNCTION_OPERATIONS = (
    10  # of a function that takes longer than fetching the memory it is stored to
)


def compute_in_place(kernel: Kernel) -> Kernel:
    """Replace a local buffer by a part of the result, if each element of the result is computed
    from the one at its place in the buffer, and no two iterations share any.

    Memory is then fetched while a row's exp is computed, not all at once when the row is scaled:
    for 16 MiB the latter took 1.2 to 1.4 times as long. Cheap stages had better stay in L1: sums of
    layer norms took 0.8 to 0.9 times as long there.
    """
    for buffer, scope in kernel.scratch:
        if scope == "local" and (begin := _result_offset(kernel, buffer)) is not None:
            body = tuple(_redirect(s, buffer, kernel.params[-1], begin) for s in kernel.body)
            rest = tuple(x for x in kernel.scratch if x[0] is not buffer)
            return replace(kernel, body=body, scratch=rest)
    return kernel


def _result_offset(kernel: Kernel, buffer: Tensor) -> tuple[Expr, ...] | None:
    """Return the index in the result of the buffer's first element; None if this is not
    possible."""
    body: Sequence[Stmt] = kernel.body
    around = set()
    while len(body) == 1 and isinstance(body[0], For):
        around.add(body[0].axis)
        body = body[0].body
    result = kernel.params[-1]
    match [s for s in flat_statements(kernel.body) if s.buffer is result]:
        case [Store(_, index, value)] if (buffer.dtype, buffer.rank) == (result.dtype, result.rank):
            read = {x.index for x in loads(value) if x.tensor is buffer}
        case _:
            return None
    made = [s.value for s in flat_statements(kernel.body) if s.buffer is buffer]
    if len(read) != 1 or not any(map(_has_expensive_function, made)):
        return None
    (where,) = read
    if [interval(i) for i in where] != [(0, n - 1) for n in buffer.shape if isinstance(n, int)]:
        return None
    if any(affine(i) is None for i in index):  # tiles overlap: an element would be scaled twice
        return None
    begin = tuple(i - j for i, j in zip(index, where, strict=True))
    own = [affine(b) for b in begin]
    free = all(f is not None and f.axes <= around for f in own)
    return begin if free else None


def _has_expensive_function(e: Expr) -> bool:
    """True if the expression has a function that is computed by a polynomial."""
    if not isinstance(e, Apply):
        return False
    own = (
        e.args
        and function_operations(e.fn, e.args[0].dtype, len(e.args), e.dtype)
        >= MIN_FUNCTION_OPERATIONS
    )
    return bool(own) or any(map(_has_expensive_function, e.args))


def _redirect(s: Stmt, buffer: Tensor, result: Tensor, begin: Sequence[Expr]) -> Stmt:
    if isinstance(s, For):
        return replace(s, body=tuple(_redirect(x, buffer, result, begin) for x in s.body))
    value = _redirect_loads(s.value, buffer, result, begin)
    if s.buffer is not buffer:
        return replace(s, value=value)
    return replace(s, buffer=result, index=_add_indices(s.index, begin), value=value)


def _redirect_loads(e: Expr, buffer: Tensor, result: Tensor, begin: Sequence[Expr]) -> Expr:
    match e:
        case Load(b, index, dtype):
            return Load(result, _add_indices(index, begin), dtype) if b is buffer else e
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_redirect_loads(a, buffer, result, begin) for a in args), dtype)
    return e


def _add_indices(index: Sequence[Expr], begin: Sequence[Expr]) -> tuple[Expr, ...]:
    return tuple(i + b for i, b in zip(index, begin, strict=True))
