"""The threads of a compiled model."""

from __future__ import annotations

import ctypes
import threading

import pytest

from superopt.errors import UsageError
from superopt.kernels.llvm.chunk_threads import STOP_WORD
from superopt.kernels.runtime.thread_pool import start_pool


def test_what_was_started_ends_where_others_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    start, count = threading.Thread.start, []
    begun = threading.Barrier(3)

    def some(self: threading.Thread) -> None:
        count.append(self)
        if len(count) > 2:
            begun.wait(60)
            raise RuntimeError("can't start new thread")
        start(self)

    def work(state: int, workspace: int) -> None:
        begun.wait(60)
        words = (ctypes.c_int64 * (STOP_WORD + 1)).from_address(state)
        while not words[STOP_WORD]:
            pass

    monkeypatch.setattr(threading.Thread, "start", some)
    with pytest.raises(UsageError, match="thread 4 of 5 cannot be started"):
        start_pool(work, [1, 2, 3, 4], None)
    assert len(count) == 3
    assert not any(t.is_alive() for t in count)
