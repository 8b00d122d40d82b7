"""Models whose kernels are interpreted, for vectors of any width."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import superopt
from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.model.compiler import make_compiler
from superopt.compilation.reference.code_generator import ReferenceCodeGenerator
from superopt.compilation.reference.device import open_device
from superopt.compilation.reference.segment import ReferenceSegment
from superopt.errors import UsageError
from superopt.kernels.runtime.engine import Machine
from superopt.loading.readable_model import make_readable
from superopt.onnx_io.read.source import read_model
from tests.support.compilation.models import in_parts, net, picture, reference
from tests.support.compilation.recurrent import recurrent
from tests.support.gpu.compilation import feeds
from tests.support.gpu.models import MODELS

NAMES = ["layer norm", "scalars", "columns", "turned", "nested", "rotary"]
MACHINES = {
    "SSE": Machine("x86-64-v2", "", 16),
    "AVX2": Machine("x86-64-v3", "", 32),
    "AVX-512": Machine("x86-64-v4", "", 64),
}


def near(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    for name, x in wanted.items():
        np.testing.assert_allclose(got[name], x, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("level", MACHINES)
@pytest.mark.parametrize("name", [n for n in NAMES if n in MODELS])
def test_models(name: str, level: str) -> None:
    m = MODELS[name]()
    given = make_readable(read_model(m), 1)
    generator = ReferenceCodeGenerator(open_device(CompileOptions()), machine=MACHINES[level])
    exe = make_compiler(given, generator, {}).executable()
    near(exe.run(feeds(m)), reference(m, feeds(m)))
    assert any(isinstance(s, ReferenceSegment) for s in exe.variant({}))


def test_a_convolutional_net_of_several_sizes() -> None:
    m = net("s")
    exe = superopt.compile(m, target="reference")
    for size in (7, 9):
        x = {"x": picture(1, size)}
        near(exe.run(x), reference(m, x))
    assert len(exe.variants) == 2


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_loops(kind: str) -> None:
    """A recurrent layer is a loop of calls whose addresses change."""
    m = recurrent(kind, steps=12, hidden=8, batch=2)
    exe = superopt.compile(m, target="reference")
    near(exe.run(feeds(m)), reference(m, feeds(m)))
    assert any(hasattr(c, "lanes") for c in exe.variant({}).program.calls)


def test_parts_in_onnxruntime() -> None:
    m = in_parts()
    x = feeds(m)
    near(superopt.compile(m, target="reference").run(x), reference(m, x))


def test_the_commands_and_the_refusals(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(MODELS["scalars"](), path)
    exe = superopt.compile(path, target="reference")
    assert "interpreted" in repr(exe)
    assert exe.accuracy(sets=1).passed
    for call in (lambda: exe.profile(), lambda: exe.export(tmp_path), lambda: exe.save(path)):
        with pytest.raises(UsageError, match="target reference cannot be"):
            call()
    with pytest.raises(UsageError, match="target reference cannot be tuned"):
        superopt.tune(path, target="reference")
    with pytest.raises(UsageError, match="precision 'fp16' of target reference"):
        superopt.compile(path, target="reference", precision="fp16")
    with pytest.raises(UsageError, match="targets are cpu, cuda, reference"):
        superopt.compile(path, target="rocm")
