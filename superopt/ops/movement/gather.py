"""Operators whose indices are data: gathering, scattering, one-hot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.movement.layout import known_type
from superopt.ops.shared.broadcasting import canonical_axis, normalize_axis
from superopt.te.expr.dtype import BOOL, I32, I64
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import (
    Dim,
    Tensor,
    apply,
    cast,
    compare,
    compute,
    conjunction,
    const,
    gather,
    in_range,
    product,
    ravel,
    reduce_max,
    reduction,
    select,
    unravel,
)

# A scatter compares every element with every update: above this the expression helps nobody, and
# the node is better carried as it is.
MAX_SCATTER_COMPARISONS = 1 << 24
Position = tuple[Expr, ...]
_FALSE = const(0, BOOL)
_NEUTRAL = {"add": 0, "mul": 1}
_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}


def _check_indices(name: str, indices: Tensor) -> None:
    if indices.dtype not in (I32, I64):
        raise InferError(f"{name}: indices are {indices.dtype}, not i32 or i64")


@op("Gather", example="f32[5,3] i64[2,2] axis=0", canonical=canonical_axis())
def gather_(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """Slices of `x` along `axis`, one for each index."""
    _check_indices("Gather", indices)
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    mid = axis + indices.rank
    return compute(
        shape,
        lambda *i: x[(*i[:axis], gather(indices[i[axis:mid]], x.shape[axis]), *i[mid:])],
    )


@op("GatherElements", example="f32[3,4] i64[2,4] axis=0", since=11, canonical=canonical_axis())
def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """The element at the same place as each index, but with that index on `axis`."""
    _check_indices("GatherElements", indices)
    if x.rank != indices.rank:
        raise InferError(f"GatherElements of {x.type} at {indices.type}: ranks differ")
    return compute(
        indices.shape,
        lambda *i: x[(*i[:axis], gather(indices[i], x.shape[axis]), *i[axis + 1 :])],
    )


def _index_depth(name: str, x: Tensor, indices: Tensor, batch: int) -> int:
    """How many axes of `x` an index tuple names."""
    _check_indices(name, indices)
    last = indices.shape[-1] if indices.rank else 0
    if not isinstance(last, int) or not 0 < last <= x.rank - batch:
        raise InferError(f"{name} of {x.type} at {indices.type}: {last} indices in each tuple")
    return last


@op("GatherND", example="f32[2,3,4] i64[2,5,1] batch_dims=1", since=11)
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    """Slices of `x` at index tuples; the first `batch_dims` axes are those of `indices`, too."""
    if x.shape[:batch_dims] != indices.shape[:batch_dims]:
        raise InferError(f"GatherND of {x.type} at {indices.type}: batches differ")
    depth = _index_depth("GatherND", x, indices, batch_dims)
    outer = indices.shape[:-1]
    named = x.shape[batch_dims : batch_dims + depth]

    def element(*i: Expr) -> Expr:
        at = i[: len(outer)]
        place = [gather(indices[(*at, k)], n) for k, n in enumerate(named)]
        return x[(*i[:batch_dims], *place, *i[len(outer) :])]

    return compute((*outer, *x.shape[batch_dims + depth :]), element)


def _check_scatter_mode(name: str, types: Types, attrs: dict[str, Attr]) -> None:
    t, _ = known_type(types)
    if attrs["reduction"] != "none" and t.dtype is not None and not t.dtype.is_number:
        raise InferError(f"{name} of {t}: no {attrs['reduction']} of {t.dtype}")
    if attrs["reduction"] not in ("none", *_REDUCTIONS):
        known_modes = ", ".join(("none", *_REDUCTIONS))
        raise InferError(f"{name}: reduction {attrs['reduction']} is not one of {known_modes}")


def _check_scatter_cost(name: str, x: Tensor, places: Dim, updates: Dim) -> None:
    if not isinstance(places, int) or not isinstance(updates, int):
        raise InferError(f"{name} of {x.type}: comparing {places} places with {updates} updates")
    if places * updates > MAX_SCATTER_COMPARISONS:
        raise InferError(
            f"{name} of {x.type}: {places} places times {updates} updates "
            f"> {MAX_SCATTER_COMPARISONS}"
        )


def _scatter_elements_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    _, shape = known_type(types)
    _check_scatter_mode("ScatterElements", types, attrs)
    return attrs | {"axis": normalize_axis(attrs["axis"], len(shape))}


def _scatter_nd_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    _check_scatter_mode("ScatterND", types, attrs)
    return attrs


def _last_hit(
    shape: Sequence[Dim], counts: Sequence[Dim], hit: Callable[[Position, Position], Expr]
) -> Tensor:
    """Return for each position the row-major number of the last update that hits it, or -1.

    `hit(position, update)` says whether it does; there are `counts` updates.
    """
    return compute(
        shape,
        lambda *i: reduce_max(
            counts, lambda *k: select(hit(i, k), cast(ravel(k, counts), I64), const(-1, I64))
        ),
        name="last",
    )


def _is_hit(last: Expr) -> Expr:
    return compare("le", const(0, I64), last)


def _merge_updates(
    old: Expr, mode: str, counts: Sequence[Dim], update: Callable[..., tuple[Expr, Expr]]
) -> Expr:
    """Merge `old` with all updates that hit; `update` returns (hits, value)."""
    neutral = const(_NEUTRAL[mode], old.dtype) if mode in _NEUTRAL else old
    return apply(
        mode, old, reduction(_REDUCTIONS[mode], counts, lambda *k: select(*update(*k), neutral))
    )


@op(
    "ScatterElements",
    example=(
        "f32[3,4] i64[2,3] f32[2,3] axis=0",
        'f32[3,4] i64[2,4] f32[2,4] axis=0 reduction="add"',
    ),
    since=11,
    canonical=_scatter_elements_attrs,
)
def scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    """`x` with updates at their indices on `axis`; "none" takes the last of several."""
    _check_indices("ScatterElements", indices)
    if x.rank != indices.rank or indices.shape != updates.shape or x.dtype != updates.dtype:
        raise InferError(f"ScatterElements of {updates.type} at {indices.type} into {x.type}")
    count = indices.shape[axis]
    _check_scatter_cost("ScatterElements", x, product(x.shape), count)
    if product(indices.shape) == 0:
        return compute(x.shape, lambda *i: x[i])

    def at(i: Position, k: Expr) -> Position:
        return (*i[:axis], k, *i[axis + 1 :])

    def reached(i: Position) -> Expr | bool:
        sizes = zip(i, indices.shape, x.shape, strict=True)
        return conjunction(
            *(in_range(e, n) for a, (e, n, own) in enumerate(sizes) if a != axis and n != own)
        )

    def hit(i: Position, k: Position) -> Expr:
        # The guard is within: a sum is computed whole, also where nobody wants it.
        same = compare("eq", gather(indices[at(i, k[0])], x.shape[axis]), i[axis])
        return select(reached(i), same, _FALSE)

    if reduction == "none":
        last = _last_hit(x.shape, (count,), hit)
        return compute(
            x.shape,
            lambda *i: select(_is_hit(last[i]), updates[at(i, gather(last[i], count))], x[i]),
        )
    return compute(
        x.shape,
        lambda *i: _merge_updates(
            x[i], reduction, (count,), lambda *k: (hit(i, k), updates[at(i, k[0])])
        ),
    )


@op(
    "ScatterND",
    example=("f32[4,3] i64[2,1] f32[2,3]", 'f32[4,3] i64[2,2] f32[2] reduction="max"'),
    since=11,
    canonical=_scatter_nd_attrs,
)
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    """`x` with slices of `updates` at index tuples; "none" takes the last of several."""
    depth = _index_depth("ScatterND", x, indices, 0)
    counts, named = indices.shape[:-1], x.shape[:depth]
    if updates.shape != (*counts, *x.shape[depth:]) or updates.dtype != x.dtype:
        raise InferError(f"ScatterND of {updates.type} at {indices.type} into {x.type}")
    _check_scatter_cost("ScatterND", x, product(named), product(counts))
    if product(counts) == 0:
        return compute(x.shape, lambda *i: x[i])

    def hit(i: Position, k: Position) -> Expr:
        out = conjunction(
            *(compare("eq", gather(indices[(*k, d)], n), i[d]) for d, n in enumerate(named))
        )
        return const(int(out), BOOL) if isinstance(out, bool) else out

    if reduction == "none":
        last = _last_hit(named, counts, hit)

        def element(*i: Expr) -> Expr:
            found = last[i[:depth]]
            place = unravel(gather(found, product(counts)), counts)
            return select(_is_hit(found), updates[(*place, *i[depth:])], x[i])

        return compute(x.shape, element)
    return compute(
        x.shape,
        lambda *i: _merge_updates(
            x[i], reduction, counts, lambda *k: (hit(i, k), updates[(*k, *i[depth:])])
        ),
    )
