"""Locks of compiled models after a fork: the threads that held them are not in the child, so they
are free there, or what they protect is lost."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Protocol


class LostLock:
    """In place of a lock whose resource is lost: raises an error when acquired."""

    def __init__(self, make_error: Callable[[], Exception]) -> None:
        self.make_error = make_error

    def acquire(self, blocking: bool = True) -> bool:
        raise self.make_error()

    def __enter__(self) -> None:
        raise self.make_error()

    def __exit__(self, *_: object) -> None: ...


class HasLock(Protocol):
    lock: Any

    def lock_after_fork(self) -> Any:
        """Return its lock in a process that was forked from this one."""


lock_owners: weakref.WeakSet[HasLock] = weakref.WeakSet()


def _replace_locks() -> None:
    for each in lock_owners:
        each.lock = each.lock_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_locks)
