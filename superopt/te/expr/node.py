"""The seven kinds of expression, and Python's operators on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

from superopt.te.expr.dtype import BOOL, INDEX, DType

if TYPE_CHECKING:
    from superopt.te.expr.tensor import Tensor

Number = int | Fraction | float  # a float only for inf and nan, which no fraction represents


class Expr:
    """An expression: one of Const, Size, Axis, Apply, Load, Reduce, Index.

    `apply` and `compare` are functions of expr/tensor.py, which sets them: the operators below need
    them, and they need the classes below.
    """

    __slots__ = ()
    dtype: DType
    apply: ClassVar[Callable[..., Expr]]
    compare: ClassVar[Callable[..., Expr]]

    def __repr__(self) -> str:
        return str(self)

    def __add__(self, other: Expr | Number) -> Expr:
        return Expr.apply("add", self, other)

    def __radd__(self, other: Number) -> Expr:
        return Expr.apply("add", other, self)

    def __sub__(self, other: Expr | Number) -> Expr:
        return Expr.apply("sub", self, other)

    def __rsub__(self, other: Number) -> Expr:
        return Expr.apply("sub", other, self)

    def __mul__(self, other: Expr | Number) -> Expr:
        return Expr.apply("mul", self, other)

    def __rmul__(self, other: Number) -> Expr:
        return Expr.apply("mul", other, self)

    def __truediv__(self, other: Expr | Number) -> Expr:
        return Expr.apply("div", self, other)

    def __rtruediv__(self, other: Number) -> Expr:
        return Expr.apply("div", other, self)

    def __floordiv__(self, other: Expr | int) -> Expr:
        return Expr.apply("floordiv", self, other)

    def __rfloordiv__(self, other: int) -> Expr:
        return Expr.apply("floordiv", other, self)

    def __mod__(self, other: Expr | Number) -> Expr:
        return Expr.apply("mod", self, other)

    def __rmod__(self, other: Number) -> Expr:
        return Expr.apply("mod", other, self)

    def __neg__(self) -> Expr:
        return Expr.apply("neg", self)

    def __lt__(self, other: Expr | Number) -> Expr:
        return Expr.compare("lt", self, other)

    def __le__(self, other: Expr | Number) -> Expr:
        return Expr.compare("le", self, other)

    def __gt__(self, other: Expr | Number) -> Expr:
        return Expr.compare("lt", other, self)

    def __ge__(self, other: Expr | Number) -> Expr:
        return Expr.compare("le", other, self)


@dataclass(frozen=True, slots=True, repr=False)
class Const(Expr):
    """An exact number: int, Fraction, or the floats inf, -inf, nan."""

    value: Number
    dtype: DType

    def __bool__(self) -> bool:
        if self.dtype == BOOL:
            raise TypeError(f"the truth of {self} is that of its value")
        return True

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True, repr=False)
class Size(Expr):
    """A symbolic size, an integer that is at least 1 unless stated otherwise."""

    name: str
    dtype: DType = INDEX

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, repr=False)
class Axis(Expr):
    """An index variable: 0 <= axis < extent."""

    name: str
    extent: Dim
    dtype: DType = INDEX
    _hash: int = field(default=0, init=False, compare=False)
    symbolic_extent: ClassVar[Callable[[Expr], int]]

    def __post_init__(self) -> None:
        symbolic = getattr(self.extent, "expr", None)  # of a SymbolicInt
        if symbolic is not None:
            object.__setattr__(self, "extent", symbolic)
        # with the extent: axes of all tensors have the same few names
        object.__setattr__(self, "_hash", hash((self.name, self.extent)))

    @property
    def size(self) -> int:
        """Return the extent as an integer; see symbolic_int.py where it is symbolic."""
        if isinstance(self.extent, int):
            return self.extent
        return Axis.symbolic_extent(self.extent)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Axis], tuple[object, ...]]:
        return Axis, (self.name, self.extent, self.dtype)  # a hash is valid in one process only

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, repr=False)
class Apply(Expr):
    """A scalar function (a row of `functions.py`) of expressions, with the dtype of the result."""

    fn: str
    args: tuple[Expr, ...]
    dtype: DType
    _hash: int = field(default=0, init=False, compare=False)  # cached: expression trees are deep

    def __hash__(self) -> int:
        if not self._hash:
            object.__setattr__(self, "_hash", hash((self.fn, self.args)) or 1)
        return self._hash

    def __bool__(self) -> bool:
        if self.dtype == BOOL and self.args[0].dtype == INDEX and self.fn in ("lt", "le"):
            raise TypeError(f"{self} is not decided")  # a size may be symbolic
        return True

    def __reduce__(self) -> tuple[type[Apply], tuple[object, ...]]:
        return Apply, (self.fn, self.args, self.dtype)  # a hash is valid in one process only

    def __str__(self) -> str:
        infix = _INFIX.get(self.fn)
        if infix and len(self.args) >= 2:
            return "(" + f" {infix} ".join(map(str, self.args)) + ")"
        kind = f", {self.dtype}" if self.fn == "cast" else ""
        return f"{self.fn}({', '.join(map(str, self.args))}{kind})"


@dataclass(frozen=True, slots=True, repr=False)
class Load(Expr):
    """An element of a tensor."""

    tensor: Tensor
    index: tuple[Expr, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"{self.tensor.name}[{', '.join(map(str, self.index))}]"


@dataclass(frozen=True, slots=True, repr=False)
class Reduce(Expr):
    """`fn` (sum, prod, max, min, any, all) of `body` over `axes`."""

    fn: str
    axes: tuple[Axis, ...]
    body: Expr
    dtype: DType

    def __str__(self) -> str:
        over = ", ".join(f"{a.name} < {a.extent}" for a in self.axes)
        return f"{self.fn}({self.body} for {over})"


@dataclass(frozen=True, slots=True, repr=False)
class Index(Expr):
    """An integer element as an index in [-bound, bound); a negative element counts from the end."""

    element: Expr
    bound: Expr
    dtype: DType = INDEX

    def __str__(self) -> str:
        return f"index({self.element} < {self.bound})"


Dim = int | Expr
_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floordiv": "//",
    "mod": "%",
    "lt": "<",
    "le": "<=",
    "eq": "==",
    "ne": "!=",
    "and": "and",
    "or": "or",
}
