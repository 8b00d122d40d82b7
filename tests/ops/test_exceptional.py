"""NaN, infinities, signed zeros and ties: docs/reference/exceptional_values.md, tested."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest

import superopt
from superopt import ort
from superopt.ir import graph as ir_graph
from superopt.ir.constant_folding import fold_constants
from superopt.ir.evaluate import evaluate
from superopt.ir.op import expression
from superopt.ir.substitute import substitute_values
from superopt.kernels.runtime.cpu import converts_float16, host
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.te.eval.reference import Scalar, reference_elements
from superopt.te.expr.dtype import to_numpy
from tests.support.ops.exceptional import (
    DYNAMIC,
    FLOATS,
    INF,
    KINDS,
    RULES,
    Array,
    Rule,
    check,
    check_dynamic,
    dynamic_model,
    feeds,
    model,
    outputs,
    table,
)
from tests.support.paths import ROOT

DOCS = ROOT / "docs" / "reference"


def _each_rule(*kinds: str) -> pytest.MarkDecorator:
    """A test for each rule and each of these element types that it has."""
    pairs = [
        pytest.param(rule, kind, id=f"{rule.operators}-{kind}")
        for rule in RULES
        for kind in kinds
        if outputs(rule, kind)
    ]
    return pytest.mark.parametrize(("rule", "kind"), pairs)


def _graph(rule: Rule, kind: str, few: bool = False) -> tuple[ir_graph.Graph, list[str]]:
    graph = import_model(read_model(model(rule, kind, few))).graph
    return graph, [o.name for o in outputs(rule, kind, few)]


@_each_rule(*KINDS)
def test_by_numpy(rule: Rule, kind: str) -> None:
    graph, names = _graph(rule, kind)
    with np.errstate(all="ignore"):
        got = evaluate(graph, feeds(kind))
    check(rule, kind, dict(zip(names, got, strict=True)))


@_each_rule(*KINDS)
def test_folded(rule: Rule, kind: str) -> None:
    graph, names = _graph(rule, kind)
    given = feeds(kind)
    change: dict[ir_graph.Value, ir_graph.Value] = {
        i: ir_graph.constant(given[i.name]) for i in graph.inputs
    }
    known, _ = substitute_values(graph, change, recursive=False)
    done = fold_constants(known, limit_bytes=1 << 24).graph
    assert all(isinstance(v, ir_graph.Constant) for v in done.outputs)
    got = [v.load() for v in done.outputs if isinstance(v, ir_graph.Constant)]
    check(rule, kind, dict(zip(names, got, strict=True)))


def _naive(graph: ir_graph.Graph, given: Mapping[str, Array]) -> list[Array]:
    known: dict[ir_graph.Value, Array] = {i: given[i.name] for i in graph.inputs}

    def of(v: ir_graph.Value) -> Array:
        return v.load() if isinstance(v, ir_graph.Constant) else known[v]

    for n in ir_graph.nodes(graph):
        types = tuple(None if v is None else v.type for v in n.inputs)
        read_ = {f"a{k}": _reader(of(v)) for k, v in enumerate(n.inputs) if v is not None}
        for v, t in zip(ir_graph.results(n), expression(n.op, types, n.attrs), strict=True):
            known[v] = reference_elements(t, read_).astype(to_numpy(t.dtype))
    return [of(v) for v in graph.outputs]


def _reader(array: Array) -> Callable[[tuple[int, ...]], Scalar]:
    held = array.astype(object)  # of Python's numbers
    return lambda i: held[i]


@_each_rule("float", "int64")
def test_element_by_element(rule: Rule, kind: str) -> None:
    """In Python's numbers, of which integers have no signs of zeros."""
    graph, names = _graph(rule, kind, few=True)
    got = _naive(graph, feeds(kind, few=True))
    check(rule, kind, dict(zip(names, got, strict=True)), zeros=False, few=True)


@pytest.mark.one_in(5)
@_each_rule(*KINDS)
def test_compiled(rule: Rule, kind: str) -> None:
    _check_compiled(rule, kind, "E2")


@pytest.mark.one_in(4)
@_each_rule(*FLOATS)
def test_compiled_with_each_operator_rounded(rule: Rule, kind: str) -> None:
    _check_compiled(rule, kind, "E1")


def _check_compiled(rule: Rule, kind: str, float_class: str) -> None:
    if kind == "float16" and not converts_float16(host()):
        pytest.skip("the target CPU has no instructions for float16")
    exe = superopt.compile(model(rule, kind), float_class=float_class)
    assert not exe.fallback_nodes({})
    check(rule, kind, exe.run(feeds(kind)))


@pytest.mark.parametrize(("x", "y", "scale", "zero"), DYNAMIC)
def test_dynamic_quantization(x: list[float], y: list[int], scale: float, zero: int) -> None:
    m, given = dynamic_model(len(x)), {"x": np.array(x, np.float32)}
    for float_class in ("E1", "E2"):
        exe = superopt.compile(m, float_class=float_class)
        check_dynamic(exe.run(given), y, scale, zero)
        assert not exe.fallback_nodes({})
    with np.errstate(all="ignore"):
        got = evaluate(import_model(read_model(m)).graph, given)
    check_dynamic(dict(zip("ysz", got, strict=True)), y, scale, zero)
    if not np.isnan(x).any():
        check_dynamic(ort.run(ort.load_session(m.SerializeToString()), given), y, scale, zero)


def test_what_runs_in_onnxruntime_gives_what_that_gives() -> None:
    m = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[8] x) => (float[N] y, int64[M] i)'
        " { y, i = Unique(x) }"
    )
    given = {"x": np.array([3, 1, -0.0, 0.0, INF, -INF, 1, 3], np.float32)}
    exe = superopt.compile(m)
    got, wanted = exe.run(given), ort.run(ort.load_session(m.SerializeToString()), given)
    assert [n.op.name for n, _ in exe.fallback_nodes({})] == ["Unique"]
    for name in "yi":
        np.testing.assert_array_equal(got[name], wanted[name])
    np.testing.assert_array_equal(got["y"], [-INF, 0, 1, 3, INF])


def test_the_page_has_this_table() -> None:
    assert table() in (DOCS / "exceptional_values.md").read_text()
