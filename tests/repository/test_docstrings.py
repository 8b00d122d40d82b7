"""The docstrings of the public names: every parameter is described, and the examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import superopt
from tests.support.optimization import models
from tests.support.paths import ROOT

NAMES = [name for name in superopt.__all__ if name != "__version__"]
WITH_EXAMPLES = sorted(
    str(Path(folder, name).relative_to(ROOT).with_suffix("")).replace(os.sep, ".")
    for folder, _, names in os.walk(ROOT / "superopt", followlinks=True)
    for name in names
    if name.endswith(".py") and re.search(r"^ *>>> ", Path(folder, name).read_text(), re.M)
)
RUN_BY_NAME = {getattr(superopt, name).__module__ for name in NAMES}


def run_examples(tests: list[doctest.DocTest]) -> int:
    """Run examples; return their number."""
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    output: list[str] = []
    for test in tests:
        runner.run(test, out=output.append)
    assert not output, "".join(output)
    return runner.tries


@pytest.mark.ci
@pytest.mark.parametrize("name", NAMES)
def test_examples_of_public_names_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(models.model(models.PLAIN), "model.onnx")
    found = doctest.DocTestFinder(recurse=False).find(
        getattr(superopt, name), name, module=False, globs={"superopt": superopt, "np": np}
    )
    assert run_examples(found) > 0


@pytest.mark.parametrize("name", [n for n in NAMES if inspect.isfunction(getattr(superopt, n))])
def test_every_parameter_and_result_is_described(name: str) -> None:
    function = getattr(superopt, name)
    text = inspect.getdoc(function) or ""
    arguments = text.partition("Args:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^    (\w+): [A-Z\"]", arguments, re.M) == [
        *inspect.signature(function).parameters
    ]
    assert "Returns:\n" in text


@pytest.mark.parametrize("module", [m for m in WITH_EXAMPLES if m not in RUN_BY_NAME])
def test_other_examples_run(module: str) -> None:
    assert run_examples(doctest.DocTestFinder().find(importlib.import_module(module))) > 0
