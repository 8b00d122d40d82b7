"""Substitute integers for symbolic sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from superopt.te.analysis.affine import rebuild
from superopt.te.expr import index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Axis, Const, Dim, Expr, Index, Load, Reduce, Size
from superopt.te.expr.tensor import Tensor, TensorType


def bind(tensor: Tensor, sizes: Mapping[str, int]) -> Tensor:
    """Return `tensor` with integers for symbolic sizes, also in the tensors that it loads from."""
    return Binding(sizes).tensor(tensor)


def bind_dim(d: Dim, sizes: Mapping[str, int]) -> Dim:
    """Return a size with integers for those symbolic sizes that are known."""
    known: dict[Expr, Expr] = {Size(k): index.as_index(n) for k, n in sizes.items()}
    return index.dim(index.substitute(index.as_index(d), known))


@dataclass(frozen=True, slots=True)
class Binding:
    """Integers for symbolic sizes. tensors, memo: what has been bound, and as what."""

    sizes: Mapping[str, int]
    tensors: dict[Tensor, Tensor] = field(default_factory=dict)
    memo: dict[int, tuple[Expr, Expr]] = field(default_factory=dict)

    def tensor(self, t: Tensor) -> Tensor:
        found = self.tensors.get(t)
        if found is None:
            body = None if t.body is None else self.expr(t.body)
            shape, axes = tuple(map(self.size, t.shape)), tuple(map(self.axis, t.axes))
            found = self.tensors[t] = Tensor(t.name, t.dtype, shape, axes, body)
        return found

    def size(self, d: Dim) -> Dim:
        return index.dim(self.expr(index.as_index(d)))

    def axis(self, a: Axis) -> Axis:
        return Axis(a.name, self.size(a.extent))

    def expr(self, e: Expr) -> Expr:
        found = self.memo.get(id(e))
        if found is None:
            found = self.memo[id(e)] = (e, self.bind_expr(e))
        return found[1]

    def bind_expr(self, e: Expr) -> Expr:
        match e:
            case Size(name):
                return Const(self.sizes[name], INDEX) if name in self.sizes else e
            case Axis():
                return self.axis(e)
            case Apply(fn, args, dtype):
                return rebuild(fn, tuple(self.expr(a) for a in args), dtype)
            case Load(source, index, dtype):
                return Load(self.tensor(source), tuple(self.expr(i) for i in index), dtype)
            case Reduce(fn, axes, body, dtype):
                return Reduce(fn, tuple(map(self.axis, axes)), self.expr(body), dtype)
            case Index(element, n, _):
                return Index(self.expr(element), self.expr(n))
            case _:
                return e


def evaluate_shape(t: TensorType, sizes: Mapping[str, int]) -> list[int]:
    """Return a known shape at these sizes."""
    return [index.evaluate(d, dict(sizes)) for d in t.shape or ()]


def has_symbolic_size(t: Tensor) -> bool:
    """True if the tensor, or what it loads, has a symbolic size, as an extent or as a value."""
    found = Binding({})
    found.tensor(t)
    return any(isinstance(e, Size) for e, _ in found.memo.values())
