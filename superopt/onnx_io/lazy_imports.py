"""Modules that are loaded when an attribute of them is read first."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType


class LazyFinder(MetaPathFinder):
    """Finds modules of given names as Python does, but lets them load lazily. It is in use until it
    has found all of them."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = set(names)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.names:
            return None
        self.names.remove(name)
        if not self.names:
            sys.meta_path.remove(self)
        found = PathFinder.find_spec(name, path, target)
        if found is not None and found.loader is not None:
            found.loader = LazyLoader(found.loader)
        return found


def import_lazily(names: Iterable[str]) -> None:
    """Let the next import of each of these modules be lazy."""
    if absent := {*names} - sys.modules.keys():
        sys.meta_path.insert(0, LazyFinder(absent))
