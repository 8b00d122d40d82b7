"""Data propagation: small integer tensors as size expressions, as Shape, Gather and Concat
compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from superopt.ir import graph
from superopt.ir.op import Attr, InferError, expression
from superopt.te.eval.quotient import Quotient
from superopt.te.eval.reference import Undecided, reference_elements
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import BOOL, F32, F64
from superopt.te.expr.node import Apply, Expr, Size
from superopt.te.expr.tensor import TensorType

MAX_TRACKED_ELEMENTS = 1024  # elements of an integer tensor that are followed
RANGE_OPERANDS = ("start", "limit", "delta")  # may be floats that are sizes
MAX_READ_BYTES = 64 * MAX_TRACKED_ELEMENTS  # bytes of a constant that may be read for an attribute

MAX_TRACKED_FLOATS = 16  # elements of a float tensor that are followed: factors of sizes

# dtype object; elements are ints or size expressions, and of float tensors floats and quotients
SizeArray = np.ndarray


def python_numbers(array: np.ndarray) -> SizeArray:
    """Return the elements of an array as Python integers, or floats."""
    convert = float if array.dtype.kind == "f" else int
    out = np.empty(array.shape, object)
    out.reshape(-1)[:] = [convert(e) for e in array.reshape(-1)]
    return out


def is_tracked(t: TensorType) -> bool:
    """True for a small tensor of integers or bools, or a few floats, whose elements are tracked."""
    if t.dtype is None or t.shape is None:
        return False
    if t.dtype in (F32, F64):
        most = MAX_TRACKED_FLOATS
    elif t.dtype.is_int or t.dtype == BOOL:
        most = MAX_TRACKED_ELEMENTS
    else:
        return False
    count = 1
    for d in t.shape:
        if not isinstance(d, int):
            return False
        count *= d
    return count <= most


def propagate(
    known: Mapping[graph.Value, SizeArray], n: graph.Node, index: int
) -> SizeArray | None:
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
        out = reference_elements(tensor, inputs)
    except (Undecided, KeyError, TypeError, ArithmeticError, IndexError):
        return None
    flat = [te_index.dim(e) if isinstance(e, Expr) else e for e in out.reshape(-1)]
    if tensor.dtype.is_float:
        if not any(isinstance(e, Expr | Quotient) for e in flat):
            return None  # evaluated in the precision of its type, if at all
        numbers = [*flat]
    elif all(isinstance(e, (int, np.integer, Expr)) for e in flat):
        numbers = [e if isinstance(e, Expr) else int(e) for e in flat]
    else:
        return None
    done = np.empty(out.shape, object)
    done.reshape(-1)[:] = numbers
    return done


def operand_as_attr(known: Mapping[graph.Value, SizeArray], value: graph.Value, name: str) -> Attr:
    """Return the value of an operand that is stored as an attribute. Raises InferError if it
    depends on data."""
    found = known.get(value)
    is_float = value.type.dtype is not None and value.type.dtype.is_float
    if found is not None and (not is_float or name in RANGE_OPERANDS):
        if any(isinstance(e, Quotient) for e in found.reshape(-1)):
            raise InferError(f"{name} is a fraction of a size")
        return tuple(found) if found.ndim == 1 else _scalar_element(found, name)
    if isinstance(value, graph.Constant) and value.nbytes <= MAX_READ_BYTES:
        array = value.load()
        return tuple(array.tolist()) if array.ndim == 1 else _scalar_element(array, name)
    raise InferError(f"{name} depends on data")


def _scalar_element(array: np.ndarray, name: str) -> Attr:
    if array.ndim:
        raise InferError(f"{name} has rank {array.ndim}")
    return array.item()  # type: ignore[no-any-return]


def attr_symbols(value: Attr) -> frozenset[str]:
    """The symbolic sizes in an attribute."""
    match value:
        case tuple():
            return frozenset().union(*map(attr_symbols, value))
        case Size() | Apply():
            return te_index.symbols(value)
        case _:
            return frozenset()


def type_symbols(t: TensorType | None) -> frozenset[str]:
    """The symbolic sizes in a type."""
    if t is None or t.shape is None:
        return frozenset()
    return frozenset().union(*(te_index.symbols(d) for d in t.shape))
