"""DepthToSpace and SpaceToDepth."""

from __future__ import annotations

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.movement.layout import known_type
from superopt.ops.shared.sizes import floor_div
from superopt.te.analysis.size_oracle import are_sizes_equal
from superopt.te.expr import index
from superopt.te.expr.node import Dim, Expr
from superopt.te.expr.tensor import Tensor, compute, product

_MODES = ("DCR", "CRD")


def _check_attrs(name: str, types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    t, shape = known_type(types)
    block = attrs["blocksize"]
    whole = isinstance(block, Expr) or (isinstance(block, int) and block >= 1)
    if len(shape) != 4 or not whole:
        raise InferError(f"{name} of {t} by {block}: it takes four axes and a block of at least 1")
    if attrs["mode"] not in _MODES:
        raise InferError(f"{name}: mode {attrs['mode']} is not one of {', '.join(_MODES)}")
    return attrs


def _depth_to_space_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    return _check_attrs("DepthToSpace", types, attrs)


def _space_to_depth_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    return _check_attrs("SpaceToDepth", types, attrs)


@op(
    "DepthToSpace",
    example='f32[1,8,2,3] blocksize=2 mode="CRD"',
    laws="data",
    canonical=_depth_to_space_attrs,
)
def depth_to_space(x: Tensor, *, blocksize: Dim, mode: str = "DCR") -> Tensor:
    """Blocks of channels become squares; `mode`: whether the block (DCR) or the channel is
    outermost."""
    n, c, h, w = x.shape
    b, square = blocksize, product((blocksize, blocksize))
    depth = floor_div(c, square)
    if not are_sizes_equal(product((depth, square)), c):
        raise InferError(
            f"DepthToSpace of {x.type} by {b}: {c} channels are not a multiple of {square}"
        )

    def element(i: Expr, k: Expr, y: Expr, z: Expr) -> Expr:
        place = (y % b) * b + z % b
        channel = place * depth + k if mode == "DCR" else k * square + place
        return x[i, channel, y // b, z // b]

    return compute(
        (n, depth, index.dim(index.as_index(h) * b), index.dim(index.as_index(w) * b)), element
    )


@op(
    "SpaceToDepth",
    example='f32[1,2,4,6] blocksize=2 mode="DCR"',
    laws="data",
    canonical=_space_to_depth_attrs,
)
def space_to_depth(x: Tensor, *, blocksize: Dim, mode: str = "DCR") -> Tensor:
    """Squares become blocks of channels: the inverse of DepthToSpace."""
    n, c, h, w = x.shape
    b, square = blocksize, product((blocksize, blocksize))
    for side in (h, w):
        if isinstance(side, int) and isinstance(b, int) and side % b:
            raise InferError(f"SpaceToDepth of {x.type} by {b}: {side} is not a multiple of {b}")

    def element(i: Expr, k: Expr, y: Expr, z: Expr) -> Expr:
        place, channel = (k // c, k % c) if mode == "DCR" else (k % square, k // square)
        return x[i, channel, y * b + place // b, z * b + place % b]

    return compute((n, product((c, square)), floor_div(h, b), floor_div(w, b)), element)
