"""A process that was forked while others called a compiled model: they are not in it, and what they
had locked is free."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Locked(Protocol):
    lock: threading.RLock


known: weakref.WeakSet[Locked] = weakref.WeakSet()


def _free() -> None:
    for each in known:
        each.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)
