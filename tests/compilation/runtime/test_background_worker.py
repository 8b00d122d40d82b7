"""Work in child processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from superopt.compilation.runtime import background_worker

CHILDREN = {
    "crashes": "import os; os.abort()",
    "hangs": "import threading; threading.Event().wait()",
    "fails": "import sys; print('-ValueError: no such luck'); sys.exit(1)",
    "works": "import sys; print('about to'); print(sys.stdin.read())",
}


def test_a_child_that_crashes_or_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in CHILDREN.items():
        (tmp_path / f"child_{name}.py").write_text(text, "utf-8")
    with pytest.raises(background_worker.ChildFailed, match="ended with -6"):
        background_worker.run_in_child("child_crashes", b"", 60)
    with pytest.raises(background_worker.ChildFailed, match="took longer than 0 s"):
        background_worker.run_in_child("child_hangs", b"", 0.2)
    with pytest.raises(background_worker.ChildFailed, match="no such luck"):
        background_worker.run_in_child("child_fails", b"", 60)
    assert background_worker.run_in_child("child_works", b"done", 60) == "done"
