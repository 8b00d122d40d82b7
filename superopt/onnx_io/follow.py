"""Data propagation: small integer tensors as size expressions, as Shape, Gather and Concat
compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from superopt.ir import graph as g
from superopt.ir.op import Attr, InferError, expression
from superopt.te import index as ix
from superopt.te.dtype import BOOL
from superopt.te.expr import TensorType
from superopt.te.naive import Undecided, elements
from superopt.te.node import Apply, Expr, Size

SMALL = 1024  # elements of an integer tensor that are followed
READ = 64 * SMALL  # bytes of a constant that may be read for an attribute

Known = np.ndarray  # dtype object; elements are ints or size expressions


def exact(array: np.ndarray) -> Known:
    """Return the elements of an integer array as Python integers."""
    out = np.empty(array.shape, object)
    out.reshape(-1)[:] = [int(e) for e in array.reshape(-1)]
    return out


def followed(t: TensorType) -> bool:
    """True for a small integer or bool tensor, whose elements are tracked."""
    if t.dtype is None or t.shape is None or not (t.dtype.is_int or t.dtype == BOOL):
        return False
    count = 1
    for d in t.shape:
        if not isinstance(d, int):
            return False
        count *= d
    return count <= SMALL


def follow(known: Mapping[g.Value, Known], n: g.Node, index: int) -> Known | None:
    """Return the elements of output `index` of `n` as sizes, or None if they depend on data.

    The elements are read from the operator's tensor expression, so both always agree.
    """
    types = tuple(None if v is None else v.type for v in n.inputs)
    tensor = expression(n.op, types, n.attrs)[index]
    inputs: dict[str, Callable[[tuple[int, ...]], object]] = {}
    for i, v in enumerate(n.inputs):
        if v is not None and v in known:
            inputs[f"a{i}"] = known[v].__getitem__
    try:
        out = elements(tensor, inputs)
    except (Undecided, KeyError, TypeError, ArithmeticError, IndexError):
        return None
    flat = [ix.dim(e) if isinstance(e, Expr) else e for e in out.reshape(-1)]
    if not all(isinstance(e, (int, np.integer, Expr)) for e in flat):
        return None
    done = np.empty(out.shape, object)
    done.reshape(-1)[:] = [e if isinstance(e, Expr) else int(e) for e in flat]
    return done


def as_attr(known: Mapping[g.Value, Known], value: g.Value, name: str) -> Attr:
    """Return the value of an operand that is stored as an attribute. Raises InferError if it
    depends on data."""
    found = known.get(value)
    if found is not None:
        return tuple(found) if found.ndim == 1 else _only(found, name)
    if isinstance(value, g.Constant) and value.nbytes <= READ:
        array = value.load()
        return tuple(array.tolist()) if array.ndim == 1 else _only(array, name)
    raise InferError(f"{name} depends on data")


def _only(array: np.ndarray, name: str) -> Attr:
    if array.ndim:
        raise InferError(f"{name} has rank {array.ndim}")
    return array.item()  # type: ignore[no-any-return]


def sizes_of(value: Attr) -> frozenset[str]:
    """The symbolic sizes in an attribute."""
    match value:
        case tuple():
            return frozenset().union(*map(sizes_of, value))
        case Size() | Apply():
            return ix.symbols(value)
        case _:
            return frozenset()


def sizes_in(t: TensorType | None) -> frozenset[str]:
    """The symbolic sizes in a type."""
    if t is None or t.shape is None:
        return frozenset()
    return frozenset().union(*(ix.symbols(d) for d in t.shape))
