"""`superopt compile --dump`: a model's kernels after each pass."""

from pathlib import Path

import onnx

from superopt.api import functions
from superopt.plan.passes import PASSES
from tests.support.compilation.models import net
from tests.support.kernels.build import NAMES


def test_each_pass_of_each_kernel_is_a_file(tmp_path: Path) -> None:
    onnx.save(net(), tmp_path / "m.onnx")
    folder = tmp_path / "dump"
    said = functions.compile_model(tmp_path / "m.onnx", threads=1, shapes={"n": 2}, dump=folder)
    assert said.kernels > 3
    kernels: dict[str, dict[str, str]] = {}
    for path in filter(Path.is_file, folder.iterdir()):
        kernel, _, name = path.name.partition(".")
        kernels.setdefault(kernel, {})[name] = path.read_text()
    assert len(kernels) == said.calls
    for kernel, texts in kernels.items():
        assert sorted(texts) == sorted(NAMES)
        assert texts["tile"].startswith(kernel.partition("-")[2] + "(")
        assert all(texts[name].strip() for name in NAMES if name != "schedule")
    assert any("vectorize" in texts["schedule"] for texts in kernels.values())
    assert any("for i1" in texts["loops"] for texts in kernels.values())
    plans = [*(folder / "passes").iterdir()]
    assert plans
    names = {each.name for each in PASSES}
    for plan in plans:
        numbered = sorted(path.stem for path in plan.iterdir())
        assert numbered[0] == "00-lower-graph"
        assert numbered[-1].endswith("-assign-buffers")
        assert {name.partition("-")[2] for name in numbered} <= names
        assert "call k" in (plan / f"{numbered[-1]}.txt").read_text()
