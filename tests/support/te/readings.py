"""A tensor read element by element in any domain, to compare the vectorised reading with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from superopt.te.eval.domain import Domain
from superopt.te.eval.reference import Scalar, reference_elements
from superopt.te.expr.dtype import BOOL, DType
from superopt.te.expr.node import Apply, Expr, Index, Load, Number, Reduce
from superopt.te.expr.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Single:
    """A domain's elements one at a time: integers, and arrays with component axes only."""

    domain: Domain

    def const(self, value: Number, dtype: DType) -> Scalar:
        return one(self.domain.const(value, dtype), dtype)

    def apply(self, fn: str, args: list[Scalar], kinds: list[DType], dtype: DType) -> Scalar:
        arrays = [
            np.asarray(a, None if k.is_float else self.domain.storage_dtype(k))
            for a, k in zip(args, kinds, strict=True)
        ]
        return one(self.domain.apply(fn, arrays, kinds, dtype), dtype)

    def truth(self, value: Scalar) -> bool:
        return bool(value)


def one(x: np.ndarray, dtype: DType) -> Scalar:
    """An element as the naive reading knows it."""
    return int(x) if dtype.is_int or dtype == BOOL else x


def leaves(t: Tensor) -> dict[str, Tensor]:
    """The inputs that a tensor is computed from, by name."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()

    def visit(e: Expr) -> None:
        if id(e) in seen:
            return
        seen.add(id(e))
        match e:
            case Load(source, index, _):
                tensor(source)
                for i in index:
                    visit(i)
            case Apply(_, args, _):
                for a in args:
                    visit(a)
            case Reduce(_, _, body, _):
                visit(body)
            case Index(element, _, _):
                visit(element)
            case _:
                pass

    def tensor(t: Tensor) -> None:
        if t.body is None:
            found[t.name] = t
        elif id(t) not in seen:
            seen.add(id(t))
            visit(t.body)

    tensor(t)
    return found


def one_by_one(
    t: Tensor, inputs: Mapping[str, np.ndarray], domain: Domain | None = None
) -> np.ndarray:
    """The elements of `t`, computed one at a time as they are written.

    Without a domain they are Python's numbers, by Python's functions: nothing is shared with the
    vectorised reading.
    """
    given = leaves(t)
    readers: dict[str, Callable[[tuple[int, ...]], Scalar]] = {}
    for name, source in given.items():
        if domain is None:
            readers[name] = _items(inputs[name])
        else:
            readers[name] = _parts(domain.load(inputs[name], source.type), source.dtype)
    with np.errstate(all="ignore"):
        found = reference_elements(t, readers, None if domain is None else Single(domain))
    if domain is None:
        return found
    out = np.empty((*domain.component_shape(t.dtype), *found.shape), domain.storage_dtype(t.dtype))
    for where in np.ndindex(found.shape):
        out[(..., *where)] = found[where]
    return out


def _items(x: np.ndarray) -> Callable[[tuple[int, ...]], Scalar]:
    wide = x if x.dtype.kind in "iubf" else x.astype(np.float64)
    return lambda i: wide[i].item()


def _parts(x: np.ndarray, dtype: DType) -> Callable[[tuple[int, ...]], Scalar]:
    return lambda i: one(np.asarray(x[(..., *i)]), dtype)
