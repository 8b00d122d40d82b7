"""z3, loaded when something of it is asked for: what proves nothing runs without it, and begins a
tenth of a second earlier."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any


class _Lazy(ModuleType):
    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(self.__name__), name)
        setattr(self, name, found)  # asked for once
        return found


z3 = _Lazy("z3")
