"""Every operator, by name. A module of this folder is listed here, and that is all it takes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

from superopt.ir.op import Op
from superopt.ops import elementwise, layout, linear

_MODULES: tuple[ModuleType, ...] = (elementwise, layout, linear)

OPS: Mapping[str, Op] = MappingProxyType(
    {o.name: o for module in _MODULES for o in vars(module).values() if isinstance(o, Op)}
)
