"""z3, imported at first use: commands that prove nothing start a tenth of a second earlier."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any


class _LazyModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(self.__name__), name)
        setattr(self, name, found)  # later accesses skip __getattr__
        return found


z3 = _LazyModule("z3")
