"""Winograd's transforms, which a library makes when it is opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import superopt
from superopt.compilation.cpu.library import export_library
from superopt.report.compilation.exported_library import (
    DerivedConstant,
    ExportedLibrary,
    ExportedProgram,
)
from tests.support.compilation.exporting import HERE, InC
from tests.support.targets.models import drawn, model, node, wide_convolution

pytestmark = pytest.mark.skipif(not HERE, reason="the library is for Linux on x86-64")


def test_weights_hold_filters_once(tmp_path: Path) -> None:
    m, feeds, _ = wide_convolution()
    exe = superopt.compile(m)
    e = exe.export(tmp_path / "m")
    filters = 4 * 32 * 32 * 9
    (segment,) = exe.variant({}).kernel_steps
    assert segment.program.constant_bytes > 1.5 * filters  # the transform
    assert filters < (tmp_path / "m.weights").stat().st_size < 1.01 * filters + 512
    o = InC(e)
    np.testing.assert_array_equal(o.run(feeds)["y"], exe.run(feeds)["y"])
    o.close()


@pytest.mark.parametrize("shape", [(24, 16, 3, 3), (16, 16, 5, 5), (16, 24, 3), (20, 12, 3, 3, 3)])
def test_forms_of_filters(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Whatever the algorithm is, the library's results are those of this process."""
    sides = [28 if len(shape) < 5 else 12] * (len(shape) - 2)
    pads = [1] * (2 * len(sides))
    m = model([node("Conv", ["x", "w"], ["y"], pads=pads)],
              {"x": (1, [1, shape[1], *sides])}, ["y"], {"w": drawn(*shape) / 10})  # fmt: skip
    x = drawn(1, shape[1], *sides)
    exe = superopt.compile(m)
    o = InC(exe.export(tmp_path / "m"))
    np.testing.assert_allclose(o.run({"x": x})["y"], exe(x=x)["y"], rtol=1e-6, atol=1e-6)
    o.close()


def test_programs_of_several_sizes_share_filters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles of several sizes are made of the same filters, which are there once."""
    programs: list[ExportedProgram] = []
    source_text = export_library.source_text

    def seen(x: ExportedLibrary) -> str:
        programs.extend(x.programs)
        return source_text(x)

    monkeypatch.setattr(export_library, "source_text", seen)
    w = {"w": drawn(32, 32, 3, 3) / 12}
    m = model([node("Conv", ["x", "w"], ["y"], pads=[1] * 4)],
              {"x": (1, ["n", 32, "s", "s"])}, ["y"], w)  # fmt: skip
    superopt.compile(m).export(tmp_path / "m")
    made = [c for p in programs for c in p.constants if isinstance(c, DerivedConstant)]
    assert len(made) > 1
    assert len({c.filters for c in made}) == 1
