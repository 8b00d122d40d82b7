"""The text of graphs: what it looks like, and that it parses back to the same graph."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.errors import ExitCode, UsageError
from superopt.ir.graph import (
    Constant,
    Graph,
    Input,
    Node,
    constant,
    constants,
    node,
    nodes,
    opaque_node,
    result,
    results,
)
from superopt.ir.op import Op, Payload
from superopt.ir.syntax import expression, parse_attr, parse_type, show_attr, show_type
from superopt.ir.text import constant_label, explicit_attrs, parse_graph, show_graph
from superopt.ops import OPS
from superopt.te.expr.dtype import BF16, BOOL, DTYPES, F16, F32, I64, U4, to_numpy
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType
from tests.support.breadth import examples
from tests.support.ir.random_graphs import graphs
from tests.support.ops.build import example, operands

TEXT = """\
graph {
  x: f32[batch, 3, 8, 8]
  "in.1": f32[...]
  w = const f32[4, 3, 3, 3] "blake2:LABEL"
  c0 = const f32[2] [0.5, -1.0]
  %0 = Conv(x, w, pads=(1, 1, 1, 1), strides=(2, 2))
  %1, %2 = Split(%0, axis=1, split=(3, 1))
  %3 = Relu(%2)
  %4 = Reshape(%3, shape=(batch * 8, 2))
  %5 = Mul(%4, c0)
  return %1, %5, "in.1"
}
"""


def conv_graph() -> tuple[Graph, Constant]:
    batch = Size("batch")
    x = Input("x", TensorType(F32, (batch, 3, 8, 8)))
    y = Input("in.1", TensorType(F32, None))
    w = constant(np.arange(108, dtype=np.float32).reshape(4, 3, 3, 3))
    conv = node(OPS["Conv"], [x, w], strides=(2, 2), pads=(1, 1, 1, 1))
    split = node(OPS["Split"], [conv], axis=-3, split=(3, 1))
    relu = node(OPS["Relu"], [result(split, 1)])
    flat = node(OPS["Reshape"], [relu], shape=(-1, 2))
    out = node(OPS["Mul"], [flat, constant(np.array([0.5, -1.0], np.float32))])
    return Graph((x, y), (result(split, 0), out, y)), w


def same_inputs(g: Graph) -> dict[str, Input]:
    return {i.name: i for i in g.inputs}


def labels(g: Graph) -> dict[str, Constant]:
    return {constant_label(c): c for c in constants(g)}


def test_the_text_of_a_graph() -> None:
    g, w = conv_graph()
    expected = TEXT.replace("blake2:LABEL", constant_label(w))
    assert show_graph(g, {w: "w"}) == expected
    again = parse_graph(expected, OPS, constants=labels(g), inputs=same_inputs(g))
    assert again == g
    assert again.outputs[1] is g.outputs[1]


def test_inputs_that_are_not_given_are_made() -> None:
    g, w = conv_graph()
    text = show_graph(g, {w: "w"})
    fresh = parse_graph(text, OPS, constants=labels(g))
    assert fresh != g
    assert [(i.name, i.type) for i in fresh.inputs] == [(i.name, i.type) for i in g.inputs]
    assert show_graph(fresh, {w: "w"}) == text


@examples(200)
@given(graphs())
def test_print_and_parse_is_the_identity(g: Graph) -> None:
    text = show_graph(g)
    again = parse_graph(text, OPS, constants=labels(g), inputs=same_inputs(g))
    assert again == g
    assert show_graph(again) == text


EXAMPLES = [(name, text) for name, op in sorted(OPS.items()) for text in op.example]


@pytest.mark.parametrize(("name", "text"), EXAMPLES, ids=lambda v: str(v).replace(" ", "-"))
def test_every_operator_s_attributes_print_and_parse(name: str, text: str) -> None:
    types, attrs = example(text)
    inputs = operands(types)
    g = Graph(inputs, results(node(OPS[name], inputs, **attrs)))
    assert parse_graph(show_graph(g), OPS, inputs=same_inputs(g)) == g


def test_attributes_that_would_be_filled_in_are_left_out() -> None:
    x = Input("x", TensorType(F32, (2, 3, 4)))
    assert explicit_attrs(node(OPS["Transpose"], [x], perm=(2, 1, 0))) == ()
    assert explicit_attrs(node(OPS["Transpose"], [x], perm=(1, 2, 0))) == (("perm", (1, 2, 0)),)
    assert explicit_attrs(node(OPS["Concat"], [x, x], axis=0)) == (("axis", 0),)  # no default
    assert explicit_attrs(node(OPS["ReduceSum"], [x], axes=(0, 1, 2))) == ()
    assert explicit_attrs(node(OPS["ReduceSum"], [x], axes=(1,))) == (("axes", (1,)),)


# --- constants ------------------------------------------------------------------------------------

SHOWABLE = [d for d in DTYPES.values() if d.name not in ("index", "c64", "c128", "string")]


@pytest.mark.parametrize("dtype", SHOWABLE, ids=str)
def test_small_constants_of_every_type_print_their_values(dtype: object) -> None:
    stored = to_numpy(dtype)  # type: ignore[arg-type]
    with np.errstate(all="ignore"):
        array = np.array([0, 1, 1, 0, 1], np.float32).astype(stored)
    c = constant(array)
    text = show_graph(Graph((), (c,)))
    assert "blake2" not in text
    assert parse_graph(text, OPS).outputs[0] is c


@pytest.mark.parametrize(
    ("array", "shown"),
    [
        (np.float32(0.1), "0.10000000149011612"),
        (np.array([np.nan, np.inf, -np.inf, -0.0]), "[nan, inf, -inf, -0.0]"),
        (np.array([[1, -2], [2**62, 0]]), "[1, -2, 4611686018427387904, 0]"),
        (np.array([True, False]), "[True, False]"),
        (np.zeros((0, 3), np.float32), "[]"),
        (np.array([5e-324]), "[5e-324]"),
        (np.array(["a", 'b"', "c\n"], object), '["a", "b\\"", \'c\\n\']'),
        (np.array("one", object), '"one"'),
    ],
)
def test_values_print_exactly(array: np.ndarray, shown: str) -> None:
    c = constant(np.asarray(array))
    text = show_graph(Graph((), (c,)))
    assert shown in text
    assert parse_graph(text, OPS).outputs[0] is c


def test_a_nan_with_a_payload_is_not_shown_as_nan() -> None:
    odd = constant(np.array([0x7FC00001], np.uint32).view(np.float32))
    text = show_graph(Graph((), (odd,)))
    assert "blake2:" in text
    assert parse_graph(text, OPS, constants={constant_label(odd): odd}).outputs[0] is odd


def test_large_constants_must_be_passed_in() -> None:
    c = constant(np.arange(17, dtype=np.float32))
    text = show_graph(Graph((), (c,)))
    with pytest.raises(UsageError, match=r"<text>:2: constant blake2:.* pass it in"):
        parse_graph(text, OPS)


def test_a_very_large_constant_is_not_read_for_its_label() -> None:
    def never() -> np.ndarray:
        raise AssertionError("read")

    type = TensorType(F32, (1 << 20,))
    c = constant(type=type, key=("model.bin", 8, 1 << 22), load=never, nbytes=1 << 22)
    assert constant_label(c) == "key:('model.bin', 8, 4194304)"
    text = show_graph(Graph((), (c,)))
    assert parse_graph(text, OPS, constants={constant_label(c): c}).outputs[0] is c


# --- attributes and types -------------------------------------------------------------------------

plain = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from([F16, I64])
)
numbers = st.floats(allow_nan=False)
sizes = st.sampled_from(
    [Size("n"), Size("a b"), Size("n") * 2 + 1, (Size("n") + 1) // 2, Size("min")]
)
attributes = st.recursive(plain | numbers | sizes, lambda a: st.lists(a, max_size=3).map(tuple))


@given(attributes)
def test_attributes_print_and_parse(value: object) -> None:
    again = parse_attr(expression(show_attr(value)))  # type: ignore[arg-type]
    assert again == value
    assert str(again) == str(value)  # 1 is not True, nor 1.0


def test_nan_is_an_attribute_too() -> None:
    assert math.isnan(parse_attr(expression(show_attr(float("nan")))))  # type: ignore[arg-type]


@given(
    st.sampled_from([F32, BF16, BOOL, U4, None]),
    st.none() | st.lists(st.integers(0, 9) | sizes, max_size=3).map(tuple),
)
def test_types_print_and_parse(dtype: object, shape: object) -> None:
    t = TensorType(dtype, shape)  # type: ignore[arg-type]
    g = Graph((Input("x", t),), ())
    assert parse_graph(show_graph(g), OPS).inputs[0].type == t
    if shape != ():
        assert parse_type(expression(show_type(t))) == t


# --- what cannot be read --------------------------------------------------------------------------


def test_an_opaque_node_prints_and_is_refused_when_read() -> None:
    x = Input("x", TensorType(F32, (4,)))
    n = opaque_node(
        Op("NonZero", None), [x, None, x], Payload(None, "node 7"), [TensorType(I64, (1, 4))]
    )
    text = show_graph(Graph((x,), (n,)))
    assert '%0 = opaque NonZero(x, None, x) "node 7": i64[1, 4]' in text
    with pytest.raises(UsageError, match="an opaque node cannot be parsed"):
        parse_graph(text, OPS)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("%0 = Relu(z)", "z is not defined above"),
        ("%0 = Rleu(x)", "there is no operator Rleu"),
        ("%0, %1 = Relu(x)", "2 names for 1 results"),
        ("x: f32[3]", "x is defined twice"),
        ("%0 = Concat(x, x)", "Concat needs the attribute axis"),
        ("%0 = Relu(x, slope=1)", "Relu has no attribute slope"),
        ("%0 = MatMul(x, x)", "3 != 2"),
        ("%0 = Relu(x", "not an expression"),
        ("%0 = x + x", "not an application"),
        ("%0 = Relu(Relu(x))", "is not a name"),
        ("y: f99[3]", "not a tensor type"),
        ("y: f32[3.5]", "is not a size"),
        ("c = const f32[2] [1.0]", "does not fill f32[2]"),
        ("c = const i64[1] [99999999999999999999]", "does not fill"),
        ("%0 = Transpose(x, perm=(lambda: 1))", "is not an attribute value"),
        ('%0 = Transpose(x, perm=__import__("os"))', "is not an attribute value"),
        ("return x\n  %0 = Relu(x)", "a line after return"),
        ("hello", "not an input, a constant, an application or return"),
    ],
)
def test_errors_name_the_line(line: str, complaint: str) -> None:
    text = f"graph {{\n  x: f32[2, 3]\n  {line}\n  return x\n}}\n"
    with pytest.raises(UsageError) as caught:
        parse_graph(text, OPS, source="g.txt")
    number = 4 if "\n" in line else 3
    assert caught.value.what.startswith(f"g.txt:{number}: ")
    assert complaint in caught.value.what
    assert caught.value.code == ExitCode.USAGE
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize("text", ["", "graph {\n}\n", "graph {\n  x: f32[2]\n", "x: f32[2]\n"])
def test_a_text_without_frame_or_return_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_graph(text, OPS)


def test_a_chain_of_20_000_nodes_prints_and_parses() -> None:
    x = Input("x", TensorType(F32, (2,)))
    v: Input | Node = x
    for _ in range(20_000):
        v = node(OPS["Neg"], [v])
    g = Graph((x,), (v,))
    text = show_graph(g)
    assert len(nodes(g)) == 20_000
    assert parse_graph(text, OPS, inputs={"x": x}) == g
