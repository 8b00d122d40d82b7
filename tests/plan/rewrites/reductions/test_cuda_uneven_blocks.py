"""Sums on a GPU of so many terms that no block divides them: the last block goes beyond."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.compilation.cuda import load_compiler
from superopt.kernels.triton.codegen import triton_text
from superopt.onnx_io.read.source import read_model
from superopt.plan.rewrites.reductions import row_occupancy
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import feeds, near
from tests.support.gpu.models import drawn, node
from tests.support.gpu.uneven_blocks import DOTS, OTHERS, normal

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


@pytest.mark.round_robin(4)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("name", [*DOTS, *OTHERS])
def test_the_same(name: str, precision: str) -> None:
    m = {**DOTS, **OTHERS}[name]()
    given = feeds(m)
    if name == "a product of numbers":  # near 1, and exact: of 1031 the errors add up
        given = {"x": (1 + drawn(2, 1031) * 1e-3).astype(np.float32)}
    near(
        load_compiler.compile_model(read_model(m), precision).run(given),
        reference(m, given),
        precision,
    )


@pytest.mark.parametrize("name", DOTS)
def test_tensor_cores_multiply(name: str) -> None:
    for precision in ("tf32", "fp16"):
        exe = load_compiler.compile_model(read_model(DOTS[name]()), precision)
        texts = [
            triton_text(k, exe.device.dot_precision).source
            for k in exe.variant({}).program.kernels.values()
        ]
        assert any("tl.dot(" in x for x in texts)


@pytest.mark.parametrize("name", OTHERS)
def test_no_sum_is_term_by_term(name: str) -> None:
    """Nor of so few at a time that there are more than a hundred steps."""
    exe = load_compiler.compile_model(read_model(OTHERS[name]()))
    texts = [
        triton_text(k, exe.device.dot_precision).source
        for k in exe.variant({}).program.kernels.values()
    ]
    steps = [int(x.split("range(0, ")[1].split(")")[0]) for t in texts for x in t.splitlines()
             if " in range(0, " in x]  # fmt: skip
    assert max(steps, default=0) <= 100


ROW_ELEMENTS = 1 << 13
ALONE = {
    "a softmax": lambda n: model([node("Softmax", "x", "y")], {"x": (F, [1, n])}, ["y"]),
    "a norm": lambda n: normal(1, n),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_large_row_is_of_many_programs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    m = ALONE[name](ROW_ELEMENTS)
    assert len(load_compiler.compile_model(read_model(m)).variant({}).program.kernels) == 1
    monkeypatch.setattr(row_occupancy, "MAX_ROWS_MIN_ELEMENTS", ((1, ROW_ELEMENTS),))
    exe = load_compiler.compile_model(read_model(m))
    near(exe.run(feeds(m)), reference(m, feeds(m)), "fp32")
    made = exe.variant({}).only_step.gpu_program
    reads = [n for _, _, n, given, _ in made.launches if any(a is made.inputs[0] for a in given)]
    assert reads
    assert min(reads) > 8
