"""Rotary position embedding."""

from __future__ import annotations

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.movement.layout import known_type
from superopt.ops.shared.scalars import canonical_flags, expect_kinds
from superopt.ops.shared.sizes import floor_div
from superopt.te.expr import index
from superopt.te.expr.dtype import I64, INDEX
from superopt.te.expr.node import Dim, Expr
from superopt.te.expr.tensor import Tensor, compare, compute, const, gather, select


def _rotary_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """Canonical attributes: `num_heads` for rank 3 only; a rotary dimension equal to the head size
    is 0."""
    t, shape = known_type(types)
    attrs = canonical_flags("interleaved")(types, attrs)
    heads, dim = attrs["num_heads"], attrs["rotary_embedding_dim"]
    size = shape[-1]
    if len(shape) == 3:
        if not isinstance(heads, int) or heads < 1:
            raise InferError(f"RotaryEmbedding of {t} in {heads} heads")
        size = floor_div(shape[-1], heads)
    return attrs | {
        "num_heads": heads if len(shape) == 3 else None,
        "rotary_embedding_dim": 0 if dim == size else dim,
    }


@op(
    "RotaryEmbedding",
    example=(
        "f32[1,2,3,8] f32[5,4] f32[5,4] i64[1,3]",
        "f32[1,3,16] f32[1,3,2] f32[1,3,2] num_heads=2 rotary_embedding_dim=4 interleaved=1",
    ),
    since=23,
    canonical=_rotary_attrs,
)
def rotary_embedding(
    x: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    """Rotate pairs of elements of each head by the angle of their position.

    Pairs are adjacent if `interleaved`, else half a rotary dimension apart; elements past the
    rotary dimension are unchanged. The caches hold angles by position, or
    for each batch and position.
    """
    what = f"RotaryEmbedding of {x.type} with {cos_cache.type}"
    expect_kinds("RotaryEmbedding", "f", x, cos_cache, sin_cache)
    if x.rank not in (3, 4) or not x.dtype == cos_cache.dtype == sin_cache.dtype:
        raise InferError(f"{what}: it needs three or four axes and one dtype")
    heads = x.shape[1] if x.rank == 4 else num_heads
    size = x.shape[3] if x.rank == 4 else floor_div(x.shape[2], heads or 1)
    if x.rank == 3 and index.dim(index.as_index(size) * (heads or 1)) != x.shape[2]:
        raise InferError(f"{what}: {x.shape[2]} is not a multiple of {heads} heads")
    rotated = rotary_embedding_dim or size
    half = floor_div(rotated, 2)
    odd = index.dim(index.as_index(half) * 2) != rotated
    if odd or (isinstance(rotated, int) and isinstance(size, int) and rotated > size):
        raise InferError(f"{what}: rotary_embedding_dim {rotated} is odd or above {size}")
    batch, length = x.shape[0], x.shape[2] if x.rank == 4 else x.shape[1]
    lead = cos_cache.shape[:-1]
    if position_ids is not None:
        fits = cos_cache.rank == 2 and position_ids.shape == (batch, length)
        fits = fits and position_ids.dtype == I64
    else:
        wanted = (batch, length)
        fits = cos_cache.rank == 3 and all(n in (1, m) for n, m in zip(lead, wanted, strict=True))
    if not fits or cos_cache.shape != sin_cache.shape or cos_cache.shape[-1] != half:
        place = position_ids.type if position_ids is not None else "none"
        raise InferError(f"{what}: {sin_cache.type}, {half} angles, position_ids {place}")

    def angle(cache: Tensor, b: Expr, s: Expr, j: Expr) -> Expr:
        if position_ids is not None:
            return cache[gather(position_ids[b, s], cache.shape[0]), j]
        return cache[(*(0 if n == 1 else e for n, e in zip(lead, (b, s), strict=True)), j)]

    def element(*i: Expr) -> Expr:
        b, s = i[0], i[2] if x.rank == 4 else i[1]
        d = i[-1] if x.rank == 4 else index.as_index(i[-1] % size)

        def at(shift: Dim) -> Expr:
            return x[(*i[:-1], i[-1] + shift)]

        if interleaved:
            j = index.as_index(d // 2)
            first = compare("eq", index.mod(d, const(2, INDEX)), const(0, INDEX))
            partner: Dim = 1
            angle_of = (j, j)
        else:
            first = d < half
            partner, angle_of = half, (d, index.as_index(d - half))
        ahead = angle(cos_cache, b, s, angle_of[0]) * at(0) - angle(
            sin_cache, b, s, angle_of[0]
        ) * at(partner)
        behind = angle(sin_cache, b, s, angle_of[1]) * at(
            index.dim(-index.as_index(partner))
        ) + angle(cos_cache, b, s, angle_of[1]) * at(0)
        out = select(first, ahead, behind)
        return out if rotated == size else select(d < rotated, out, at(0))

    return compute(x.shape, element)
