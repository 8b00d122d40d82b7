"""The passes of the back end: each has a golden text, and ensures the properties that it names."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import ndiff
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from superopt.ir import graph as ir_graph
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.graph.simplify import simplify_graph
from superopt.plan.passes import PASSES, Pass, initial_plan, observe_passes, pass_table, run_passes
from superopt.plan.program.plan import Plan, Settings
from superopt.plan.program.plan_text import plan_text
from superopt.plan.program.streams import gpu_streams
from superopt.plan.program.target import CPU, Target, gpu_target
from superopt.plan.properties import PROPERTIES, violations
from superopt.te.expr.dtype import F16

GPU = gpu_target(storage_dtype=F16, min_parallel_elements=4224)
FP32 = gpu_target(min_parallel_elements=4224)
STREAMS = gpu_target(assign_streams=lambda *steps: gpu_streams(*steps, max_streams=2))

# By pass: the target, and a graph in ONNX's text syntax; inputs whose names begin with "w" are
# constants, drawn; `lower_triangle` is -inf above the diagonal.
CASES: dict[str, tuple[Target, str]] = {
    "lower-graph": (
        CPU,
        """g (float[4, 8] x, float[8, 6] w) => (float[4, 6] y)
        { t = MatMul(x, w) y = Relu(t) }""",
    ),
    "inline": (
        CPU,
        """g (float[4, 8] x, float[4] w) => (float[8, 4] y)
        { t = Transpose<perm = [1, 0]>(x) y = Add(t, w) }""",
    ),
    "copy-image-outputs": (
        CPU,
        """g (float[1, 16, 8, 8] x, float[16, 16, 3, 3] w) => (float[1, 16, 8, 8] y,
        float[1, 16, 6, 6] z)
        { y = Conv<pads = [1, 1, 1, 1]>(x, w) z = Conv(y, w) }""",
    ),
    "hoist-scales": (
        GPU,
        """g (float[4, 40, 64] x, float[4, 64, 40] z, float w) => (float[4, 40, 40] y)
        { s = Mul(x, w) y = MatMul(s, z) }""",
    ),
    "fuse-concat": (
        GPU,
        """g (float[4, 8] x, float[4, 8] z) => (float[4, 16] y)
        { a = Relu(x) b = Neg(z) y = Concat<axis = 1>(a, b) }""",
    ),
    "inline-casts": (
        FP32,
        """g (float16[4, 64] x) => (float[4] y, float[4, 64] z)
        { t = Cast<to = 1>(x) y = ReduceSum<keepdims = 0>(t, one) z = Exp(t) }""",
    ),
    "fuse-products": (
        GPU,
        """g (float[4, 64] x, float[64, 32] w1, float[64, 32] w2)
        => (float[4, 32] y, float[4, 32] z)
        { a = MatMul(x, w1) b = MatMul(x, w2) y = Softmax<axis = 1>(a)
          z = Softmax<axis = 1>(b) }""",
    ),
    "assign-layouts": (
        CPU,
        """g (float[1, 16, 8, 8] x, float[16, 16, 3, 3] w) => (float[1, 16, 4, 4] y)
        { a = Conv(x, w) b = Relu(a) y = Conv(b, w) }""",
    ),
    "reorder-products": (
        GPU,
        """g (float[40, 64] x, float[64, 32] w) => (float[32, 40] y)
        { t = MatMul(x, w) y = Transpose<perm = [1, 0]>(t) }""",
    ),
    "fuse-cells": (
        GPU,
        """g (float[1, 64] x, float[64, 64] w1, float[64, 64] w2) => (float[1, 64] y)
        { a = MatMul(x, w1) b = MatMul(x, w2) s = Sigmoid(a) f = Mul(a, s) y = Mul(f, b) }""",
    ),
    "fuse-rows": (
        CPU,
        """g (float[4, 64] x) => (float[4, 64] y)
        { y = Softmax<axis = 1>(x) }""",
    ),
    "fuse-attention": (
        GPU,
        """g (float[2, 40, 64] q, float[2, 64, 40] k, float[2, 40, 64] v) => (float[2, 40, 64] y)
        { s = MatMul(q, k) p = Softmax<axis = 2>(s) y = MatMul(p, v) }""",
    ),
    "fuse-group-norm": (
        GPU,
        """g (float[16, 64, 32, 32] x, float[64] w1, float[64] w2) => (float[16, 64, 32, 32] y)
        { y = GroupNormalization<num_groups = 8>(x, w1, w2) }""",
    ),
    "fuse-strided-softmax": (
        GPU,
        """g (float[16, 8, 64, 64] x) => (float[16, 8, 64, 64] y)
        { y = Softmax<axis = 1>(x) }""",
    ),
    "split-channel-reductions": (
        CPU,
        """g (float[1, 32, 16, 16] x, float[32, 32, 3, 3] w) => (float[1, 32, 16, 16] y)
        { a = Conv<pads = [1, 1, 1, 1]>(x, w) m = ReduceMean<keepdims = 1>(a, all)
          y = Sub(a, m) }""",
    ),
    "split-reductions": (
        GPU,
        """g (float[4, 65536] x) => (float[4] y)
        { y = ReduceSum<keepdims = 0>(x, one) }""",
    ),
    "replace-causal-masks": (
        GPU,
        """g (float[2, 40, 64] q, float[2, 64, 40] k, float[2, 40, 64] v) => (float[2, 40, 64] y)
        { s = MatMul(q, k) m = Add(s, lower_triangle) p = Softmax<axis = 2>(m)
          y = MatMul(p, v) }""",
    ),
    "fuse-gates": (
        GPU,
        """g (float[48, 64] x, float[64, 32] w1, float[64, 32] w2) => (float[48, 32] y)
        { a = MatMul(x, w1) b = MatMul(x, w2) s = Sigmoid(a) f = Mul(a, s) y = Mul(f, b) }""",
    ),
    "assign-storage-types": (
        GPU,
        """g (float[4, 64] x, float[64, 32] w) => (float[4, 32] y)
        { t = MatMul(x, w) y = Softmax<axis = 1>(t) }""",
    ),
    "find-zero-sensitive": (
        CPU,
        """g (float[4, 64] x, float[64, 32] w) => (float[4, 32] y)
        { t = MatMul(x, w) y = Reciprocal(t) }""",
    ),
    "select-kernels": (
        CPU,
        """g (float[4, 8] x, float[8, 6] w) => (float[4, 6] y)
        { y = MatMul(x, w) }""",
    ),
    "assign-streams": (
        STREAMS,
        """g (float[4, 64] x, float[4, 64] z) => (float[4, 64] y, float[4, 64] u)
        { y = Softmax<axis = 1>(x) u = Softmax<axis = 0>(z) }""",
    ),
    "assign-buffers": (
        CPU,
        """g (float[4, 8] x, float[8, 6] w) => (float[4, 6] y)
        { t = MatMul(x, w) y = Softmax<axis = 1>(t) }""",
    ),
}
WITHOUT_CASE = {"fuse-tree-walks"}  # its graphs are of hundreds of lines


def parsed(text: str) -> ir_graph.Graph:
    """Return the graph of a case."""
    m = onnx.ModelProto(ir_version=10)
    m.opset_import.add(domain="", version=21)
    m.graph.CopyFrom(parser.parse_graph(text))
    for v in [*m.graph.input]:
        if v.name.startswith("w"):
            shape = [d.dim_value for d in v.type.tensor_type.shape.dim]
            array = np.random.default_rng(len(m.graph.initializer)).standard_normal(shape)
            array = array.astype(np.float32)
            m.graph.initializer.append(numpy_helper.from_array(array, v.name))
            m.graph.input.remove(v)
    known = {
        "one": np.array([1]),
        "all": np.array([1, 2, 3]),
        "lower_triangle": np.where(np.tri(40, dtype=bool), 0, -np.inf).astype(np.float32),
    }
    read = {name for n in m.graph.node for name in n.input}
    for name in known.keys() & read:
        m.graph.initializer.append(numpy_helper.from_array(known[name], name))
    return import_model(read_model(m)).graph


def after_each_pass(graph: ir_graph.Graph, target: Target) -> list[tuple[Pass, str, list[str]]]:
    """Return each pass that ran, the plan after it, and the properties that the plan violates."""
    p = initial_plan(simplify_graph(graph, is_cpu=target is CPU), {}, Settings(64, target=target))
    out: list[tuple[Pass, str, list[str]]] = []
    ensured: set[str] = set()

    def observe(_number: int, each: Pass, p: Plan) -> None:
        ensured.update(each.ensures)
        found = [v for name in sorted(ensured) for v in violations(p, name)]
        out.append((each, plan_text(p), found))

    with observe_passes(observe):
        run_passes(p)
    return out


@pytest.mark.parametrize("name", [each.name for each in PASSES if each.name not in WITHOUT_CASE])
def test_golden_text(name: str, golden: Callable[[str, str], None]) -> None:
    target, text = CASES[name]
    runs = after_each_pass(parsed(text), target)
    assert [v for _, _, found in runs for v in found] == []
    (at,) = [n for n, (each, _, _) in enumerate(runs) if each.name == name]
    before = runs[at - 1][1] if at else ""
    lines = [x for x in ndiff(before.splitlines(), runs[at][1].splitlines()) if x[0] in "-+"]
    assert lines, "the pass changes nothing"
    shown = "\n".join([runs[at][0].summary, "", *lines]) + "\n"
    kernels = list(dict.fromkeys(re.findall(r"\bk[0-9a-f]{20}\b", shown)))
    for n, kernel in enumerate(kernels):  # digests of their code
        shown = shown.replace(kernel, f"k{n}")
    golden(f"passes/{name}.txt", shown)


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
def test_requirements_are_ensured_before(target: Target) -> None:
    ensured: set[str] = set()
    for each in PASSES:
        if each.runs_on(target):
            missing = {*each.requires} - ensured - ({"batch-ranks"} if target is CPU else set())
            assert not missing, f"{each.name} requires {missing}"
            ensured.update(each.ensures)
    assert ensured <= PROPERTIES.keys()


def test_names_and_diagrams() -> None:
    names = [each.name for each in PASSES]
    assert len({*names}) == len(names)
    assert CASES.keys() | WITHOUT_CASE == {*names}
    for each in PASSES:
        assert " => " in each.summary, each.name
        assert len(each.summary) < 80, each.name


def test_the_reference_lists_the_passes(root: Path) -> None:
    page = (root / "docs" / "reference" / "passes.md").read_text()
    shown = page.partition("```\n")[2].partition("```")[0]
    assert shown.strip() == pass_table().strip(), "write the output of `compile --passes` there"


def test_a_violation_is_seen() -> None:
    target, text = CASES["assign-buffers"]
    p = initial_plan(parsed(text), {}, Settings(64, target=target))
    run_passes(p)
    assert not any(violations(p, name) for name in PROPERTIES)
    first, *_ = p.definitions
    p.definitions = dict(reversed(p.definitions.items()))
    assert violations(p, "definitions")
    p.batch_ranks[first] = 9
    assert violations(p, "batch-ranks")
    p.steps = p.steps[1:]
    assert violations(p, "steps")
    p.program = None
    assert violations(p, "program")
