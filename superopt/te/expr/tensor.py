"""The notation: an element of a tensor as an expression over axes, sizes and loads.

matmul = compute((n, m), lambda i, j: reduce_sum(k, lambda l: a[i, l] * b[l, j]))

Expressions are immutable and compare by structure. Index arithmetic (dtype INDEX) is kept in the
polynomial normal form of `index.py`, so that equal sizes are equal expressions. Element arithmetic
is kept as written, because floats are not a ring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import BOOL, INDEX, DType
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load, Number, Reduce
from superopt.te.expr.node import Dim as Dim

# What `const` takes. Expressions are tested first: an instance check of Fraction is slow.
NUMBERS = (int, float, Fraction)

_DEPTH: ContextVar[int] = ContextVar("depth of nested reductions", default=0)


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape; dtype `None` is not a tensor, shape `None` has unknown rank."""

    dtype: DType | None
    shape: tuple[Dim, ...] | None

    def __str__(self) -> str:
        dims = "..." if self.shape is None else ", ".join(map(str, self.shape))
        return f"{self.dtype or 'any'}[{dims}]"


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor: an input if `body` is None, else its element at `axes` is `body`."""

    name: str
    dtype: DType
    shape: tuple[Dim, ...]
    axes: tuple[Axis, ...] = ()
    body: Expr | None = None
    _type: TensorType | None = field(default=None, init=False, repr=False)  # cached

    def __post_init__(self) -> None:
        if not all(isinstance(n, int | Expr) for n in self.shape):  # a SymbolicInt
            object.__setattr__(self, "shape", tuple(map(te_index.dim, self.shape)))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents as integers; see symbolic_int.py where they are symbolic."""
        return tuple(n if isinstance(n, int) else Axis.symbolic_extent(n) for n in self.shape)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def type(self) -> TensorType:
        found = self._type
        if found is None:
            found = TensorType(self.dtype, self.shape)
            object.__setattr__(self, "_type", found)
        return found

    def __getitem__(self, index: int | Expr | tuple[int | Expr, ...]) -> Load:
        where = index if isinstance(index, tuple) else (index,)
        if len(where) != self.rank:
            raise ValueError(f"{self.name}{list(self.shape)} indexed with {len(where)} indices")
        return Load(self, tuple(te_index.as_index(i) for i in where), self.dtype)


def placeholder(name: str, type: TensorType) -> Tensor:
    """Return an input tensor of `type`, which must be known."""
    if type.dtype is None or type.shape is None:
        raise ValueError(f"{name} has no known type: {type}")
    return Tensor(name, type.dtype, type.shape)


def compute(
    shape: Sequence[Dim], body: Callable[..., Expr], *, name: str = "t", dtype: DType | None = None
) -> Tensor:
    """Return the tensor of `shape` whose element at (i0, i1, ...) is `body(i0, i1, ...)`."""
    axes = tuple([_axis(f"i{n}", extent) for n, extent in enumerate(shape)])
    token = _DEPTH.set(0)
    try:
        element = body(*axes)
    finally:
        _DEPTH.reset(token)
    if element.dtype == INDEX:
        element = cast(element, dtype) if dtype else element
    if dtype is not None and element.dtype != dtype:
        raise TypeError(f"element is {element.dtype}, the tensor {dtype}")
    return Tensor(name, element.dtype, tuple(shape), axes, element)


@lru_cache(maxsize=1 << 12, typed=True)
def _interned_axis(name: str, extent: Dim) -> Axis:
    return Axis(name, extent)


def _axis(name: str, extent: Dim) -> Axis:
    """Return the axis, one object for each extent that is known: equal axes compare at once."""
    return _interned_axis(name, extent) if isinstance(extent, (int, Expr)) else Axis(name, extent)


def reduction(fn: str, extents: Dim | Sequence[Dim], body: Callable[..., Expr]) -> Expr:
    """Return `fn` (sum, prod, max, min, any, all) of `body(k0, ...)` over all indices below
    `extents`."""
    sizes = [extents] if isinstance(extents, (int, Expr)) else list(extents)
    depth = _DEPTH.get()
    axes = tuple([_axis(f"k{depth + n}", e) for n, e in enumerate(sizes)])
    if not axes:
        return body()
    token = _DEPTH.set(depth + len(axes))
    try:
        element = body(*axes)
    finally:
        _DEPTH.reset(token)
    return Reduce(fn, axes, element, element.dtype)


def reduce_sum(extents: Dim | Sequence[Dim], body: Callable[..., Expr]) -> Expr:
    return reduction("sum", extents, body)


def reduce_max(extents: Dim | Sequence[Dim], body: Callable[..., Expr]) -> Expr:
    return reduction("max", extents, body)


def reduce_min(extents: Dim | Sequence[Dim], body: Callable[..., Expr]) -> Expr:
    return reduction("min", extents, body)


def const(value: Number | bool, dtype: DType) -> Const:
    """Return `value` as an exact constant of `dtype`; a float becomes the fraction that it is."""
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        exact = Fraction(value)
        value = int(exact) if exact.denominator == 1 else exact
    return Const(int(value) if isinstance(value, bool) else value, dtype)


def _with_dtype(a: Expr | Number, dtype: DType) -> Expr:
    """Return an expression as it is, a number as a constant of `dtype`."""
    return a if isinstance(a, Expr) or not isinstance(a, NUMBERS) else const(a, dtype)


def apply(fn: str, *args: Expr | Number, dtype: DType | None = None) -> Expr:
    """Return `fn` of `args`, which share one dtype (numbers adopt it). The result has that dtype,
    or `dtype`.

    Raises TypeError if the dtypes of the operands differ.
    """
    own = [a for a in args if isinstance(a, Expr) or not isinstance(a, NUMBERS)]
    if not own:
        raise TypeError(f"{fn} of numbers only: {args}")
    kind = own[0].dtype
    for a in own:
        if a.dtype is not kind:
            raise TypeError(f"{fn} mixes {' and '.join(str(b.dtype) for b in own)}")
    terms = tuple([_with_dtype(a, kind) for a in args])
    out = dtype or kind
    if kind is INDEX:
        return te_index.apply(fn, tuple(map(te_index.as_index, terms)), out)
    return Apply(fn, terms, out)


def compare(fn: str, a: Expr | Number, b: Expr | Number) -> Expr:
    """Return the comparison eq, ne, lt or le as a bool."""
    return apply(fn, a, b, dtype=BOOL)


Expr.apply, Expr.compare = staticmethod(apply), staticmethod(compare)


def select(guard: Expr | bool, yes: Expr | Number, no: Expr | Number) -> Expr:
    """Return `yes` where `guard` holds, else `no`; a load in the branch not taken may be out of
    range."""
    kinds = [e.dtype for e in (yes, no) if isinstance(e, Expr) or not isinstance(e, NUMBERS)]
    if not kinds or any(k != kinds[0] for k in kinds):
        raise TypeError(f"select between {yes} and {no}")
    a, b = (_with_dtype(e, kinds[0]) for e in (yes, no))
    if isinstance(guard, bool):
        return a if guard else b
    if isinstance(guard, Const):
        return a if guard.value else b
    return a if a == b else Apply("select", (guard, a, b), a.dtype)


def conjunction(*guards: Expr | bool) -> Expr | bool:
    """Return the conjunction of `guards`."""
    rest = [g for g in guards if g is not True and not (isinstance(g, Const) and g.value)]
    if any(g is False or (isinstance(g, Const) and not g.value) for g in rest):
        return False
    out: Expr | bool = True
    for g in rest:
        assert isinstance(g, Expr)
        out = g if out is True else Apply("and", (out, g), BOOL)  # type: ignore[arg-type]
    return out


def in_range(i: Expr | int, extent: Dim) -> Expr | bool:
    """Return 0 <= i < extent."""
    e = te_index.as_index(i)
    return conjunction(
        compare("le", const(0, INDEX), e), compare("lt", e, te_index.as_index(extent))
    )


def cast(e: Expr, dtype: DType | None) -> Expr:
    """Return `e` converted to `dtype` with the semantics of ONNX's Cast; an index becomes a
    number."""
    if dtype is None or e.dtype == dtype:
        return e
    if isinstance(e, Const) and e.dtype == INDEX and dtype.kind in "if":
        return Const(e.value, dtype)
    return Apply("cast", (e,), dtype)


def gather(e: Expr, bound: Dim) -> Index:
    """Return an integer element as an index below `bound`; a negative element counts from the
    end."""
    return Index(e, te_index.as_index(bound), INDEX)


def product(dims: Iterable[Dim]) -> Dim:
    """Return the product of `dims`."""
    out: Dim = 1
    for d in dims:
        out = te_index.dim(out * d)
    return out


def ravel(index: Sequence[Dim | Expr], shape: Sequence[Dim]) -> Expr:
    """Return the row-major position of `index` in `shape`."""
    out: Expr = const(0, INDEX)
    for i, n in zip(index, shape, strict=True):
        out = te_index.as_index(out * n + i)
    return out


def unravel(position: Expr, shape: Sequence[Dim]) -> tuple[Expr, ...]:
    """Return the index in `shape` whose row-major position is `position`."""
    out: list[Expr] = []
    for axis, n in enumerate(shape):
        stride = product(shape[axis + 1 :])
        digit = te_index.as_index(position // stride)
        out.append(te_index.as_index(digit % n) if axis else digit)
    return tuple(out)
