"""All operators by name. A new module of this folder only has to be listed here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

from superopt.ir.op import Op
from superopt.ops import (
    activation,
    attention,
    blocks,
    cast,
    causal_conv,
    channel_norm,
    compare,
    conv,
    deconv,
    einsum,
    elementwise,
    fourier,
    gather,
    generate,
    layout,
    linear,
    loss,
    norm,
    padding,
    pool,
    qlinear,
    quantize,
    reduce,
    resize,
    rotary,
    sampling,
    search,
    signal,
    slicing,
    trees,
)

_MODULES: tuple[ModuleType, ...] = (
    activation,
    attention,
    blocks,
    cast,
    causal_conv,
    channel_norm,
    compare,
    conv,
    deconv,
    einsum,
    elementwise,
    fourier,
    gather,
    generate,
    layout,
    linear,
    loss,
    norm,
    padding,
    pool,
    qlinear,
    quantize,
    reduce,
    resize,
    rotary,
    sampling,
    search,
    signal,
    slicing,
    trees,
)

OPS: Mapping[str, Op] = MappingProxyType(
    {o.name: o for module in _MODULES for o in vars(module).values() if isinstance(o, Op)}
)
