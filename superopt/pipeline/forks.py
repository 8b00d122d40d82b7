"""A process that was forked while others called a compiled model: they are not in it, and what they
had locked is free, or lost."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Protocol


class Lost:
    """In a lock's place, where nothing is left of what it was for: who would take it is told."""

    def __init__(self, why: Callable[[], Exception]) -> None:
        self.why = why

    def __enter__(self) -> None:
        raise self.why()

    def __exit__(self, *_: object) -> None: ...


class Locked(Protocol):
    lock: Any

    def forked(self) -> Any:
        """Its lock in a process that was forked from this one."""


known: weakref.WeakSet[Locked] = weakref.WeakSet()


def _free() -> None:
    for each in known:
        each.lock = each.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)
