"""Integers that depend on symbolic sizes, and the guards under which decisions about them hold.

A program for all sizes is planned by the code that plans for fixed ones. Where that code reads an
extent that is symbolic it gets a `SymbolicInt`: an index expression, with the value that it has at
the example sizes (the hint). Arithmetic stays symbolic. A comparison that ranges do not decide is
decided by the hints, and the decision is recorded as a guard; what needs a plain integer (`range`,
an index of a list) records that the expression equals its hint. So the program is right for all
sizes for which the guards hold, whatever the code does in between (as in PyTorch's ShapeEnv:
Ansel et al., PyTorch 2, ASPLOS 2024, section 4.4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import gcd

from superopt.te.expr import index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Axis, Const, Dim, Expr, Size
from superopt.te.expr.size_ranges import SizeRanges

# The least sizes of levels: a class of sizes has tiles that fit in the least size of its level.
SIZE_LEVELS = (1, 2, 4, 8, 16, 64)
# The least extents of levels of masked tiles: these also serve smaller extents.
MASKED_LEVELS, MIN_LARGE_ROW = (1, 2, 5, 9, 65, 513, 4097), 64  # elements
MIN_MASKED_BLOCK = 32  # elements of a symbolic extent in a block: as many as a warp has threads
# Steps of a tile that serves all larger images: ResNet-18 planned for 224 x 224, whose last images
# are 7 pixels wide, takes 0.86 of the time of a program for 640 x 640 there.
MIN_WIDE_TILE = 7


class SymbolicSizeError(NotImplementedError):
    """Code does not support a symbolic size. A program for fixed sizes does not need to."""


@dataclass(slots=True)
class SizeEnvironment:
    """hints: example values of the symbolic sizes. guards: comparisons of index expressions, and
    whether they hold at the hints. ranges: what they say of each size. keeps_level: tiles add
    guards, so that they are not used for sizes of the next level (SIZE_LEVELS). masks_tiles: tiles
    are masked beyond symbolic extents, as on GPUs; else the last one overlaps the one before."""

    hints: Mapping[str, int]
    guards: dict[Expr, bool] = field(default_factory=dict)
    ranges: SizeRanges = field(default_factory=SizeRanges)
    keeps_level: bool = True
    masks_tiles: bool = False

    def decide(self, fn: str, a: Expr, b: Expr) -> bool:
        """Return whether `a fn b` holds at the hints; a guard if it need not hold elsewhere."""
        compared = Expr.compare(fn, a, b)
        if isinstance(compared, Const):
            return bool(compared.value)
        if compared not in self.guards:
            if (known := self._prove(fn, a, b)) is not None:
                return known
            x, y = (index.evaluate(e, dict(self.hints)) for e in (a, b))
            self.guards[compared] = {"lt": x < y, "le": x <= y, "eq": x == y}[fn]
            self._learn(fn, a, b, self.guards[compared])
        return self.guards[compared]

    def _prove(self, fn: str, a: Expr, b: Expr) -> bool | None:
        """Return whether `a fn b` holds where all guards do; None if neither is proved."""

        def is_at_least(x: Expr, y: Expr, more: int = 0) -> bool:
            return self.ranges.is_nonnegative(index.as_index(x - y - more))

        match fn:
            case "lt":
                return True if is_at_least(b, a, 1) else False if is_at_least(a, b) else None
            case "le":
                return True if is_at_least(b, a) else False if is_at_least(a, b, 1) else None
        if is_at_least(a, b, 1) or is_at_least(b, a, 1):
            return False
        return True if is_at_least(a, b) and is_at_least(b, a) else None

    def _learn(self, fn: str, a: Expr, b: Expr, holds: bool) -> None:
        """Narrow the ranges of sizes by a guard."""
        match fn, holds:
            case "lt", _:
                more = [b - a - 1 if holds else a - b]
            case "le", _:
                more = [b - a if holds else a - b - 1]
            case _:
                more = [b - a, a - b] if holds else []
        for e in more:
            self.ranges.add_nonnegative(index.as_index(e))

    def assume(self, guard: Expr, holds: bool) -> None:
        """Add a guard: a comparison that holds at the hints, or does not."""
        assert isinstance(guard, Apply)
        self.guards[guard] = holds
        a, b = guard.args
        self._learn(guard.fn, a, b, holds)

    def required_guards(self) -> dict[Expr, bool]:
        """Return the guards without those that follow from the others."""
        left = dict(self.guards)
        for guard, holds in self.guards.items():
            del left[guard]
            others = SizeEnvironment(self.hints)
            for other, verdict in left.items():
                assert isinstance(other, Apply)
                x, y = other.args
                others._learn(other.fn, x, y, verdict)
            assert isinstance(guard, Apply)
            if others._prove(guard.fn, *guard.args) != holds:
                left[guard] = holds
        return left


_environment: ContextVar[SizeEnvironment | None] = ContextVar("symbolic sizes", default=None)


@contextmanager
def symbolic_sizes(
    hints: Mapping[str, int], guards: Mapping[Expr, bool] | None = None, masks_tiles: bool = False
) -> Iterator[SizeEnvironment]:
    """Let extents be symbolic in this context; yield what collects the guards. guards: the first
    ones. masks_tiles: see SizeEnvironment."""
    made = SizeEnvironment(hints, masks_tiles=masks_tiles)
    for guard, holds in (guards or {}).items():
        made.assume(guard, holds)
    token = _environment.set(made)
    try:
        yield made
    finally:
        _environment.reset(token)


@contextmanager
def without_symbolic_sizes() -> Iterator[None]:
    """Let no extent be symbolic in this context: for what is remembered beyond one plan, and would
    keep decisions without their guards."""
    token = _environment.set(None)
    try:
        yield
    finally:
        _environment.reset(token)


def example_sizes() -> Mapping[str, int]:
    """Return the hints of this context."""
    environment = _environment.get()
    return {} if environment is None else environment.hints


class SymbolicInt:
    """An integer that depends on symbolic sizes."""

    __slots__ = ("environment", "expr")
    dtype = INDEX

    def __init__(self, expr: Expr, environment: SizeEnvironment) -> None:
        self.expr = expr
        self.environment = environment

    @property
    def hint(self) -> int:
        return index.evaluate(self.expr, dict(self.environment.hints))

    def least_at_level(self) -> int:
        """Return the value at the least sizes of the level of the example sizes (SIZE_LEVELS)."""
        hints = self.environment.hints
        least = {
            name: max((n for n in SIZE_LEVELS if n <= size), default=0)
            for name, size in hints.items()
        }
        return min(index.evaluate(self.expr, least), self.hint)

    def _apply(self, fn: str, a: object, b: object) -> object:
        if not all(isinstance(x, int | SymbolicInt) for x in (a, b)):
            return NotImplemented
        made = Expr.apply(fn, index.as_index(a), index.as_index(b))  # type: ignore[arg-type]
        return int(made.value) if isinstance(made, Const) else SymbolicInt(made, self.environment)

    def __add__(self, other: object) -> object:
        return self._apply("add", self, other)

    def __radd__(self, other: object) -> object:
        return self._apply("add", other, self)

    def __sub__(self, other: object) -> object:
        return self._apply("sub", self, other)

    def __rsub__(self, other: object) -> object:
        return self._apply("sub", other, self)

    def __mul__(self, other: object) -> object:
        return self._apply("mul", self, other)

    def __rmul__(self, other: object) -> object:
        return self._apply("mul", other, self)

    def __floordiv__(self, other: object) -> object:
        return self._apply("floordiv", self, other)

    def __rfloordiv__(self, other: object) -> object:
        return self._apply("floordiv", other, self)

    def __mod__(self, other: object) -> object:
        return self._apply("mod", self, other)

    def __rmod__(self, other: object) -> object:
        return self._apply("mod", other, self)

    def __neg__(self) -> object:
        return self._apply("mul", self, -1)

    def _decide(self, fn: str, a: object, b: object) -> bool:
        if not all(isinstance(x, int | SymbolicInt) for x in (a, b)):
            return NotImplemented  # type: ignore[no-any-return]
        return self.environment.decide(fn, index.as_index(a), index.as_index(b))  # type: ignore[arg-type]

    def __lt__(self, other: object) -> bool:
        return self._decide("lt", self, other)

    def __le__(self, other: object) -> bool:
        return self._decide("le", self, other)

    def __gt__(self, other: object) -> bool:
        return self._decide("lt", other, self)

    def __ge__(self, other: object) -> bool:
        return self._decide("le", other, self)

    def __eq__(self, other: object) -> bool:
        return self._decide("eq", self, other)

    def __hash__(self) -> int:
        raise SymbolicSizeError(f"{self} is symbolic: a set would compare it without a guard")

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        value = self.hint
        self.environment.decide("eq", self.expr, index.as_index(value))
        return value

    __int__ = __index__

    def __float__(self) -> float:
        return float(int(self))

    def bit_length(self) -> int:
        return int(self).bit_length()

    def __str__(self) -> str:
        return str(self.expr)

    __repr__ = __str__


def extent(d: Dim) -> int:
    """Return a size as an integer, symbolic in the context of `symbolic_sizes`. Raises
    AssertionError for a symbolic size elsewhere."""
    if isinstance(d, int):
        return d
    if isinstance(d, Const):
        return int(d.value)
    environment = _environment.get()
    assert environment is not None, f"{d} is not known"
    return SymbolicInt(d, environment)  # type: ignore[return-value]


@contextmanager
def level_guards(keeps_level: bool) -> Iterator[None]:
    """Set SizeEnvironment.keeps_level in this context."""
    environment = _environment.get() or SizeEnvironment({})
    before, environment.keeps_level = environment.keeps_level, keeps_level
    try:
        yield
    finally:
        environment.keeps_level = before


def keep_level(n: int) -> None:
    """Let the sizes in an integer be below the level after that of the example sizes, which tiles
    are chosen for. Where tiles are masked, let the integer be so, whatever its sizes are, but not
    the elements of large rows, of which there are many at any sizes."""
    held: object = n
    if not isinstance(held, SymbolicInt) or not held.environment.keeps_level:
        return
    levels: tuple[int, ...] = SIZE_LEVELS
    bounded: list[Expr] = [Size(name) for name in sorted(index.symbols(held.expr))]
    if held.environment.masks_tiles:
        step = gcd(*index.polynomial(held.expr).values())
        levels, bounded = MASKED_LEVELS, [held.expr] if step < MIN_LARGE_ROW else []
    for e in bounded:
        value = index.evaluate(e, dict(held.environment.hints))
        above = next((level for level in levels if level > value), None)
        if above is not None:
            held.environment.decide("lt", e, index.as_index(above))


def is_nonnegative(e: Expr) -> bool:
    """True if an index is proved to be at least 0, where the guards of this context hold."""
    environment = _environment.get()
    return (SizeRanges() if environment is None else environment.ranges).is_nonnegative(e)


def is_in_range(e: Expr, n: Dim) -> bool:
    """True if 0 <= e < n is proved, where the guards of this context hold."""
    bound = index.as_index(n)
    return index.is_in_range(e, bound) or (
        is_nonnegative(e) and is_nonnegative(index.as_index(bound - e - 1))
    )


def masks_tiles() -> bool:
    """Return SizeEnvironment.masks_tiles of this context."""
    return (_environment.get() or SizeEnvironment({})).masks_tiles


def is_symbolic(n: object) -> bool:
    """True if an integer depends on symbolic sizes."""
    return isinstance(n, SymbolicInt)


def least_at_level(n: int) -> int:
    """Return the value at the least sizes of the level of the example sizes (SIZE_LEVELS)."""
    held: object = n
    return held.least_at_level() if isinstance(held, SymbolicInt) else n


def fitting_factor(factor: int, n: int) -> int:
    """Return the factor of a tile along a symbolic extent, or the largest power of two that fits in
    it for all sizes of the level of the example sizes.

    The extent is at least the factor (a guard). So that tiles chosen for small sizes are not used
    for large ones, the sizes are below the next level (a guard). The width of an image after
    strides is small where the sizes are large: it keeps its factor, and is below twice a small one
    (a guard).
    """
    held: object = n
    if not isinstance(held, SymbolicInt):
        raise TypeError(f"{n} is not symbolic")
    keep_level(n)
    least = held.least_at_level()
    if factor > least and _is_after_strides(held.expr):
        if factor > hint(n):
            factor = floor_power_of_two(n)
        if factor < MIN_WIDE_TILE and held.environment.keeps_level:
            limit = max(2 * factor, hint(n) + 1)
            if n >= limit:  # a guard: it holds at the hints
                raise SymbolicSizeError(f"{n} is not below {limit}")
    elif factor > least:
        factor = floor_power_of_two(least)
    if factor > n:
        raise SymbolicSizeError(f"{n} is less than {factor}")
    return factor


def _is_after_strides(e: Expr) -> bool:
    """True for the extent of an image after strides, not for a number of tiles, -(-n // tile)."""
    return any(
        c > 0 and isinstance(a, Apply) and a.fn == "floordiv"
        for atoms, c in index.polynomial(e).items()
        for a in atoms
    )


def extend_to(n: int, least: int) -> int:
    """Return the maximum of an integer and `least`, of a symbolic one without a guard."""
    held: object = n
    if not isinstance(held, SymbolicInt):
        return max(n, least)
    made = index.apply("max", (held.expr, index.as_index(least)), INDEX)
    return SymbolicInt(made, held.environment)  # type: ignore[return-value]


def floor_power_of_two(n: int) -> int:
    """Return the largest power of two that is at most `n` at the example sizes, and at least 1."""
    return 1 << (max(hint(n), 1).bit_length() - 1)


def ceil_power_of_two(n: int) -> int:
    """Return the least power of two that is at least `n`; where `n` is symbolic, that of the
    example sizes and at least MIN_MASKED_BLOCK, which `n` does not exceed (a guard)."""
    least = MIN_MASKED_BLOCK if is_symbolic(n) else 1
    block = max(1 << max(hint(n) - 1, 0).bit_length(), least)
    if n > block:  # a guard: it holds at the hints
        raise SymbolicSizeError(f"{n} is above {block}")
    return block


def hint(n: int) -> int:
    """Return the value of an integer at the example sizes: for estimates, on which no result
    depends."""
    held: object = n
    return held.hint if isinstance(held, SymbolicInt) else n


Axis.symbolic_extent = staticmethod(extent)
