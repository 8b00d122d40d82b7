"""Data movement: Concat, Split, Transpose, Reshape and similar operators."""

from __future__ import annotations

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.shared.broadcasting import broadcast, canonical_axis, normalize_axis, rank_of
from superopt.ops.shared.sizes import floor_div, integer_tuple, is_at_most, size_tuple
from superopt.te.analysis.size_oracle import are_shapes_equal, are_sizes_equal, has_size_oracle
from superopt.te.expr import index
from superopt.te.expr.dtype import STRING
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import (
    Dim,
    Tensor,
    TensorType,
    compute,
    const,
    product,
    ravel,
    select,
    unravel,
)


def format_shape(shape: tuple[Dim, ...]) -> str:
    """Format a shape for a message."""
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def known_type(types: Types, operand: int = 0) -> tuple[TensorType, tuple[Dim, ...]]:
    """Return the type and shape of an operand. Raises InferError if they are unknown."""
    rank_of(types, operand)
    t = types[operand]
    assert t is not None
    assert t.shape is not None
    return t, t.shape


def zero_of(x: Tensor, context: str) -> Expr:
    """Return the zero (or False) of the element type of `x`."""
    if x.dtype == STRING:
        raise InferError(f"{context} of {x.type}: strings have no zero")
    return const(0, x.dtype)


def _concat_element(parts: list[Tensor], starts: list[Dim], axis: int, i: tuple[Expr, ...]) -> Expr:
    """Return the element of the concatenation, by bisection (1,000 parts nest 10 deep)."""
    if len(parts) == 1:
        return parts[0][(*i[:axis], i[axis] - starts[0], *i[axis + 1 :])]
    half = len(parts) // 2
    low = _concat_element(parts[:half], starts[:half], axis, i)
    high = _concat_element(parts[half:], starts[half:], axis, i)
    return select(i[axis] < starts[half], low, high)


@op("Concat", example="f32[2,3] f32[2,5] axis=1", laws="data", since=4, canonical=canonical_axis())
def concat(*xs: Tensor, axis: int) -> Tensor:
    first = xs[0].shape
    starts: list[Dim] = []
    total: Dim = 0
    for x in xs:
        rest = (*x.shape[:axis], *x.shape[axis + 1 :])
        if x.rank != len(first) or not are_shapes_equal(rest, (*first[:axis], *first[axis + 1 :])):
            raise InferError(
                f"Concat on axis {axis} of {format_shape(first)} and {format_shape(x.shape)}"
            )
        if x.dtype != xs[0].dtype:
            raise InferError(f"Concat of {xs[0].type} and {x.type}: dtypes differ")
        starts.append(total)
        total = index.dim(total + x.shape[axis])
    shape = (*first[:axis], total, *first[axis + 1 :])
    return compute(shape, lambda *i: _concat_element(list(xs), starts, axis, i))


def _split_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    t, shape = known_type(types)
    axis = normalize_axis(attrs["axis"], len(shape))
    split, parts = attrs["split"], attrs["num_outputs"]
    extent = shape[axis]
    if split is not None:
        return {"axis": axis, "split": size_tuple(split, "split"), "num_outputs": None}
    if not isinstance(parts, int) or parts < 1:
        raise InferError(f"Split of {t} needs the sizes or the number of its parts")
    if isinstance(extent, int):
        each = -(-extent // parts)
        size: Dim = each
        last: Dim = extent - each * (parts - 1)
        if not is_at_most(0, last):
            raise InferError(
                f"Split of {t} on axis {axis} into {parts} parts: {extent} are too few"
            )
    else:
        size = last = floor_div(extent, parts)
        is_multiple = are_sizes_equal(index.dim(size * parts), extent)
        if has_size_oracle():
            raise InferError(f"Split of {t} on axis {axis}: a symbolic size in {parts} parts")
        if not is_multiple:
            raise InferError(f"Split of {t} on axis {axis}: is {extent} a multiple of {parts}?")
    return {"axis": axis, "split": (*(size,) * (parts - 1), last), "num_outputs": None}


@op("Split", example="f32[2,5] axis=1 split=(2,3)", laws="data", since=2, canonical=_split_attrs)
def split(
    x: Tensor,
    *,
    axis: int = 0,
    split: tuple[Dim, ...] | None = None,
    num_outputs: int | None = None,
) -> tuple[Tensor, ...]:
    """Parts of `split` elements of `axis`, by default `num_outputs` of them, the last smaller."""
    assert split is not None
    total: Dim = 0
    out: list[Tensor] = []
    for size in split:
        if isinstance(size, int) and size < 0:
            raise InferError(
                f"Split of {x.type} on axis {axis} into {format_shape(split)}: {size} < 0"
            )
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        start = total

        def part(*i: Expr, start: Dim = start) -> Expr:
            return x[(*i[:axis], i[axis] + start, *i[axis + 1 :])]

        out.append(compute(shape, part))
        total = index.dim(total + size)
    if not are_sizes_equal(total, x.shape[axis]):
        raise InferError(
            f"Split of {x.type} on axis {axis} into {format_shape(split)}: "
            f"{total} != {x.shape[axis]}"
        )
    return tuple(out)


def _transpose_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    rank = rank_of(types)
    perm = attrs["perm"]
    if perm is None:
        return {"perm": tuple(reversed(range(rank)))}
    if not isinstance(perm, tuple):
        what = "is one number" if isinstance(perm, int) else "is not a list"
        raise InferError(f"perm {perm} {what}: it names all {rank} axes")
    axes = tuple(normalize_axis(p, rank, "perm") for p in perm)
    if sorted(axes) != list(range(rank)):
        raise InferError(f"perm {perm} is not a permutation of rank {rank}")
    return {"perm": axes}


@op("Transpose", example="f32[2,3,4] perm=(1,2,0)", laws="data", canonical=_transpose_attrs)
def transpose(x: Tensor, *, perm: tuple[int, ...] | None = None) -> Tensor:
    assert perm is not None
    return compute(
        tuple(x.shape[p] for p in perm),
        lambda *i: x[tuple(i[perm.index(d)] for d in range(x.rank))],
    )


def reshape_row_major(x: Tensor, shape: tuple[Dim, ...]) -> Tensor:
    """Reshape in row-major order."""
    return compute(shape, lambda *i: x[unravel(ravel(i, shape), x.shape)])


def _reshape_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """Canonical attributes: 0 and -1 are replaced by the sizes they denote; `allowzero`: whether a
    size is 0."""
    t, source = known_type(types)
    shape = size_tuple(attrs["shape"], "shape")
    dims: list[Dim] = []
    for n, d in enumerate(shape):
        if d == 0 and not attrs["allowzero"]:
            if n >= len(source):
                raise InferError(f"Reshape of {t} to {format_shape(shape)}: no axis {n} to keep")
            dims.append(source[n])
        elif isinstance(d, int) and d < -1:
            raise InferError(f"Reshape of {t} to {format_shape(shape)}: {d} is not a size")
        else:
            dims.append(d)
    if dims.count(-1) > 1:
        raise InferError(f"Reshape of {t} to {format_shape(shape)}: more than one -1")
    if -1 in dims:
        rest = product(d for d in dims if d != -1)
        if rest == 0:
            raise InferError(f"Reshape of {t} to {format_shape(shape)}: -1 together with a 0")
        dims[dims.index(-1)] = floor_div(product(source), rest)
    return {"shape": tuple(dims), "allowzero": int(0 in dims)}


def _has_same_count(source: tuple[Dim, ...], target: tuple[Dim, ...]) -> bool:
    """True if both shapes have the same number of elements, or would if the size given as -1
    divides."""
    total = product(source)
    if product(target) == total:
        return True
    for n, d in enumerate(target):
        if isinstance(d, Expr):
            rest = product(target[:n] + target[n + 1 :])
            if rest != 0 and d == floor_div(total, rest):
                return True
    return are_sizes_equal(product(target), total)


@op("Reshape", example="f32[2,6] shape=(3,4)", laws="data", canonical=_reshape_attrs)
def reshape(x: Tensor, *, shape: tuple[Dim, ...], allowzero: int = 0) -> Tensor:
    """The same elements in row-major order; in `shape`, 0 keeps a size and -1 is what remains."""
    if not _has_same_count(x.shape, shape):
        raise InferError(
            f"Reshape of {format_shape(x.shape)} to {format_shape(shape)}: "
            f"{product(x.shape)} elements !="
            f" {product(shape)}"
        )
    return reshape_row_major(x, shape)


def _squeeze_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    t, shape = known_type(types)
    if attrs["axes"] is None:
        if any(isinstance(d, Expr) for d in shape):
            raise InferError(f"Squeeze of {t} without axes: is a symbolic size 1?")
        return {"axes": tuple(n for n, d in enumerate(shape) if d == 1)}
    axes = sorted(
        normalize_axis(a, len(shape), "axes") for a in integer_tuple(attrs["axes"], "axes")
    )
    return {"axes": tuple(dict.fromkeys(axes))}


@op("Squeeze", example="f32[2,1,3] axes=(1,)", laws="data", canonical=_squeeze_attrs)
def squeeze(x: Tensor, *, axes: tuple[int, ...] | None = None) -> Tensor:
    """Without the `axes`, which are 1; by default without all that are."""
    assert axes is not None
    for a in axes:
        if not are_sizes_equal(x.shape[a], 1):
            raise InferError(f"Squeeze of {x.type} on axis {a}: {x.shape[a]} != 1")
    shape = tuple(d for n, d in enumerate(x.shape) if n not in axes)

    def element(*i: Expr) -> Expr:
        rest = iter(i)
        return x[tuple(0 if n in axes else next(rest) for n in range(x.rank))]

    return compute(shape, element)


def _unsqueeze_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    given = integer_tuple(attrs["axes"], "axes")
    rank = rank_of(types) + len(given)
    axes = sorted(normalize_axis(a, rank, "axes") for a in given)
    if len(set(axes)) != len(axes):
        raise InferError(f"Unsqueeze to rank {rank}: axes {given} name an axis twice")
    return {"axes": tuple(axes)}


@op("Unsqueeze", example="f32[2,3] axes=(0,2)", laws="data", canonical=_unsqueeze_attrs)
def unsqueeze(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    """With an axis of size 1 at each of `axes`, which count in the result."""
    rest = iter(x.shape)
    shape = tuple(1 if n in axes else next(rest) for n in range(x.rank + len(axes)))
    return compute(shape, lambda *i: x[tuple(e for n, e in enumerate(i) if n not in axes)])


def _flatten_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    rank, axis = rank_of(types), attrs["axis"]
    if not isinstance(axis, int) or not -rank <= axis <= rank:
        raise InferError(f"axis {axis} is not in [-{rank}, {rank}]")
    return {"axis": axis + rank if axis < 0 else axis}


@op("Flatten", example="f32[2,3,4] axis=2", laws="data", canonical=_flatten_attrs)
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    """The matrix of the axes before `axis` and those from it on."""
    return reshape_row_major(x, (product(x.shape[:axis]), product(x.shape[axis:])))


def _expand_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    t, shape = known_type(types)
    wanted = size_tuple(attrs["shape"], "shape")
    try:
        return {"shape": broadcast(shape, wanted)}
    except InferError as e:
        raise InferError(f"Expand of {t} to {format_shape(wanted)}: {e}") from e


@op("Expand", example="f32[3,1] shape=(2,1,4)", laws="data", since=8, canonical=_expand_attrs)
def expand(x: Tensor, *, shape: tuple[Dim, ...]) -> Tensor:
    """Broadcast with `shape`; in the canonical form `shape` is the result's."""
    lead = len(shape) - x.rank
    return compute(
        shape,
        lambda *i: x[tuple(0 if n == 1 else e for n, e in zip(x.shape, i[lead:], strict=True))],
    )


def _tile_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    t, shape = known_type(types)
    repeats = size_tuple(attrs["repeats"], "repeats")
    if len(repeats) != len(shape):
        raise InferError(f"Tile of {t} by {format_shape(repeats)}: {len(repeats)} repeats")
    return {"repeats": repeats}


@op("Tile", example="f32[2,3] repeats=(2,3)", laws="data", since=6, canonical=_tile_attrs)
def tile(x: Tensor, *, repeats: tuple[Dim, ...]) -> Tensor:
    """`x` repeated along each axis."""
    shape = tuple(index.dim(index.as_index(d) * r) for d, r in zip(x.shape, repeats, strict=True))
    wrapped = [r != 1 for r in repeats]
    return compute(
        shape,
        lambda *i: x[
            tuple(e % d if w and d != 0 else e for e, d, w in zip(i, x.shape, wrapped, strict=True))
        ],
    )
