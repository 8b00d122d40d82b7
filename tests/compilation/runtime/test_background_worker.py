"""Work in child processes."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from superopt.compilation.runtime import background_worker, child_process

CHILDREN = {
    "crashes": "import os; os.abort()",
    "hangs": "import threading; threading.Event().wait()",
    "fails": "import sys; print('-ValueError: no such luck'); sys.exit(1)",
    "works": "import sys; print('about to'); print(sys.stdin.read())",
    "fails_later": "import sys; print('first', flush=True); sys.exit(3)",
    "hangs_later": "import threading; print('first', flush=True); threading.Event().wait()",
}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that children run."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in CHILDREN.items():
        (tmp_path / f"child_{name}.py").write_text(text, "utf-8")


def lines(name: str, seconds: float = 60) -> Generator[str, None, None]:
    child = child_process.start_child(f"child_{name}")
    child.send(b"done")
    child.close_input()
    return background_worker.child_lines(child, seconds)


@pytest.mark.parametrize(
    ("name", "seconds", "message"),
    [
        ("crashes", 60, "ended with -6"),
        ("fails", 60, "no such luck"),
        ("fails_later", 60, "ended with 3"),
        ("hangs", 0.2, "took longer than 0 s"),
    ],
)
def test_a_child_that_fails(name: str, seconds: float, message: str) -> None:
    with pytest.raises(child_process.ChildFailed, match=message):
        [*lines(name, seconds)]


def test_lines_come_when_they_are_printed() -> None:
    assert [*lines("works")] == ["about to", "done"]
    assert next(lines("fails_later")) == "first"


def test_a_child_ends_with_who_reads_it() -> None:
    worker = background_worker.background_worker()
    others, found = {*worker.children}, lines("hangs_later")
    assert next(found) == "first"
    (child,) = worker.children - others
    assert child.is_running
    found.close()
    assert not child.is_running
    assert child not in worker.children
