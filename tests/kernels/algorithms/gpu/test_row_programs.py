"""What a kernel of rows keeps of a row, and where."""

from __future__ import annotations

import re

import pytest

import superopt
from superopt.kernels.triton.codegen import triton_text
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import feeds, near
from tests.support.gpu.group_norm import operator
from tests.support.gpu.models import node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


@pytest.mark.parametrize("shape", [(70, 1000), (70, 33), (3, 17000), (2, 40000)])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_rows_are_kept_in_registers(shape: tuple[int, ...], precision: str) -> None:
    """What a softmax keeps of a row is written nowhere; of one that is longer than a block it is
    computed again."""
    m = model([node("Softmax", "x", "y")], {"x": (F, [*shape])}, ["y"], {})
    given = feeds(m)
    exe = superopt.compile(m, target="cuda", precision=precision)
    near(exe.run(given), reference(m, given), precision)
    (kernel,) = exe.variant({}).kernel_steps[0].program.kernels.values()
    assert triton_text(kernel).source.count("tl.store(") == 1


def test_much_work_of_a_long_row_is_kept_in_memory() -> None:
    chain = [f for _ in range(4) for f in ("Erf", "Sin", "Tanh", "Exp", "Neg", "Sigmoid")]
    nodes = [node(f, f"x{n}", f"x{n + 1}") for n, f in enumerate(chain)]
    nodes.append(node("Softmax", f"x{len(chain)}", "y"))
    m = model(nodes, {"x0": (F, [2, 40000])}, ["y"], {})
    given = feeds(m)
    exe = superopt.compile(m, target="cuda")
    near(exe.run(given), reference(m, given), "fp32")
    (kernel,) = exe.variant({}).kernel_steps[0].program.kernels.values()
    assert triton_text(kernel).source.count("tl.store(") == 2


@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (1, 8, 16, 16), (1, 4, 8, 4, 4)])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_rows_of_several_axes_are_kept_in_registers(shape: tuple[int, ...], precision: str) -> None:
    """Those of a group norm, which are one axis in memory: nothing is divided for an address, but
    for the channel."""
    m = operator(2, *shape)
    given = feeds(m)
    exe = superopt.compile(m, target="cuda", precision=precision)
    near(exe.run(given), reference(m, given), precision)
    (kernel,) = exe.variant({}).kernel_steps[0].program.kernels.values()
    text = triton_text(kernel).source
    assert text.count("tl.store(") == 1
    loads = [x for x in text.splitlines() if "tl.load(x0 " in x]
    assert loads
    assert not any(re.search("//|%", x) for x in loads)
