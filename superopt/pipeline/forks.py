"""Locks of compiled models after a fork: the threads that held them are not in the child, so they
are free there, or what they protect is lost."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Protocol


class Lost:
    """In place of a lock whose resource is lost: raises an error when acquired."""

    def __init__(self, why: Callable[[], Exception]) -> None:
        self.why = why

    def __enter__(self) -> None:
        raise self.why()

    def __exit__(self, *_: object) -> None: ...


class Locked(Protocol):
    lock: Any

    def forked(self) -> Any:
        """Return its lock in a process that was forked from this one."""


known: weakref.WeakSet[Locked] = weakref.WeakSet()


def _free() -> None:
    for each in known:
        each.lock = each.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)
