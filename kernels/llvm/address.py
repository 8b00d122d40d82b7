"""Element addresses in a buffer, split into the part that depends on loops and the part that
depends on the position in a tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, prod

from superopt.kernels.llvm.builder import Value
from superopt.te.analysis import affine
from superopt.te.analysis.walk import index_axes, loads
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Size
from superopt.te.expr.tensor import Tensor

LoopTerms = tuple[tuple[tuple[Expr, ...], int], ...]


@dataclass(frozen=True, slots=True)
class TilePosition:
    """A position in a tile: the value of each tile axis (that of `lane_axis` is lane 0's), and the
    number of lanes. `guard` is the mask of the lanes that may be read."""

    axis_values: Mapping[Axis, int] = field(default_factory=dict)
    lane_axis: Axis | None = None
    lanes: int = 0
    guard: Value | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """The terms that depend on loops, the constant offset, and the stride from one lane to the
    next, in elements."""

    loop_terms: LoopTerms
    constant: int
    lane_stride: int


def address(buffer: Tensor, index: Sequence[Expr], p: TilePosition) -> Address | None:
    """Return an element's address; None if it is not a sum of tile axes and loop-dependent
    terms."""
    place: dict[tuple[Expr, ...], int] = {}
    stride = 1
    for i, n in zip(reversed(index), reversed(buffer.shape), strict=True):
        for atoms, c in te_index.polynomial(i).items():
            place[atoms] = place.get(atoms, 0) + c * stride
        if not isinstance(n, int):
            place = te_index.polynomial(flat_index(buffer, index))
            break
        stride *= n
    _merge_div_mod_terms(place)
    moving: list[tuple[tuple[Expr, ...], int]] = []
    constant, step = 0, 0
    for atoms, c in place.items():
        match atoms:
            case ():
                constant += c
            case (Axis() as a,) if a in p.axis_values:
                constant += c * p.axis_values[a]
                step = c if a == p.lane_axis and p.lanes else step
            case _ if c:
                within = set(p.axis_values) & set().union(*map(index_axes, atoms))
                if p.lane_axis in within or (within and any(True for a in atoms for _ in loads(a))):
                    return None
                if within:  # for example min(.., ..): known once the tile is unrolled
                    known: dict[Expr, Expr] = {
                        a: te_index.as_index(p.axis_values[a]) for a in within
                    }
                    told = [te_index.substitute(i, known) for i in index]
                    return None if told == list(index) else address(buffer, told, p)
                moving.append((atoms, c))
    return Address(tuple(moving), constant, step)


def fold_unrolled_terms(
    loop_terms: LoopTerms, constant: int, unrolled: Mapping[Axis, int]
) -> tuple[LoopTerms, int]:
    """Return the terms that vary, and the constant with those of unrolled loops, whose steps then
    share a pointer. unrolled: the values of these loops' axes."""
    rest = []
    for atoms, c in loop_terms:
        match atoms:
            case (Axis() as a,) if a in unrolled:
                constant += c * unrolled[a]
            case _:
                rest.append((atoms, c))
    return tuple(rest), constant


def flat_index(buffer: Tensor, index: Sequence[Expr]) -> Expr:
    """Return the row-major offset of an element."""
    flat = te_index.as_index(0)
    for i, n in zip(index, buffer.shape, strict=True):
        flat = te_index.as_index(flat * n + i)
    return flat


def merge_div_mod(flat: Expr) -> Expr | None:
    """Return `flat` with x // n * n + x % n replaced by x; None if there is no such pair."""
    place = dict(te_index.polynomial(flat))
    return te_index.from_polynomial(place) if _merge_div_mod_terms(place) else None


def _merge_div_mod_terms(place: dict[tuple[Expr, ...], int]) -> bool:
    """Replace x // n * n + x % n by x in place. True if there was any."""
    found = False
    while True:
        for rest, each in place.items():
            match rest:
                case (Apply("mod", (x, Const(n) as by)),):
                    atoms = (
                        te_index.floordiv(x, by),
                    )  # the quotient of (y // m) % n is y // (m n)
                    if each and place.get(atoms, 0) == each * int(n):
                        break
        else:
            return found
        found = True
        del place[rest], place[atoms]
        for more, k in te_index.polynomial(x).items():
            place[more] = place.get(more, 0) + each * k


MAX_SHUFFLED_VECTORS = (
    4  # vectors that a shuffle may read from, for instance in channels-last images
)


def shuffle_pattern(
    flat: Expr, buffer: Tensor, p: TilePosition
) -> tuple[Expr, tuple[int, ...], int] | None:
    """Return a base offset, each lane's distance from it, and the number of elements to read from
    it on; None if these are unknown or exceed MAX_SHUFFLED_VECTORS vectors.

    If loops advance in steps of several elements, the base is a multiple of that step, so that
    other reads of the same elements reuse the same vector.
    """
    assert p.lane_axis is not None
    if next(loads(flat), None) is not None:
        return None  # the index depends on data
    env: dict[Expr, Expr] = {a: te_index.as_index(k) for a, k in p.axis_values.items()}
    some = []
    for k in range(p.lanes):
        at = te_index.substitute(
            flat, {**env, p.lane_axis: te_index.as_index(p.axis_values[p.lane_axis] + k)}
        )
        if index_axes(at) & env.keys():
            return None  # the index is computed from data
        some.append(dict(te_index.polynomial(at)))
    fixed = [at.pop((), 0) for at in some]
    if any(at != some[0] for at in some):
        return None
    known = all(isinstance(n, int) for n in buffer.shape)
    size = prod(buffer.sizes) if known else 1
    part = gcd(size, *some[0].values())  # so that no read passes the end of the buffer
    low = min(fixed)
    if low - low % part + MAX_SHUFFLED_VECTORS * p.lanes <= max(fixed):
        part = 1
    if low - low % part + MAX_SHUFFLED_VECTORS * p.lanes <= max(fixed):
        return None
    low -= low % part
    order = tuple(n - low for n in fixed)
    count = min(-(-(max(order) + 1) // part) * part, MAX_SHUFFLED_VECTORS * p.lanes)
    return te_index.from_polynomial({**some[0], (): low}), order, count


def contiguous_runs(flat: Expr, p: TilePosition) -> list[tuple[int, Expr, int]]:
    """Return the lanes as runs of contiguous elements: (first lane, its offset, length)."""
    assert p.lane_axis is not None
    out: list[tuple[int, Expr, int]] = []
    last: tuple[int, dict[tuple[Expr, ...], int]] | None = None
    env: dict[Expr, Expr] = {a: te_index.as_index(k) for a, k in p.axis_values.items()}
    for k in range(p.lanes):
        place = affine.substitute(
            flat, {**env, p.lane_axis: te_index.as_index(p.axis_values[p.lane_axis] + k)}
        )
        terms = dict(te_index.polynomial(place))
        now = terms.pop((), 0), terms
        if last is not None and now == (last[0] + 1, last[1]):
            first, begin, count = out[-1]
            out[-1] = first, begin, count + 1
        else:
            out.append((k, place, 1))
        last = now
    return out


def is_data_dependent(e: Expr) -> bool:
    """True if an index contains an element of a tensor, so that lanes read arbitrary addresses."""
    return any(isinstance(a, Index) for atoms in te_index.polynomial(e) for a in atoms)


# Terms of addresses in kernels of symbolic sizes. They are grouped by what varies in them: their
# factor depends on sizes only and is computed once, before all loops. Outer loops' terms come
# first, so that each loop adds, where it begins, what it changes.


def depends_on_sizes(e: Expr) -> bool:
    """True if an index is the same in the whole kernel."""
    match e:
        case Apply(_, args):
            return e.dtype == INDEX and all(map(depends_on_sizes, args))
    return isinstance(e, Size | Const)


@dataclass(frozen=True, slots=True)
class Term:
    """A size times a product of atoms. loop: the innermost loop that it depends on; None if it must
    be computed where it is used."""

    factor: Expr
    atoms: tuple[Expr, ...]
    loop: Axis | None

    @property
    def axes(self) -> list[Axis]:
        return sorted(set().union(*map(index_axes, self.atoms)), key=str)


def terms_by_depth(loop_terms: LoopTerms, loops: Sequence[Axis]) -> list[Term]:
    """Return the terms of an address, those of outer loops first. loops: outermost first."""
    factors: dict[tuple[Expr, ...], Expr] = {}
    for atoms, c in loop_terms:
        factor, varying = te_index.as_index(c), []
        for a in atoms:
            if depends_on_sizes(a):
                factor = te_index.as_index(factor * a)
            else:
                varying.append(a)
        key = tuple(varying)
        factors[key] = te_index.as_index(factors.get(key, te_index.as_index(0)) + factor)
    found = [Term(factor, atoms, _innermost(atoms, loops)) for atoms, factor in factors.items()]
    place = {a: n for n, a in enumerate(loops)}
    return sorted(found, key=lambda x: len(place) if x.loop is None else place[x.loop])


def _innermost(atoms: Sequence[Expr], loops: Sequence[Axis]) -> Axis | None:
    if any(True for a in atoms for _ in loads(a)):
        return None
    own = {x for a in atoms for x in index_axes(a)}
    return next((a for a in reversed(loops) if a in own), loops[0] if loops else None)


def is_always_in_range(e: Expr) -> bool:
    """True if all loads of `e` are in range, whatever its guards say."""
    for x in loads(e):
        for i, n in zip(x.index, x.tensor.shape, strict=True):
            where = affine.interval(i)
            if where is None or not isinstance(n, int):
                if not te_index.is_in_range(i, te_index.as_index(n)):
                    return False
            elif where[0] < 0 or where[1] >= n:
                return False
    return True
