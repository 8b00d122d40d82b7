"""All operators by name. A new module of this folder only has to be listed here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

from superopt.ir.op import Op
from superopt.ops.image import fourier, grid_sample, resize, window_functions
from superopt.ops.movement import (
    cache,
    depth_space,
    gather,
    generators,
    layout,
    padding,
    slicing,
)
from superopt.ops.nn import (
    attention,
    causal_conv,
    channel_norm,
    conv,
    conv_transpose,
    loss,
    norm,
    pool,
    rotary,
)
from superopt.ops.pointwise import activation, arithmetic, cast, comparison
from superopt.ops.quantized import nbits, qlinear, quantize
from superopt.ops.reductions import einsum, matmul, reduce, search, tree_weights

_MODULES: tuple[ModuleType, ...] = (
    activation,
    attention,
    cache,
    depth_space,
    cast,
    causal_conv,
    channel_norm,
    comparison,
    conv,
    conv_transpose,
    einsum,
    arithmetic,
    fourier,
    gather,
    generators,
    layout,
    matmul,
    loss,
    nbits,
    norm,
    padding,
    pool,
    qlinear,
    quantize,
    reduce,
    resize,
    rotary,
    grid_sample,
    search,
    window_functions,
    slicing,
    tree_weights,
)

_OPERATORS = tuple(
    {id(o): o for m in _MODULES for o in vars(m).values() if isinstance(o, Op)}.values()
)
OPS: Mapping[str, Op] = MappingProxyType({o.name: o for o in _OPERATORS})
if len(OPS) != len(_OPERATORS):
    raise ValueError(f"two operators of one name among {sorted(o.name for o in _OPERATORS)}")
