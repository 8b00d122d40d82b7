"""fp16 and bf16 values that decide are rounded to their type first, on every target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

import superopt
from superopt.ir.graph import Node
from superopt.ir.rounding_sensitive import rounding_sensitive_values
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.graph.partition import partition
from tests.support.ops.rounding_decisions import (
    CASES,
    KINDS,
    Case,
    check,
    drawn,
    model,
)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("float_class", ["E1", "E2"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_on_processors(name: str, kind: str, float_class: str) -> None:
    case, (a, b) = CASES[name], drawn(kind)
    exe = superopt.compile(model(case, kind), float_class=float_class)
    assert not exe.fallback_nodes({})
    check(exe(a=a, b=b)["y"], case, kind)


def _decisive(nodes: str) -> set[str]:
    """The operators whose results are rounded."""
    m = model(Case(nodes, lambda a, b: a), "float16")
    graph = import_model(read_model(m)).graph
    return {v.op.name for v in rounding_sensitive_values(graph) if isinstance(v, Node)}


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ("t = Add(a, b) u = Sigmoid(t) y = Mul(u, b)", ""),
        ("t = Add(a, b) u = Add(t, a) v = Relu(u) y = Max(v, t)", ""),  # as residual networks do
        ("t = Softmax(a) u = Mul(t, b) r = Relu(u) w = Floor(r) y = Mul(w, a)",
         "Softmax Mul Relu"),
        ("t = Add(a, b) u = Softmax(t) w = Floor(u) y = Mul(w, a)", "Softmax"),
        ("t = Add(a, b) u = Exp(t) v = Sub(u, a) w = Exp(v) y = Sub(w, u)", ""),
        ("t = Add(a, b) u = Sub(t, b) y = Exp(u)", "Add"),
    ],
)  # fmt: skip
def test_what_is_rounded(nodes: str, wanted: str) -> None:
    assert _decisive(nodes) == set(wanted.split())


def _float(shape: Sequence[int]) -> str:
    return f"float16[{', '.join(map(str, shape))}]"


def test_what_operators_outside_of_a_segment_decide_by() -> None:
    """A TopK of many elements runs in ONNX Runtime: the kernels before it round for it."""
    shape = (128, 4096)
    m = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({_float(shape)} a, {_float(shape)} b)'
        f" => ({_float((128, 9))} v, int64[128, 9] y)"
        " { t = Mul(a, b) u = Mul(t, a) k = Constant<value_ints=[9]>() v, y = TopK(u, k) }"
    )
    graph = import_model(read_model(m)).graph
    first, last = partition(graph, lambda n: n.op.name != "TopK")
    assert (first.sensitive_outputs, last.sensitive_outputs) == ((0,), ())
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(0.6, 1.9, shape).astype(np.float16) for _ in "ab")
    exe = superopt.compile(m)
    got = exe(a=a, b=b)
    assert [n.op.name for n, _ in exe.fallback_nodes({})] == ["TopK"]
    wanted = np.argsort(-((a * b) * a).astype("f"), 1, kind="stable")[:, :9]
    np.testing.assert_array_equal(got["y"], wanted)
