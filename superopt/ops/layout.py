"""Operators that move elements and compute nothing."""

from __future__ import annotations

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.common import axis_from, positive, rank_of
from superopt.te import index as ix
from superopt.te.expr import Dim, Tensor, compute, gather, product, ravel, select, unravel
from superopt.te.node import Expr


def _join(parts: list[Tensor], starts: list[Dim], axis: int, i: tuple[Expr, ...]) -> Expr:
    """The element of the concatenation, by bisection (so that 1,000 parts nest 10 deep)."""
    if len(parts) == 1:
        return parts[0][(*i[:axis], i[axis] - starts[0], *i[axis + 1 :])]
    half = len(parts) // 2
    low = _join(parts[:half], starts[:half], axis, i)
    high = _join(parts[half:], starts[half:], axis, i)
    return select(i[axis] < starts[half], low, high)


@op("Concat", example="f32[2,3] f32[2,5] axis=1", laws="data", since=4, canonical=axis_from())
def concat(*xs: Tensor, axis: int) -> Tensor:
    first = xs[0].shape
    starts: list[Dim] = []
    total: Dim = 0
    for x in xs:
        rest = (*x.shape[:axis], *x.shape[axis + 1 :])
        if x.rank != len(first) or rest != (*first[:axis], *first[axis + 1 :]):
            raise InferError(f"Concat on axis {axis} of {tuple(first)} and {tuple(x.shape)}")
        starts.append(total)
        total = ix.dim(total + x.shape[axis])
    shape = (*first[:axis], total, *first[axis + 1 :])
    return compute(shape, lambda *i: _join(list(xs), starts, axis, i))


def _split_sizes(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    axis = positive(attrs["axis"], rank_of(types))
    split, parts = attrs["split"], attrs["num_outputs"]
    assert types[0] is not None and types[0].shape is not None
    extent = types[0].shape[axis]
    if split is None:
        if not isinstance(parts, int) or not isinstance(extent, int):
            raise InferError(f"Split of {extent} into {parts} parts without sizes")
        size = -(-extent // parts)
        split = (*(size,) * (parts - 1), extent - size * (parts - 1))
    return {"axis": axis, "split": split, "num_outputs": None}


@op("Split", example="f32[2,5] axis=1 split=(2,3)", laws="data", since=2, canonical=_split_sizes)
def split(
    x: Tensor, *, axis: int = 0, split: tuple[Dim, ...] | None = None, num_outputs: int | None = None
) -> tuple[Tensor, ...]:
    assert split is not None
    total: Dim = 0
    out: list[Tensor] = []
    for size in split:
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        start = total

        def part(*i: Expr, start: Dim = start) -> Expr:
            return x[(*i[:axis], i[axis] + start, *i[axis + 1 :])]

        out.append(compute(shape, part))
        total = ix.dim(total + size)
    if total != x.shape[axis]:
        raise InferError(f"Split of {tuple(x.shape)} on axis {axis} into {split}: sum {total}")
    return tuple(out)


def _perm(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    rank = rank_of(types)
    perm = attrs["perm"]
    if perm is None:
        return {"perm": tuple(reversed(range(rank)))}
    assert isinstance(perm, tuple)
    axes = tuple(positive(p, rank, "perm") for p in perm)
    if sorted(axes) != list(range(rank)):
        raise InferError(f"perm {perm} is no permutation of rank {rank}")
    return {"perm": axes}


@op("Transpose", example="f32[2,3,4] perm=(1,2,0)", laws="data", canonical=_perm)
def transpose(x: Tensor, *, perm: tuple[int, ...] | None = None) -> Tensor:
    assert perm is not None
    return compute(
        tuple(x.shape[p] for p in perm), lambda *i: x[tuple(i[perm.index(d)] for d in range(x.rank))]
    )


def _target(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """0 and -1 replaced by the sizes that they stand for."""
    t = types[0]
    assert t is not None and t.shape is not None
    shape = attrs["shape"]
    assert isinstance(shape, tuple)
    dims: list[Dim] = []
    for n, d in enumerate(shape):
        if d == 0 and not attrs["allowzero"]:
            if n >= len(t.shape):
                raise InferError(f"Reshape of {t} to {shape}: no axis {n} to keep")
            dims.append(t.shape[n])
        else:
            assert isinstance(d, (int, Expr))
            dims.append(d)
    if -1 in dims:
        known = product(d for d in dims if d != -1)
        total = product(t.shape)
        if known == 0:
            raise InferError(f"Reshape of {t} to {shape}: -1 beside a 0")
        dims[dims.index(-1)] = ix.dim(ix.floordiv(ix.as_index(total), ix.as_index(known)))
    return {"shape": tuple(dims), "allowzero": 0}


@op("Reshape", example="f32[2,6] shape=(3,4)", laws="data", since=1, canonical=_target)
def reshape(x: Tensor, *, shape: tuple[Dim, ...], allowzero: int = 0) -> Tensor:
    if product(shape) != product(x.shape):
        raise InferError(f"Reshape of {tuple(x.shape)} to {shape}: element counts differ")
    return compute(shape, lambda *i: x[unravel(ravel(i, shape), x.shape)])


@op("Gather", example="f32[5,3] i64[2,2] axis=0", canonical=axis_from())
def gather_(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    mid = axis + indices.rank
    return compute(
        shape,
        lambda *i: x[(*i[:axis], gather(indices[i[axis:mid]], x.shape[axis]), *i[mid:])],
    )
