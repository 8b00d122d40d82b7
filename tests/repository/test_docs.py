"""The Python examples of the README and the pages run as they are written, with short budgets."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import superopt
from scripts.decoder_models import Size, growing_decoder, tensor_scatter_decoder
from tests.support.optimization import models
from tests.support.paths import ROOT

PAGES = sorted(
    str(p.relative_to(ROOT))
    for p in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if "```python" in p.read_text()
)
NEED_A_GPU = {"docs/howto/run_on_a_gpu.md"}
TINY_DECODER = Size(layers=2, width=32, heads=2, vocabulary=50, positions=64)
SECONDS = 4.0  # instead of the budgets of the examples


def short(function: Any) -> Any:
    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        if "budget" in options:
            options["budget"] = min(options["budget"], SECONDS)
        return function(*args, **options)

    return called


@pytest.mark.ci
@pytest.mark.parametrize("page", [p for p in PAGES if p not in NEED_A_GPU])
def test_examples_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    onnx.save(models.model(models.PLAIN), str(tmp_path / "model.onnx"))
    onnx.save(growing_decoder(TINY_DECODER), str(tmp_path / "decoder.onnx"))
    fixed = tensor_scatter_decoder(TINY_DECODER)
    onnx.save(fixed, str(tmp_path / "decoder_with_capacity.onnx"))
    for name in ("optimize", "tune"):
        monkeypatch.setattr(superopt, name, short(getattr(superopt, name)))
    array = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    names: dict[str, Any] = {"superopt": superopt, "array": array}
    if "exe = " not in blocks[0]:
        names["exe"] = superopt.compile("model.onnx")
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    if "hard_swish" in names:
        assert names["hard_swish"].name == "HardSwish"


def test_there_are_examples() -> None:
    assert {"README.md", "docs/tutorials/optimize.md"} <= {*PAGES}
    assert {*PAGES} >= NEED_A_GPU


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    paragraphs = [p.splitlines() for p in prose.split("\n\n") if not p.startswith("|")]
    assert [p[0] for p in paragraphs if len(p) > 5] == []
