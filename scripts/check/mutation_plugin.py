"""A plugin of pytest for scripts/check/mutation.py: runs tests on a mutant, or records calls.

The job is a JSON file that the environment's SUPEROPT_MUTATION names. With `mutant` one file is
read with one replacement; nothing on disk changes, so that mutants run side by side. With `calls`
the functions that each test calls are written there, if calls are traced, and how long it takes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
JOB: dict[str, Any] = json.loads(Path(os.environ["SUPEROPT_MUTATION"]).read_text("utf-8"))


def read_mutant() -> None:
    """Have Python's import system read the mutant instead of its file."""
    mutant = JOB["mutant"]
    place = os.path.realpath(ROOT / mutant["file"])
    own = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, name: str) -> CodeType | None:
        if os.path.realpath(self.path) != place:
            return own(self, name)
        source = Path(place).read_text("utf-8")
        text = source[: mutant["start"]] + mutant["text"] + source[mutant["end"] :]
        return compile(text, self.path, "exec", dont_inherit=True)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


class Recorder:
    """Which functions of the files at hand a test calls."""

    def __init__(self) -> None:
        self.prefix = str(ROOT / "superopt")
        self.files: dict[str, str | None] = {}
        self.called: set[CodeType] = set()
        self.passed = True
        self.tests: list[dict[str, Any]] = []

    def trace(self, frame: FrameType, event: str, arg: object) -> None:
        self.called.add(frame.f_code)

    def file_of(self, code: CodeType) -> str | None:
        name = code.co_filename
        if name not in self.files:
            inside = name.startswith(self.prefix)
            path = str(Path(name).relative_to(ROOT)) if inside else ""
            self.files[name] = path if path in JOB["files"] else None
        return self.files[name]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.called.clear()
        begin = time.process_time()
        sys.settrace(self.trace if JOB["is_traced"] else None)
        try:
            result = yield
        finally:
            sys.settrace(None)
        seconds = time.process_time() - begin
        passed, self.passed = self.passed, True
        found: dict[str, list[str]] = {}
        for code in self.called:
            file = self.file_of(code)
            if file is not None:
                found.setdefault(file, []).append(code.co_qualname.replace(".<locals>", ""))
        self.tests.append(
            {"test": item.nodeid, "seconds": seconds, "calls": found, "passed": passed}
        )
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed &= report.passed

    def pytest_sessionfinish(self) -> None:
        Path(JOB["calls"]).write_text(json.dumps(self.tests), "utf-8")


class Selection:
    """Only the tests of the job, in its order."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order = {name: n for n, name in enumerate(JOB["tests"])}
        items[:] = sorted((i for i in items if i.nodeid in order), key=lambda i: order[i.nodeid])


def pytest_configure(config: pytest.Config) -> None:
    recording = "calls" in JOB
    config.pluginmanager.register(Recorder() if recording else Selection(), "mutation-job")


if "mutant" in JOB:
    read_mutant()
