"""Cutting graphs at opaque nodes, and comparing what is left."""

import numpy as np
import pytest

from superopt.check.numeric_check import (
    NotEvaluable,
    PlaceResult,
    Reference,
    are_near_ties,
    compare_candidate,
    evaluate_outputs,
    reference_values,
)
from superopt.check.opaque_regions import (
    UnmatchedOpaqueNode,
    cut_at_opaque_nodes,
    cut_candidate,
    draw_opaque_results,
    opaque_nodes,
)
from superopt.check.random_inputs import Feeds
from superopt.ir import graph as ir_graph
from superopt.ir.op import Op, Payload
from superopt.ops import OPS
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F32, F64, I64
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType

SECRET = Op("Secret", None, domain="acme")
MATRIX = TensorType(F32, (2, 3))


def relu(x: ir_graph.Value) -> ir_graph.Value:
    return ir_graph.node(OPS["Relu"], [x])


def secret(x: ir_graph.Value, label: str, *types: TensorType) -> ir_graph.Node:
    return ir_graph.opaque_node(SECRET, [x], Payload(object(), label), types or (MATRIX,))


def same_secret(n: ir_graph.Node, x: ir_graph.Value) -> ir_graph.Node:
    """The opaque node on another operand, as a rewrite leaves it."""
    return ir_graph.intern_node(n.op, (x,), n.attrs, n.types)


def feed(**arrays: np.ndarray) -> Feeds:
    return Feeds("normal", {k: np.asarray(v, np.float32) for k, v in arrays.items()}, {})


X = ir_graph.Input("x", MATRIX)
ONES = np.arange(6.0).reshape(2, 3) - 3


def test_an_opaque_node_becomes_an_input_and_its_operand_a_place() -> None:
    n = secret(relu(relu(X)), "s")
    regions = cut_at_opaque_nodes(ir_graph.Graph((X,), (relu(n),)), ["y"])
    assert [(p.name, p.is_output) for p in regions.observed] == [
        ("y", True),
        ("input 0 of s", False),
    ]
    assert opaque_nodes(regions.graph) == []
    (free,) = (i for some in regions.opaque_results.values() for i in some)
    assert free.name == "result 0 of s"
    assert regions.graph.outputs == (relu(free), relu(relu(X)))


def test_a_rewritten_graph_is_cut_at_the_same_places() -> None:
    n = secret(relu(relu(X)), "s")
    original = ir_graph.Graph((X,), (relu(relu(n)),))
    regions = cut_at_opaque_nodes(original, ["y"])
    new = same_secret(n, relu(X))
    parted, values = cut_candidate(regions, ir_graph.Graph((X,), (relu(new),)))
    (free,) = (i for some in regions.opaque_results.values() for i in some)
    assert parted.outputs == (relu(free), relu(X))
    assert values == (relu(new), relu(X))


def test_a_result_of_unknown_type_is_read_by_opaque_nodes_only() -> None:
    n = secret(X, "s", TensorType(None, None))
    last = ir_graph.opaque_node(SECRET, [n, relu(X)], Payload(object(), "t"), (MATRIX,))
    regions = cut_at_opaque_nodes(ir_graph.Graph((X,), (relu(last),)), ["y"])
    given = {"result 0 of s": ONES, "result 0 of t": ONES}
    y, *operands = evaluate_outputs(regions.graph, feed(x=ONES), given, Reals(F64))
    assert y is not None
    assert y.tolist() == np.maximum(ONES, 0).tolist()
    assert len(operands) == 2  # that of s, and the one of t whose type is known


def test_an_opaque_node_that_nothing_reads_any_more_has_no_place() -> None:
    n = secret(relu(X), "s")
    regions = cut_at_opaque_nodes(ir_graph.Graph((X,), (ir_graph.node(OPS["Sub"], [n, n]),)), ["y"])
    parted, values = cut_candidate(regions, ir_graph.Graph((X,), (X,)))
    assert values == (X, None)
    assert parted.outputs[1] is regions.graph.outputs[1]


def test_an_opaque_node_may_not_be_doubled_or_new() -> None:
    n = secret(relu(X), "s")
    regions = cut_at_opaque_nodes(ir_graph.Graph((X,), (n, relu(n))), ["y", "z"])
    with pytest.raises(UnmatchedOpaqueNode, match="twice"):
        cut_candidate(regions, ir_graph.Graph((X,), (n, relu(same_secret(n, X)))))
    with pytest.raises(UnmatchedOpaqueNode, match="new"):
        cut_candidate(regions, ir_graph.Graph((X,), (secret(X, "t"), X)))
    with pytest.raises(UnmatchedOpaqueNode, match="outputs"):
        cut_candidate(regions, ir_graph.Graph((X,), (n,)))


def test_names_of_results_do_not_collide_with_inputs() -> None:
    x = ir_graph.Input("result 0 of s", MATRIX)
    n = secret(x, "s")
    regions = cut_at_opaque_nodes(ir_graph.Graph((x,), (n,)), ["y"])
    names = [i.name for i in regions.graph.inputs]
    assert len(set(names)) == 2


def test_results_are_drawn_where_no_runtime_gives_them() -> None:
    known = TensorType(I64, (Size("found"), 2))
    n = secret(X, "s", known, TensorType(F32, None), TensorType(None, None))
    gathered = ir_graph.node(OPS["Gather"], [X, ir_graph.result(n, 0)], axis=0)
    regions = cut_at_opaque_nodes(
        ir_graph.Graph((X,), (gathered, ir_graph.result(n, 1))), ["y", "z"]
    )
    found = draw_opaque_results(regions, feed(x=ONES), ["found"], 0)
    assert list(found) == ["result 0 of s"]
    assert found["result 0 of s"].shape == (3, 2)
    assert found["result 0 of s"].max() <= 1  # an index into two rows
    free = {**found}
    exact = evaluate_outputs(regions.graph, feed(x=ONES), free, Reals(F64))
    assert exact[0] is not None
    assert exact[1] is None  # its rank is not known


def compared(
    original: ir_graph.Graph, candidate: ir_graph.Graph, found: object = None
) -> list[PlaceResult | str]:
    regions = cut_at_opaque_nodes(original, [f"y{n}" for n in range(len(original.outputs))])
    parted, _ = cut_candidate(regions, candidate)
    ref = reference_values(
        regions, feed(x=ONES), draw_opaque_results(regions, feed(x=ONES), [], 0), None
    )
    return compare_candidate(ref, regions, parted, found)  # type: ignore[arg-type]


def test_a_right_rewrite_passes_and_a_wrong_one_fails() -> None:
    n = secret(relu(relu(X)), "s")
    original = ir_graph.Graph((X,), (relu(relu(n)),))
    right = ir_graph.Graph((X,), (relu(same_secret(n, relu(X))),))
    results = compared(original, right)
    assert [(r.place, r.compared.failure) for r in results if isinstance(r, PlaceResult)] == [
        *(("y0", ""), ("input 0 of s", ""))
    ]
    wrong = ir_graph.Graph((X,), (relu(relu(same_secret(n, X))),))
    bad = [
        r for r in compared(original, wrong) if isinstance(r, PlaceResult) and r.compared.failure
    ]
    assert [r.place for r in bad] == ["input 0 of s"]  # before the opaque node, not behind it


def test_what_is_the_same_value_is_not_compared() -> None:
    graph = ir_graph.Graph((X,), (relu(X), X))
    other = ir_graph.Graph((X,), (relu(relu(X)), X))
    assert [r.place for r in compared(other, graph) if isinstance(r, PlaceResult)] == ["y0"]


def test_what_cannot_be_evaluated_is_said() -> None:
    unknown = secret(X, "s", TensorType(F32, None))
    (line, *_) = compared(ir_graph.Graph((X,), (unknown,)), ir_graph.Graph((X,), (relu(X),)))
    assert line == "y0: it depends on a node whose results are unknown"


def test_an_original_without_a_value_is_unrunnable() -> None:
    i = ir_graph.Input("x", TensorType(I64, (1,)))
    table = ir_graph.constant(np.ones(3, np.float32))
    regions = cut_at_opaque_nodes(
        ir_graph.Graph((i,), (ir_graph.node(OPS["Gather"], [table, i], axis=0),)), ["y"]
    )
    bad = Feeds("given", {"x": np.array([7])}, {})
    with pytest.raises(NotEvaluable):
        reference_values(regions, bad, {}, None)


def largest(x: ir_graph.Value) -> ir_graph.Value:
    return ir_graph.node(OPS["ArgMax"], [x], axis=1, keepdims=0, select_last_index=0)


def ties(elements: int, wrong: int) -> bool:
    """Is a runtime forgiven that says another index in `wrong` of `elements` rows?"""
    x = ir_graph.Input("x", TensorType(F32, (elements, 2)))
    regions = cut_at_opaque_nodes(ir_graph.Graph((x,), (largest(relu(relu(x))),)), ["y"])
    candidate, _ = cut_candidate(regions, ir_graph.Graph((x,), (largest(relu(x)),)))
    arrays = np.random.default_rng(0).standard_normal((elements, 2)).astype(np.float32)
    ref = reference_values(regions, Feeds("normal", {"x": arrays}, {}), {}, None)
    (own,) = ref.native
    assert own is not None
    found = own.copy()
    found[:wrong] = 1 - found[:wrong]
    failed = [
        r
        for r in compare_candidate(ref, regions, candidate, (found,))
        if isinstance(r, PlaceResult)
    ]
    assert bool(failed[0].compared.failure) == bool(wrong)
    return are_near_ties(ref, regions, candidate, (found,), failed)


def test_integers_that_rounding_decides_may_differ_in_one_element_of_a_thousand() -> None:
    assert ties(3000, 3)
    assert not ties(3000, 4)
    assert not ties(1, 1)


def test_a_wrong_integer_is_no_tie() -> None:
    x = ir_graph.Input("x", TensorType(F32, (2000, 2)))
    regions = cut_at_opaque_nodes(ir_graph.Graph((x,), (largest(relu(relu(x))),)), ["y"])
    wrong, _ = cut_candidate(
        regions, ir_graph.Graph((x,), (largest(x),))
    )  # another index where both are < 0
    arrays = np.full((2000, 2), 1.0, np.float32)
    arrays[0] = (-2, -1)
    ref = reference_values(regions, Feeds("normal", {"x": arrays}, {}), {}, None)
    failed = [r for r in compare_candidate(ref, regions, wrong, None) if isinstance(r, PlaceResult)]
    assert failed[0].compared.failure
    (found,) = evaluate_outputs(wrong, ref.feed, {}, Reals())
    assert not are_near_ties(ref, regions, wrong, (found,), failed)


def test_a_float_is_never_a_tie() -> None:
    regions = cut_at_opaque_nodes(ir_graph.Graph((X,), (relu(relu(X)),)), ["y"])
    candidate, _ = cut_candidate(regions, ir_graph.Graph((X,), (relu(X),)))
    ref = reference_values(regions, feed(x=ONES), {}, None)
    wrong = (np.full((2, 3), 9, np.float32),)
    failed = [
        r for r in compare_candidate(ref, regions, candidate, wrong) if isinstance(r, PlaceResult)
    ]
    assert not are_near_ties(ref, regions, candidate, wrong, failed)


def test_the_reference_takes_the_runtimes_values_for_the_originals_own() -> None:
    regions = cut_at_opaque_nodes(ir_graph.Graph((X,), (relu(X),)), ["y"])
    own = np.full((2, 3), 5, np.float32)
    ref = reference_values(regions, feed(x=ONES), {}, (own,))
    assert isinstance(ref, Reference)
    assert ref.native == (own,)
    assert ref.exact[0] is not None
    assert np.array_equal(ref.exact[0], np.maximum(ONES, 0))
