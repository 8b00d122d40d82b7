"""Facts about values for the matcher: constness, and the number of a uniform constant.

Answers are cached in weak tables: a fact about an interned value holds in every graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np

from superopt.ir.graph import Constant, Input, Item, Node, Value, producer
from superopt.ir.op import Attr
from superopt.te.expr.dtype import BOOL, DType, to_numpy

MAX_READ_BYTES = 1 << 20  # constants are read lazily, and larger ones not at all

Scalar = int | float | bool

_IS_CONST: WeakKeyDictionary[Node, bool] = WeakKeyDictionary()
_UNIFORM: WeakKeyDictionary[Constant, Scalar | None] = WeakKeyDictionary()
_LISTED: WeakKeyDictionary[Constant, tuple[int, ...] | None] = WeakKeyDictionary()


def sibling_dtype(dtypes: Iterable[DType | None]) -> DType | None:
    """Return the element type of a number beside operands of these types; bools (conditions) come
    last."""
    known = [k for k in dtypes if k is not None]
    return next((k for k in known if k != BOOL), known[0] if known else None)


def is_const(v: Value) -> bool:
    """True if `v` is computed from constants only, without opaque nodes and with a known shape.

    A graph input never is, not even one with an initializer that a caller may override.
    """
    match v:
        case Constant():
            return True
        case Input():
            return False
        case Node() | Item():
            n = producer(v)
            assert n is not None
    known = _IS_CONST.get(n)
    if known is not None:
        return known
    stack = [n]
    while stack:
        top = stack[-1]
        if top in _IS_CONST:
            stack.pop()
            continue
        below = _const_or_pending(top)
        if isinstance(below, bool):
            _IS_CONST[top] = below
            stack.pop()
        else:
            stack.append(below)
    return _IS_CONST[n]


def _const_or_pending(n: Node) -> bool | Node:
    """Return whether `n` is constant, or the node that must be decided first."""
    if n.op.opaque:
        return False
    for t in n.types:
        if t.dtype is None or t.shape is None or not all(isinstance(d, int) for d in t.shape):
            return False
    ask: Node | None = None
    for v in n.inputs:
        match v:
            case None | Constant():
                continue
            case Input():
                return False
            case _:
                m = producer(v)
                assert m is not None
                known = _IS_CONST.get(m)
                if known is False:
                    return False
                if known is None and ask is None:
                    ask = m
    return True if ask is None else ask


def uniform_value(v: Value | None) -> Scalar | None:
    """Return the number that all elements of a constant equal; None if there is none."""
    if type(v) is not Constant:
        return None
    try:
        return _UNIFORM[v]
    except KeyError:
        found = _UNIFORM[v] = _uniform_value(v)
        return found


def _uniform_value(c: Constant) -> Scalar | None:
    dtype = c.type.dtype
    if c.nbytes > MAX_READ_BYTES or dtype is None or not (dtype.is_number or dtype == BOOL):
        return None
    array = c.load().reshape(-1)
    if not array.size:
        return None
    first = array[0]
    if array.size > 1 and not bool(np.all(array == first)):
        return None
    if dtype == BOOL:
        return bool(first)
    return float(first) if dtype.is_float else int(first)


MAX_LISTED = 1024  # items of a constant that formulas may use


def listed_integers(v: Value | None) -> tuple[int, ...] | None:
    """Return the items of a short constant vector of integers; None for any other value."""
    if type(v) is not Constant:
        return None
    try:
        return _LISTED[v]
    except KeyError:
        found = _LISTED[v] = _listed_integers(v)
        return found


def _listed_integers(c: Constant) -> tuple[int, ...] | None:
    shape, dtype = c.type.shape, c.type.dtype
    if dtype is None or not dtype.is_int or shape is None or len(shape) != 1:
        return None
    if c.nbytes > MAX_LISTED * dtype.bits // 8:
        return None
    return tuple(int(i) for i in c.load())


def round_to(value: Scalar | Fraction, dtype: DType) -> Scalar | None:
    """Return `value` as `dtype` stores it; None if it cannot (0.5 as an integer, 300 as i8)."""
    if dtype == BOOL:
        return bool(value) if value in (0, 1) else None
    if dtype.is_float:
        try:
            with np.errstate(all="ignore"):
                return float(np.array(float(value)).astype(to_numpy(dtype)))
        except OverflowError:  # an integer beyond the float range
            return None
    if not dtype.is_int or not math.isfinite(value) or int(value) != value:
        return None
    low = -(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0
    return int(value) if low <= value < low + (1 << dtype.bits) else None


@lru_cache(maxsize=1 << 10)
def as_float32(value: float) -> float:
    """Return a float attribute as ONNX stores it, in 32 bits."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def are_attrs_equal(a: object, b: object) -> bool:
    """True if attributes are equal, with floats as ONNX stores them, in 32 bits."""
    if a is b or a == b:
        return True
    if type(a) is float and type(b) is float:
        return as_float32(a) == as_float32(b)
    if type(a) is tuple and type(b) is tuple and len(a) == len(b):
        return all(are_attrs_equal(x, y) for x, y in zip(a, b, strict=True))
    return False


def as_stored(value: Attr) -> Attr:
    """Return an attribute with its floats as ONNX stores them."""
    if isinstance(value, tuple):
        return tuple(map(as_stored, value))
    return as_float32(value) if isinstance(value, float) else value
