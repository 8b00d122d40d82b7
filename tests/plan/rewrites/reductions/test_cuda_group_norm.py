"""Rows of which several lie along one axis (plan/rewrites/reductions/group_norm.py): group norms
as one kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from superopt.compilation.cuda import load_compiler
from superopt.onnx_io.read.source import read_model
from tests.support.breadth import examples
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import feeds, near, program
from tests.support.gpu.group_norm import operator
from tests.support.gpu.models import drawn, node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


def exported(
    groups: int, *shape: int, behind: bool = False, joined: bool = False
) -> onnx.ModelProto:
    """As torch writes it: an instance norm of groups as channels, then scales of channels; behind:
    SiLU, which is more; joined: of the result and something else."""
    n, c = shape[:2]
    known: dict[str, np.ndarray] = {
        "rows": np.array([n, groups, -1]), "shape": np.array(shape),
        "one": np.ones(groups, np.float32), "none": np.zeros(groups, np.float32),
        "s": drawn(c, *[1] * (len(shape) - 2), of="s"),
        "t": drawn(c, *[1] * (len(shape) - 2), of="t"),
    }  # fmt: skip
    nodes = [
        node("Reshape", "x", "rows", "a"), node("InstanceNormalization", "a", "one", "none", "b"),
        node("Reshape", "b", "shape", "d"), node("Mul", "d", "s", "e"),
    ]  # fmt: skip
    if behind:
        nodes += [node("Add", "e", "t", "f"), node("Sigmoid", "f", "g"), node("Mul", "f", "g", "y")]
    elif joined:
        nodes += [node("Add", "e", "t", "f"), node("Neg", "x", "g"),
                  node("Concat", "f", "g", "y", axis=1)]  # fmt: skip
    else:
        nodes.append(node("Add", "e", "t", "y"))
    return model(nodes, {"x": (F, [*shape])}, ["y"], known)


def between() -> onnx.ModelProto:
    """Convolutions, whose pictures have channels last."""
    m = exported(4, 2, 24, 6, 10)
    w = helper.make_tensor("w", F, [24, 24, 1, 1], drawn(24, 24, scale=0.2, of="w").tobytes(), True)
    for n in m.graph.node:
        for names in (n.input, n.output):
            for k, x in enumerate(names):
                names[k] = {"x": "x1", "y": "y1"}.get(x, x)
    m.graph.node.insert(0, node("Conv", "x", "w", "x1"))
    m.graph.node.append(node("Conv", "y1", "w", "y"))
    m.graph.initializer.append(w)
    return m


def read_elsewhere() -> onnx.ModelProto:
    """The sums are results, too: they stay kernels of their own."""
    m = exported(4, 2, 12, 5, 6)
    m.graph.node.append(node("ReduceMean", "a", "m", axes=[2]))
    m.graph.output.append(helper.make_tensor_value_info("m", F, [2, 4, 1]))
    return m


# A model, and how many kernels it is; None: as many as it takes.
CASES: dict[str, tuple[Callable[[], onnx.ModelProto], int | None]] = {
    "pictures": (lambda: operator(4, 2, 24, 5, 7), 1),
    "signals": (lambda: operator(3, 4, 12, 35), 1),
    "of three dimensions": (lambda: operator(2, 2, 6, 3, 4, 5), 1),
    "a group": (lambda: operator(1, 3, 8, 5, 5), 1),
    "channels alone": (lambda: operator(8, 2, 8, 5, 9), 1),
    "no places": (lambda: operator(4, 6, 24), 1),
    "exported": (lambda: exported(4, 2, 24, 5, 7), 1),
    "exported, a signal": (lambda: exported(4, 2, 24, 33), 1),
    "and more behind it": (lambda: exported(4, 2, 24, 5, 7, behind=True), 1),
    "joined": (lambda: exported(4, 2, 24, 5, 7, joined=True), None),
    "between convolutions": (between, None),
    "sums that are results": (read_elsewhere, None),
}


@pytest.mark.round_robin(3)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_the_same(name: str, precision: str) -> None:
    m = CASES[name][0]()
    x = feeds(m)
    near(load_compiler.compile_model(read_model(m), precision).run(x), reference(m, x), precision)


@pytest.mark.parametrize("name", [name for name, (_, many) in CASES.items() if many is not None])
def test_as_many_kernels(name: str) -> None:
    make, many = CASES[name]
    assert len(program(make()).calls) == many


@examples(15)
@given(data=st.data())
def test_any_groups_of_any_shape(data: st.DataObject) -> None:
    sizes = st.sampled_from([1, 2, 3, 5, 8])
    groups, each, n = (data.draw(sizes) for _ in range(3))
    rest = data.draw(st.lists(sizes, min_size=1, max_size=3))
    make = data.draw(st.sampled_from([operator, exported]))
    m = make(groups, n, groups * each, *rest)  # type: ignore[operator]
    x = feeds(m)
    near(load_compiler.compile_model(read_model(m)).run(x), reference(m, x), "fp32")


def test_few_long_rows_are_of_many_programs() -> None:
    assert len(program(operator(2, 1, 8, 256, 512)).calls) > 1
