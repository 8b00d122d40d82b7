"""Graphs go out and come back as the same objects, and runtimes compute what the graph says."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from superopt.ir import graph as ir_graph
from superopt.ir.evaluate import evaluate
from superopt.ir.op import InferError
from superopt.onnx_io.export.exporter import export_graph, is_expressible
from superopt.onnx_io.import_.constants import SMALL_TENSOR_BYTES
from superopt.ops import OPS
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType
from tests.support.breadth import examples
from tests.support.onnx_io.rounds import imported, session
from tests.support.ops.build import example, operands

NEWEST = onnx.defs.onnx_opset_version()
EXAMPLES = [(name, text) for name, o in OPS.items() for text in o.example]


def exported(graph: ir_graph.Graph, opset: int) -> onnx.ModelProto:
    return onnx_ir.to_proto(export_graph(graph, opset=opset, ir_version=onnx.IR_VERSION))


def again(graph: ir_graph.Graph, opset: int) -> ir_graph.Graph:
    """The graph after export and import, on the same inputs and large constants.

    Constants above a few kilobytes are equal only within a model: they are not read to find out.
    """
    model = imported(exported(graph, opset))
    assert model.opaque_reasons == ()
    assert [(i.name, i.type) for i in model.graph.inputs] == [
        (i.name, i.type) for i in graph.inputs
    ]
    moved: dict[ir_graph.Value, ir_graph.Value] = dict(
        zip(model.graph.inputs, graph.inputs, strict=True)
    )
    large = {
        ir_graph.content_key(c.load()): c
        for c in ir_graph.constants(graph)
        if c.nbytes > SMALL_TENSOR_BYTES
    }
    for c in ir_graph.constants(model.graph):
        if c.nbytes > SMALL_TENSOR_BYTES:
            moved[c] = large[ir_graph.content_key(c.load())]
    outputs = tuple(moved.get(v, v) for v in ir_graph.replace(model.graph, moved).outputs)
    return ir_graph.Graph(graph.inputs, outputs)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "text"), EXAMPLES, ids=lambda v: v.replace(" ", "_"))
def test_every_operator_comes_back(name: str, text: str) -> None:
    o = OPS[name]
    opset = NEWEST if o.domain == "" else 1
    if not is_expressible(o, opset):
        pytest.skip(f"not in opset {opset} of domain {o.domain!r}")
    types, attrs = example(text)
    inputs = operands(types)
    n = ir_graph.node(o, inputs, **attrs)
    graph = ir_graph.Graph(inputs, ir_graph.results(n))
    if name == "MeanVarianceNormalization":
        pytest.skip("onnx's checker refuses every model with it: its own function body is invalid")
    for new, old in zip(again(graph, NEWEST).outputs, graph.outputs, strict=True):
        if isinstance(new, ir_graph.Constant) and new is not old:  # import follows small integers
            assert new.type == old.type
            assert name in ("Dropout", "Range", "Shape", "Size")
            feeds = {i.name: np.zeros(i.type.shape, "f") for i in inputs}  # type: ignore[arg-type]
            np.testing.assert_array_equal(
                new.load(), evaluate(ir_graph.Graph(inputs, (old,)), feeds)[0]
            )
        else:
            assert new is old


# --- random graphs --------------------------------------------------------------------------------

N = Size("n")
SHAPES = ((2, 3), (N, 3), (3, 3), (N, 2, 3), (3,))
UNARY = ("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Exp", "Erf", "Floor", "Softplus", "Identity")
BINARY = ("Add", "Mul", "Sub", "Max", "Min")
Step = Callable[[list[ir_graph.Value]], ir_graph.Value]


def _reshape(v: ir_graph.Value, pick: int) -> ir_graph.Value:
    shape = v.type.shape or ()
    if pick % 2:
        return ir_graph.node(OPS["Flatten"], [v], axis=pick % (len(shape) + 1))
    return ir_graph.node(OPS["Reshape"], [v], shape=(*shape[:-1], 1, *shape[-1:]))


def _moved(v: ir_graph.Value, pick: int) -> ir_graph.Value:
    rank = len(v.type.shape or ())
    match pick % 5:
        case 0:
            return ir_graph.node(OPS["Transpose"], [v], perm=tuple(reversed(range(rank))))
        case 1:
            return ir_graph.node(OPS["Unsqueeze"], [v], axes=(pick % (rank + 1),))
        case 2:
            return ir_graph.node(OPS["Slice"], [v], axes=(rank - 1,), starts=(1,), ends=(2,))
        case 3:
            return ir_graph.node(OPS["Concat"], [v, v], axis=pick % rank)
        case _:
            return ir_graph.node(OPS["Expand"], [v], shape=(2, *(v.type.shape or ())))


def _reduced(v: ir_graph.Value, pick: int) -> ir_graph.Value:
    rank = len(v.type.shape or ())
    name = ("ReduceSum", "ReduceMax", "ReduceMean", "Softmax")[pick % 4]
    axis = (pick // 4) % rank
    if name == "Softmax":
        return ir_graph.node(OPS[name], [v], axis=axis)
    return ir_graph.node(OPS[name], [v], axes=(axis,), keepdims=pick % 2)


@st.composite
def graphs(draw: st.DrawFn) -> ir_graph.Graph:
    """Graphs of up to a dozen nodes on float inputs and constants, one size symbolic."""
    inputs = [
        ir_graph.Input(f"x{k}", TensorType(F32, draw(st.sampled_from(SHAPES)))) for k in range(2)
    ]
    values: list[ir_graph.Value] = [*inputs]
    for k in range(draw(st.integers(0, 2))):
        size = draw(st.sampled_from([(3,), (3, 3), (), (40, 40)]))
        values.append(
            ir_graph.constant(np.linspace(-1, k, int(np.prod(size))).reshape(size).astype("f"))
        )
    made: list[ir_graph.Value] = []
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["unary", "binary", "matmul", "reshape", "move", "reduce"]))
        v, w = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        pick = draw(st.integers(0, 99))
        try:
            match kind:
                case "unary":
                    new = ir_graph.node(OPS[UNARY[pick % len(UNARY)]], [v])
                case "binary":
                    new = ir_graph.node(OPS[BINARY[pick % len(BINARY)]], [v, w])
                case "matmul":
                    new = ir_graph.node(OPS["MatMul"], [v, w])
                case "reshape":
                    new = _reshape(v, pick)
                case "move":
                    new = _moved(v, pick)
                case _:
                    new = _reduced(v, pick)
        except (InferError, ZeroDivisionError):
            continue  # the operands do not fit
        made.append(new)
        values.append(new)
    assume(made)
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3))
    return ir_graph.Graph(tuple(inputs), tuple(dict.fromkeys(outputs)))


@given(graphs(), st.sampled_from([13, 14, 17, 18, 21]))
@examples(150)
def test_graphs_come_back_as_the_same_objects(graph: ir_graph.Graph, opset: int) -> None:
    assert again(graph, opset) == graph


@given(graphs(), st.sampled_from([13, 17, 21]), st.integers(1, 4), st.integers(0, 99))
@examples(150)
def test_runtimes_compute_what_the_graph_says(
    graph: ir_graph.Graph, opset: int, n: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    feeds = {
        i.name: rng.standard_normal([n if d == N else d for d in i.type.shape or ()]).astype("f")
        for i in graph.inputs
    }
    proto = exported(graph, opset)
    proto.ir_version = 10  # what the runtime knows
    run = session(proto)
    for got, wanted in zip(run.run(None, feeds), evaluate(graph, feeds), strict=True):
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=1e-5)
