"""Two graphs that are equal are proved so, piece by piece; others are not."""

import pytest

from superopt.ir.graph import Graph
from superopt.ir.substitute import replace_all
from superopt.ir.text import parse_graph
from superopt.ops import OPS
from superopt.verifier.prove import Limits
from superopt.verifier.regions import Compared, compared
from superopt.verifier.verdict import Proved, Unknown


def both(inputs: str, left: str, right: str) -> Compared:
    a, b = (
        parse_graph(
            "graph {\n" + "\n".join([*inputs.split("; "), *side.split("; ")]) + "\n}\n", OPS
        )
        for side in (left, right)
    )
    b = Graph(a.inputs, replace_all(b, dict(zip(b.inputs, a.inputs, strict=True))).outputs)
    return compared(a, b, Limits(seconds=10), 20)


SAME = {
    "a sum of products, any batch": (
        "x: f32[n, 3]; v: f32[3, 4]; w: f32[3, 4]",
        "%0 = MatMul(x, v); %1 = MatMul(x, w); %2 = Add(%0, %1); return %2",
        "%0 = Add(v, w); %1 = MatMul(x, %0); return %1",
    ),
    "softmax written out": (
        "x: f32[n, 5]",
        "%0 = Softmax(x, axis=1); return %0",
        "%0 = ReduceMax(x, axes=(1,), keepdims=1); %1 = Sub(x, %0); %2 = Exp(%1);"
        " %3 = ReduceSum(%2, axes=(1,), keepdims=1); %4 = Div(%2, %3); return %4",
    ),
    "two layers, each by itself": (
        "x: f32[n, 3]; w: f32[3, 3]",
        "%0 = MatMul(x, w); %1 = Add(%0, %0); %2 = Relu(%1); %3 = MatMul(%2, w);"
        " %4 = Add(%3, %3); %5 = Tanh(%4); return %5",
        "c = const f32[] 2.0; %0 = Mul(x, c); %1 = MatMul(%0, w); %2 = Relu(%1);"
        " %3 = Mul(%2, c); %4 = MatMul(%3, w); %5 = Tanh(%4); return %5",
    ),
    "an index read the other way round": (
        "x: f32[2, 3, 4]",
        "%0 = Transpose(x, perm=(2, 0, 1)); %1 = Transpose(%0, perm=(1, 2, 0)); return %1",
        "%0 = Identity(x); return %0",
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_equal_graphs_are_proved_equal(name: str) -> None:
    (verdict,) = both(*SAME[name]).outputs
    assert verdict is None or isinstance(verdict, Proved), verdict


def test_layers_are_proved_one_after_the_other() -> None:
    assert len(both(*SAME["two layers, each by itself"]).regions) > 1


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("%0 = MatMul(x, w); return %0", "%0 = MatMul(w, x); return %0"),
        ("%0 = Sub(x, w); return %0", "%0 = Sub(w, x); return %0"),
        ("%0 = Softmax(x, axis=0); return %0", "%0 = Softmax(x, axis=1); return %0"),
        ("%0 = Relu(x); %1 = Add(%0, w); return %1", "%0 = Add(x, w); %1 = Relu(%0); return %1"),
        ("%0 = ReduceSum(x, axes=(0,)); return %0", "%0 = ReduceSum(x, axes=(1,)); return %0"),
    ],
)
def test_what_is_not_equal_is_not_proved(left: str, right: str) -> None:
    (verdict,) = both("x: f32[3, 3]; w: f32[3, 3]", left, right).outputs
    assert isinstance(verdict, Unknown)


def test_of_two_outputs_one_may_be_equal() -> None:
    found = both(
        "x: f32[3, 3]; w: f32[3, 3]",
        "%0 = Add(x, w); %1 = Mul(x, w); return %0, %1",
        "%0 = Add(w, x); %1 = Mul(x, x); return %0, %1",
    )
    first, second = found.outputs
    assert first is None or isinstance(first, Proved)
    assert isinstance(second, Unknown)


@pytest.mark.parametrize(
    ("inputs", "left"),
    [
        ("x: f32[3]", "%0 = Cast(x, to=f16); %1 = Cast(%0, to=f32); return %1"),
        ("x: i32[3]", "%0 = Cast(x, to=i8); %1 = Cast(%0, to=i32); return %1"),
        ("x: i32[3]", "%0 = Cast(x, to=u32); %1 = Cast(%0, to=i32); return %1"),
    ],
)
def test_a_cast_that_rounds_or_wraps_is_not_taken_for_none(inputs: str, left: str) -> None:
    (verdict,) = both(inputs, left, "%0 = Identity(x); return %0").outputs
    assert isinstance(verdict, Unknown)


def test_a_double_is_not_the_simple_number_beside_it() -> None:
    left, right = (f"c = const f64[] {v}; %0 = Mul(x, c); return %0" for v in (0.1, 0.1 + 1e-12))
    (verdict,) = both("x: f64[3]", left, right).outputs
    assert isinstance(verdict, Unknown)
