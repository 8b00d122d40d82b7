"""The values of a tensor: vectorised over its axes, in a domain.

Every intermediate array has one dimension for each axis in scope, of length 1 where it does not
depend on it, so that numpy's broadcasting is all the alignment there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from superopt.te import index as ix
from superopt.te.domain import Domain, Reals
from superopt.te.dtype import BOOL, INDEX, DType
from superopt.te.expr import Tensor
from superopt.te.node import Apply, Axis, Const, Dim, Expr, Index, Load, Reduce, Size
from superopt.te.fn import function


def evaluate(
    tensor: Tensor, inputs: Mapping[str, np.ndarray], domain: Domain | None = None
) -> np.ndarray:
    """The value of `tensor`, whose sizes are numbers (see `bind`), from its inputs by name.

    The result may share memory with an input. Raises IndexError where an unguarded load is out of
    range, KeyError for a missing input, ValueError for an input of another shape.
    """
    return evaluate_all((tensor,), inputs, domain)[0]


def evaluate_all(
    tensors: Sequence[Tensor], inputs: Mapping[str, np.ndarray], domain: Domain | None = None
) -> list[np.ndarray]:
    """The values of several tensors; what they share is computed once. See `evaluate`."""
    with np.errstate(all="ignore"):
        run = _Run(dict(inputs), domain or Reals(), {})
        return [run.tensor(t) for t in tensors]


def bind(tensor: Tensor, sizes: Mapping[str, int]) -> Tensor:
    """`tensor` with numbers for symbolic sizes, in the tensors it loads from too."""
    return _bind(tensor, dict(sizes), {})


def _bind(t: Tensor, sizes: dict[str, int], done: dict[Tensor, Tensor]) -> Tensor:
    if t in done:
        return done[t]

    def size(d: Dim) -> Dim:
        return ix.dim(expr(ix.as_index(d)))

    def axis(a: Axis) -> Axis:
        return Axis(a.name, size(a.extent))

    def expr(e: Expr) -> Expr:
        match e:
            case Size(name):
                return Const(sizes[name], INDEX) if name in sizes else e
            case Axis():
                return axis(e)
            case Apply(fn, args, dtype):
                parts = tuple(expr(a) for a in args)
                return rebuilt(fn, parts, dtype)
            case Load(source, index, dtype):
                return Load(_bind(source, sizes, done), tuple(expr(i) for i in index), dtype)
            case Reduce(fn, axes, body, dtype):
                return Reduce(fn, tuple(axis(a) for a in axes), expr(body), dtype)
            case Index(element, bound, _):
                return Index(expr(element), expr(bound))
            case _:
                return e

    body = None if t.body is None else expr(t.body)
    out = Tensor(t.name, t.dtype, tuple(size(d) for d in t.shape), tuple(map(axis, t.axes)), body)
    done[t] = out
    return out


def rebuilt(fn: str, args: tuple[Expr, ...], dtype: DType) -> Expr:
    """`fn` of `args`, in normal form where it is index arithmetic."""
    if args[0].dtype != INDEX or fn == "cast":
        if fn == "select" and isinstance(args[0], Const):
            return args[1] if args[0].value else args[2]
        return Apply(fn, args, dtype)
    if fn in ("add", "mul"):
        out = args[0]
        for a in args[1:]:
            out = ix.apply(fn, (out, a), INDEX)
        return out
    return ix.apply(fn, args, dtype)


@dataclass(frozen=True, slots=True)
class _Run:
    inputs: dict[str, np.ndarray]
    domain: Domain
    done: dict[Tensor, np.ndarray]

    def tensor(self, t: Tensor) -> np.ndarray:
        if t in self.done:
            return self.done[t]
        if t.body is None:
            out = self.domain.load(self.inputs[t.name], t.type)
            lead = self.domain.lead(t.dtype)
            if out.shape != (*lead, *t.shape):
                raise ValueError(f"input {t.name} is {out.shape}, expected {(*lead, *t.shape)}")
        else:
            shape = tuple(int(d) for d in t.shape if isinstance(d, int))
            full = (*self.domain.lead(t.dtype), *shape)
            if 0 in shape:  # no element, hence no load, not even of a constant index
                out = np.zeros(full, self.domain.store(t.dtype))
            else:
                out = np.broadcast_to(self.value(t.body, t.axes, None), full)
        self.done[t] = out
        return out

    def value(self, e: Expr, scope: tuple[Axis, ...], mask: np.ndarray | None) -> np.ndarray:
        match e:
            case Const(v, dtype):
                if dtype == INDEX:
                    return np.full((1,) * len(scope), int(v))
                c = self.domain.const(v, dtype)
                return c.reshape(c.shape + (1,) * len(scope))
            case Axis(_, extent):
                assert isinstance(extent, int)
                at = scope.index(e)
                return np.arange(extent).reshape((1,) * at + (-1,) + (1,) * (len(scope) - at - 1))
            case Apply("select", (guard, yes, no), dtype):
                g = self.value(guard, scope, mask)
                a = self.value(yes, scope, g if mask is None else g & mask)
                b = self.value(no, scope, ~g if mask is None else ~g & mask)
                return np.where(g, a, b)
            case Apply(fn, args, dtype):
                values = [self.value(a, scope, mask) for a in args]
                if args[0].dtype == INDEX:
                    return self.index(fn, values, dtype)
                return self.domain.apply(fn, values, [a.dtype for a in args], dtype)
            case Load(t, index, _):
                source = self.tensor(t)
                where = []
                for i, n in zip(index, t.shape, strict=True):
                    assert isinstance(n, int)
                    v = self.value(i, scope, mask)
                    bad = (v < 0) | (v >= n)
                    if np.any(bad if mask is None else bad & mask):
                        raise IndexError(f"{e} is out of the shape {list(t.shape)}")
                    where.append(np.clip(v, 0, max(n - 1, 0)))
                if not where:
                    return source.reshape(source.shape + (1,) * len(scope))
                return np.asarray(source[(..., *where)])
            case Index(element, bound, _):
                v = self.value(element, scope, mask).astype(np.int64)
                n = int(self.value(bound, scope, mask).reshape(-1)[0])
                bad = (v < -n) | (v >= n)
                if np.any(bad if mask is None else bad & mask):
                    raise IndexError(f"an index is not in [-{n}, {n}) in {e}")
                return np.where(v < 0, v + n, v)
            case Reduce(fn, axes, body, dtype):
                inner = (*scope, *axes)
                m = None if mask is None else mask[(...,) + (None,) * len(axes)]
                x = self.value(body, inner, m)
                lead = x.shape[: x.ndim - len(inner)]
                full = tuple(a.extent for a in axes if isinstance(a.extent, int))
                x = np.broadcast_to(x, (*lead, *x.shape[len(lead) : x.ndim - len(axes)], *full))
                out = self.domain.reduce(fn, x, tuple(range(-len(axes), 0)), dtype)
                return out.reshape(out.shape[: out.ndim - len(axes)])
        raise TypeError(f"{e} has no value")

    def index(self, fn: str, values: list[np.ndarray], dtype: DType) -> np.ndarray:
        if fn == "cast":
            return self.domain.apply(fn, values, [INDEX], dtype)
        if fn == "floordiv":
            return np.asarray(values[0] // values[1])
        out = values[0]
        row = function(fn).ints
        assert row is not None
        if len(values) == 1:
            return row(out)
        for v in values[1:]:
            out = row(out, v)
        return out


__all__ = ["BOOL", "Reals", "bind", "evaluate"]
