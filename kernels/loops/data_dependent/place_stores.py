"""Store the result of a kernel at indices that values in memory give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from superopt.kernels.loops.tile import For, Kernel, Stmt
from superopt.te.analysis.affine import rebuild
from superopt.te.analysis.walk import loads
from superopt.te.expr.node import Apply, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor

Place = Callable[[Sequence[Expr]], Expr]


def place_stores(kernel: Kernel, axis: int, place: Place) -> Kernel:
    """Return the kernel with its result stored elsewhere along an axis of the result's buffer.

    place: returns the index along the axis in place of that of an element; different elements have
    different ones. The tensors that it loads become parameters, before the result. Raises
    NotImplementedError if the axis is the last one, along which vectors are stored.
    """
    result = kernel.params[-1]
    if axis == result.rank - 1:
        raise NotImplementedError("positions along the axis of vectors")
    change = _Placement(result, axis, place)
    body = tuple(map(change.stmt, kernel.body))
    more = (t for t in change.read if t not in kernel.params)
    return replace(kernel, body=body, params=(*kernel.params[:-1], *more, result))


@dataclass(slots=True)
class _Placement:
    """read: the tensors that new indices load."""

    result: Tensor
    axis: int
    place: Place
    read: dict[Tensor, None] = field(default_factory=dict)

    def stmt(self, s: Stmt) -> Stmt:
        if isinstance(s, For):
            return replace(s, body=tuple(map(self.stmt, s.body)))
        index = self.index(s.index) if s.buffer is self.result else s.index
        return replace(s, index=index, value=self.expr(s.value))

    def index(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        at = self.place(index)
        self.read.update(dict.fromkeys(x.tensor for x in loads(at)))
        return (*index[: self.axis], at, *index[self.axis + 1 :])

    def expr(self, e: Expr) -> Expr:
        match e:
            case Load(t, index, dtype) if t is self.result:
                return Load(t, self.index(index), dtype)
            case Apply(fn, args, dtype):
                some = tuple(map(self.expr, args))
                return e if some == args else rebuild(fn, some, dtype)
            case Reduce(fn, axes, body, dtype):
                return Reduce(fn, axes, self.expr(body), dtype)
        return e
