"""Costs in onnxruntime are of the nodes that it runs: what it fuses costs nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from superopt.cost import runtime_plans
from superopt.cost.graph_cost import roofline_cost_model
from superopt.cost.runtime_plans import RuntimePlans
from superopt.ir import graph as ir_graph
from superopt.ir.stand_ins import shrink_tables, stand_in
from superopt.onnx_io import runtime_nodes
from superopt.onnx_io.export import stand_in_file
from superopt.rules.library.load import load_library
from superopt.search.hill_climb import hill_climb
from superopt.search.move import Refusals
from superopt.search.plan_costs import PlanCosts
from superopt.search.rule_set import rule_set
from superopt.te.expr.dtype import F32, I64
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType
from tests.support.ir.graphs import op, value, weight

X = value("x", 1, 32, 28, 28)


def plans(**sizes: int) -> RuntimePlans:
    return RuntimePlans(opset=13, ir_version=8, threads=1, sizes=sizes)


def conv(x: ir_graph.Value, seed: int = 0) -> ir_graph.Node:
    return op("Conv", x, weight(seed, 32, 32, 3, 3), pads=(1, 1, 1, 1))


def number(v: float) -> ir_graph.Constant:
    return ir_graph.constant(np.float32(v).reshape(()))


def hard_swish(x: ir_graph.Value) -> ir_graph.Node:
    clip = op("Clip", op("Add", x, number(3.0)), number(0.0), number(6.0))
    return op("Div", op("Mul", x, clip), number(6.0))


def names(found: RuntimePlans, *outputs: ir_graph.Value) -> list[str]:
    """The operators that onnxruntime runs, without the changes of layout at the ends."""
    counts = found.kernels_of(ir_graph.Graph((X,), outputs))
    assert counts is not None
    some = (k.split("(")[0].split(".")[-1] for k, n in counts.items() for _ in range(n))
    return sorted(name for name in some if not name.startswith("Reorder"))


def test_what_onnxruntime_fuses_costs_nothing() -> None:
    found = plans()
    assert names(found, op("Relu", conv(X))) in (["Conv"], ["FusedConv"])
    assert names(found, op("Relu", X)) == ["Relu"]


def test_equal_nodes_of_all_graphs_are_one() -> None:
    found = plans()
    first = found.kernels_of(ir_graph.Graph((X,), (conv(X, 0),)))
    again = found.kernels_of(ir_graph.Graph((X,), (conv(X, 1),)))
    assert first == again
    assert found.planned_count == 2
    assert found.plan_us(ir_graph.Graph((X,), (conv(X, 0),))) > 0
    assert found.planned_count == 2


def test_symbolic_sizes_are_numbers_in_the_plan() -> None:
    x = ir_graph.Input("x", TensorType(F32, (Size("n"), 4)))
    graph = ir_graph.Graph((x,), (op("Relu", x),))
    (key,) = plans(n=3).kernels_of(graph) or {}
    assert "[3, 4]" in key
    assert plans(m=3).kernels_of(graph) is None


def test_a_graph_that_onnxruntime_does_not_run_has_no_plan() -> None:
    x = ir_graph.Input("x", TensorType(F32, (2,)))
    old = RuntimePlans(opset=7, ir_version=8, threads=1, sizes={})
    assert old.kernels_of(ir_graph.Graph((x,), (op("Erf", x),))) is None  # not in opset 7


def test_nodes_are_compared_in_turns() -> None:
    found = plans()
    small = found.kernels_of(ir_graph.Graph((X,), (op("Relu", X),)))
    large = found.kernels_of(ir_graph.Graph((X,), (conv(X),)))
    assert small is not None
    assert large is not None
    assert found.known_ratio(small, large) is None
    found.compare(small, large)
    ratio = found.known_ratio(small, large)
    assert ratio is not None
    assert ratio > 2
    found.compare(large, small)
    assert found.known_ratio(large, small) == pytest.approx(1 / ratio)
    found.compare({}, large)
    assert found.known_ratio({}, large) is None


def test_nothing_is_compared_once_the_time_is_over() -> None:
    found = plans()
    some = found.kernels_of(ir_graph.Graph((X,), (op("Relu", X),)))
    assert some is not None
    found.is_over = lambda: True
    assert not found.measure(some)
    found.compare(some, some)
    assert found.known_ratio(some, some) is None


def test_an_activation_that_breaks_blocked_layouts_is_replaced() -> None:
    graph = ir_graph.Graph((X,), (conv(hard_swish(conv(X, 0)), 1),))
    found = plans()
    costs = PlanCosts({}, roofline_cost_model(1), planner=found)
    rules = rule_set(r for r in load_library() if r.name == "hard-swish-clip-parts")
    after, steps, _ = hill_climb(graph, rules, costs, Refusals(), stop=lambda: False)
    assert [s.rule for s in steps] == ["hard-swish-clip-parts"]
    assert {"Clip", "Div"}.isdisjoint(names(found, *after.outputs))
    assert costs.run_cost(after) < costs.run_cost(graph)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_those_of_the_session(threads: int) -> None:
    found = RuntimePlans(opset=13, ir_version=8, threads=threads, sizes={})
    assert names(found, op("Relu", X)) == ["Relu"]


def test_a_graph_of_large_weights_has_no_plan_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ir_graph.Graph((X,), (conv(X),))
    assert plans().kernels_of(graph) is not None
    monkeypatch.setattr(runtime_plans, "MAX_PLANNED_BYTES", 4 * 32 * 32 * 3 * 3 - 1)
    assert plans().kernels_of(graph) is None


def test_weights_in_a_file_change_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ir_graph.Graph((X,), (op("Relu", conv(op("Relu", conv(X)), 1)),))
    inline = plans().kernels_of(graph)
    for module in (stand_in_file, runtime_nodes):
        monkeypatch.setattr(module, "MIN_SHARED_BYTES", 1)
    found = plans()
    assert found.kernels_of(graph) == inline
    assert isinstance(found._export(graph), Path)
    single = dict.fromkeys(inline or {}, 1)
    found.compare(single, dict.fromkeys(single, 2))  # in turns, with weights of the file
    assert (found.known_ratio(single, dict.fromkeys(single, 2)) or 0) > 1


def test_tables_of_which_rows_are_read_are_smaller_in_a_plan() -> None:
    ids = ir_graph.Input("ids", TensorType(I64, (3,)))
    table = stand_in(weight(0, 4096, 16), 0)
    rows = ir_graph.Graph((ids,), (op("Gather", table, ids),))
    (c,) = ir_graph.constants(shrink_tables(rows, 64 * 1024))
    assert c.type.shape == (1024, 16)
    both = ir_graph.Graph((ids,), (op("Gather", table, ids), op("Relu", table)))
    assert shrink_tables(both, 64 * 1024) == both
    assert shrink_tables(rows, 1 << 20) == rows
