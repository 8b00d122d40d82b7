"""Two graphs that are equal are proved so, piece by piece; others are not."""

import numpy as np
import pytest

from superopt.ir.graph import Graph
from superopt.ir.substitute import replace_all
from superopt.ir.text import parse_graph
from superopt.ops import OPS
from superopt.verifier.compare.regions import GraphComparison, compare_graphs
from superopt.verifier.prove import Limits
from superopt.verifier.verdict import Proved, Unknown


def both(inputs: str, left: str, right: str) -> GraphComparison:
    a, b = (
        parse_graph(
            "graph {\n" + "\n".join([*inputs.split("; "), *side.split("; ")]) + "\n}\n", OPS
        )
        for side in (left, right)
    )
    b = Graph(a.inputs, replace_all(b, dict(zip(b.inputs, a.inputs, strict=True))).outputs)
    return compare_graphs(a, b, Limits(seconds=10), 20)


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


SAME |= {
    "a mean of what is flattened": (
        "x: f32[2, 3, 4, 5]",
        "%0 = Reshape(x, shape=(2, 60)); %1 = Mul(%0, %0);"
        " %2 = ReduceMean(%1, axes=(1,), keepdims=0); %3 = Sqrt(%2); return %3",
        "%0 = Mul(x, x); %1 = ReduceMean(%0, axes=(1, 2, 3), keepdims=0); %2 = Sqrt(%1); return %2",
    ),
    "scores scaled on both sides": (
        "x: f32[4, 8]; y: f32[8, 6]",
        "r = const f32[] 0.5946035575; %0 = Mul(x, r); %1 = Mul(y, r); %2 = MatMul(%0, %1);"
        " return %2",
        "e = const f32[] 8.0; %0 = Sqrt(e); %1 = MatMul(x, y); %2 = Div(%1, %0); return %2",
    ),
    "halves of a sum": (
        "x: f32[n, 7]; w: f32[7, 4]",
        "%0 = MatMul(x, w); return %0",
        "%0 = Slice(x, starts=(0,), ends=(3,), axes=(1,));"
        " %1 = Slice(x, starts=(3,), ends=(7,), axes=(1,));"
        " %2 = Slice(w, starts=(0,), ends=(3,), axes=(0,));"
        " %3 = Slice(w, starts=(3,), ends=(7,), axes=(0,));"
        " %4 = MatMul(%0, %2); %5 = MatMul(%1, %3); %6 = Add(%4, %5); return %6",
    ),
    "the greatest of two parts": (
        "x: f32[n, 7]",
        "%0 = ReduceMax(x, axes=(1,), keepdims=1); return %0",
        "%0 = Slice(x, starts=(0,), ends=(3,), axes=(1,));"
        " %1 = Slice(x, starts=(3,), ends=(7,), axes=(1,));"
        " %2 = ReduceMax(%0, axes=(1,), keepdims=1); %3 = ReduceMax(%1, axes=(1,), keepdims=1);"
        " %4 = Max(%2, %3); return %4",
    ),
    "every other one": (
        "x: f32[6, n]",
        "%0 = Reshape(x, shape=(3, 2, n)); %1 = ReduceSum(%0, axes=(1,), keepdims=0); return %1",
        "%0 = Slice(x, starts=(0,), ends=(6,), axes=(0,), steps=(2,));"
        " %1 = Slice(x, starts=(1,), ends=(6,), axes=(0,), steps=(2,)); %2 = Add(%0, %1);"
        " return %2",
    ),
    "rounded in the same way": (
        "x: f32[5]",
        "%0 = Cast(x, to=f16); return %0",
        "%0 = Neg(x); %1 = Neg(%0); %2 = Cast(%1, to=f16); return %2",
    ),
}
# Constants that are written as patterns, each with what they do.
PATTERNS = {
    "identity": (np.eye(6), "%0 = MatMul(x, c); return %0", "%0 = Identity(x); return %0"),
    "shifted": (
        np.eye(6, k=2),
        "%0 = MatMul(x, c); return %0",
        "%0 = Slice(x, starts=(0,), ends=(4,), axes=(1,)); %1 = Pad(%0, pads=(0, 2, 0, 0));"
        " return %1",
    ),
    "triangle": (
        np.tri(6),
        "%0 = MatMul(x, c); %1 = Slice(%0, starts=(5,), ends=(6,), axes=(1,)); return %1",
        "%0 = Slice(x, starts=(5,), ends=(6,), axes=(1,)); return %0",
    ),
}
WRONG_PATTERNS = {
    "not quite the identity": (np.eye(6) + np.eye(6)[:, ::-1] * 0.5, *PATTERNS["identity"][1:]),
    "one element more": (np.eye(6) + (np.arange(36) == 7).reshape(6, 6), *PATTERNS["identity"][1:]),
    "shifted by one": (np.eye(6, k=1), *PATTERNS["shifted"][1:]),
    "the other way": (np.eye(6, k=-2), *PATTERNS["shifted"][1:]),
    "the other triangle": (np.tri(6).T, *PATTERNS["triangle"][1:]),
    "without its diagonal": (np.tri(6, k=-1), *PATTERNS["triangle"][1:]),
}


def of_pattern(value: np.ndarray, left: str, right: str) -> GraphComparison:
    rows = ", ".join(f"[{', '.join(map(str, row))}]" for row in value.tolist())
    constant = f"c = const f32[6, 6] [{rows}]"
    return both("x: f32[5, 6]", f"{constant}; {left}", right)


@pytest.mark.parametrize("name", PATTERNS)
def test_a_constant_is_read_as_its_pattern(name: str) -> None:
    (verdict,) = of_pattern(*PATTERNS[name]).outputs
    assert verdict is None or isinstance(verdict, Proved), verdict


@pytest.mark.parametrize("name", WRONG_PATTERNS)
def test_a_constant_of_another_pattern_is_not_taken_for_it(name: str) -> None:
    (verdict,) = of_pattern(*WRONG_PATTERNS[name]).outputs
    assert isinstance(verdict, Unknown)


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
        ("x: i32[3]", "%0 = Cast(x, to=u32); %1 = Cast(%0, to=i64); return %1"),
        ("x: u16[3]", "%0 = Cast(x, to=i16); %1 = Cast(%0, to=i32); return %1"),
    ],
)
def test_a_cast_that_rounds_or_wraps_is_not_taken_for_none(inputs: str, left: str) -> None:
    end = next((t for t in ("i64", "i32") if f"to={t})" in left), "f32")
    (verdict,) = both(inputs, left, f"%0 = Cast(x, to={end}); return %0").outputs
    assert isinstance(verdict, Unknown)


@pytest.mark.parametrize(
    ("inputs", "left", "right"),
    [
        ("x: i32[3]", "%0 = Cast(x, to=u32); %1 = Cast(%0, to=i32)", "%1 = Identity(x)"),
        ("x: u8[3]", "%0 = Cast(x, to=i16); %1 = Cast(%0, to=f32)", "%1 = Cast(x, to=f32)"),
        ("x: i32[3]", "%0 = Cast(x, to=i16); %1 = Cast(%0, to=i8)", "%1 = Cast(x, to=i8)"),
    ],
)
def test_casts_that_lose_nothing_or_the_same(inputs: str, left: str, right: str) -> None:
    (verdict,) = both(inputs, f"{left}; return %1", f"{right}; return %1").outputs
    assert isinstance(verdict, Proved)


def test_a_double_is_not_the_simple_number_beside_it() -> None:
    left, right = (f"c = const f64[] {v}; %0 = Mul(x, c); return %0" for v in (0.1, 0.1 + 1e-12))
    (verdict,) = both("x: f64[3]", left, right).outputs
    assert isinstance(verdict, Unknown)


@pytest.mark.parametrize(
    ("inputs", "left", "right"),
    [
        # integers that a float has not, by way of floats of two sizes
        ("x: i32[8]", "%0 = Cast(x, to=f32)", "%0 = Cast(x, to=f16)"),
        ("x: i32[8]", "%0 = Cast(x, to=f64)", "%0 = Cast(x, to=f16)"),
        ("x: i64[8]", "%0 = Cast(x, to=f64)", "%0 = Cast(x, to=f32)"),
    ],
)
def test_integers_by_way_of_other_floats(inputs: str, left: str, right: str) -> None:
    last = "%1 = Cast(%0, to=i32); return %1"
    (verdict,) = both(inputs, f"{left}; {last}", f"{right}; {last}").outputs
    assert isinstance(verdict, Unknown)


@pytest.mark.parametrize(
    ("kind", "left", "right"),
    [
        ("u8", "%0 = Less(x, y)", "c = const u8[] 0; %1 = Sub(x, y); %0 = Less(%1, c)"),
        (
            "u8",
            "%1 = Max(x, y); %0 = Sub(%1, y)",
            "c = const u8[] 0; %1 = Sub(x, y); %0 = Max(%1, c)",
        ),
        ("i8", "%0 = Less(x, y)", "c = const i8[] 0; %1 = Sub(x, y); %0 = Less(%1, c)"),
        ("u32", "%1 = Add(x, y); %0 = Less(%1, x)", "c = const u32[] 0; %0 = Less(y, c)"),
    ],
)
def test_integers_that_wrap_at_once(kind: str, left: str, right: str) -> None:
    inputs = f"x: {kind}[8]; y: {kind}[8]"
    (verdict,) = both(inputs, f"{left}; return %0", f"{right}; return %0").outputs
    assert isinstance(verdict, Unknown)


QUANTIZED = {
    "per-channel weights, transposed": (
        "w: i8[4, 3]; s: f32[4]; z: i8[4]",
        "%0 = DequantizeLinear(w, s, z, axis=0); %1 = Transpose(%0, perm=(1, 0)); return %1",
        "%0 = Transpose(w, perm=(1, 0)); %1 = DequantizeLinear(%0, s, z, axis=1); return %1",
        True,
    ),
    "scales of another axis": (
        "w: i8[4, 4]; s: f32[4]; z: i8[4]",
        "%0 = DequantizeLinear(w, s, z, axis=0); %1 = Transpose(%0, perm=(1, 0)); return %1",
        "%0 = Transpose(w, perm=(1, 0)); %1 = DequantizeLinear(%0, s, z, axis=0); return %1",
        False,
    ),
    "zero points of sums": (
        "x: u8[n, 3]; w: i8[3, 4]; z: u8[]",
        "%0 = MatMulInteger(x, w, z); return %0",
        "%0 = Cast(w, to=i32); %1 = ReduceSum(%0, axes=(0,), keepdims=0); %2 = Cast(z, to=i32);"
        " %3 = Mul(%1, %2); %4 = MatMulInteger(x, w); %5 = Sub(%4, %3); return %5",
        True,
    ),
    "zero points of sums of bytes": (
        "x: u8[n, 3]; w: i8[3, 4]; z: u8[]",
        "%0 = MatMulInteger(x, w, z); return %0",
        "%0 = ReduceSum(w, axes=(0,), keepdims=0); %1 = Cast(%0, to=i32); %2 = Cast(z, to=i32);"
        " %3 = Mul(%1, %2); %4 = MatMulInteger(x, w); %5 = Sub(%4, %3); return %5",
        False,
    ),
    "unsigned weights as signed ones": (
        "x: u8[n, 3]; w: u8[3, 4]; v: u8[]",
        "%0 = MatMulInteger(x, w, None, v); return %0",
        "c = const i32[] 128; %0 = Cast(w, to=i32); %1 = Sub(%0, c); %2 = Cast(%1, to=i8);"
        " %3 = MatMulInteger(x, %2); %4 = Cast(x, to=i32); %5 = ReduceSum(%4, axes=(1,),"
        " keepdims=1); %6 = Cast(v, to=i32); %7 = Sub(%6, c); %8 = Mul(%5, %7); %9 = Sub(%3, %8);"
        " return %9",
        True,
    ),
    "a pair that cancels": (
        "x: i8[2, 3]; s: f32[]; z: i8[]",
        "%0 = DequantizeLinear(x, s, z); %1 = QuantizeLinear(%0, s, z); return %1",
        "%0 = Identity(x); return %0",
        True,
    ),
    "a pair of two scales": (
        "x: i8[2, 3]; s: f32[]; t: f32[]; z: i8[]",
        "%0 = DequantizeLinear(x, s, z); %1 = QuantizeLinear(%0, t, z); return %1",
        "%0 = Identity(x); return %0",
        False,
    ),
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_graphs(name: str) -> None:
    inputs, left, right, is_equal = QUANTIZED[name]
    (verdict,) = both(inputs, left, right).outputs
    assert (verdict is None or isinstance(verdict, Proved)) == is_equal, verdict


@pytest.mark.parametrize(
    ("c", "d"),
    [
        ("0.007000000216066837", "0.00699999975040555"),
        ("0.23000000417232513", "0.22999998927116394"),
        ("0.3333333432674408", "0.3333333134651184"),
        ("0.7071067690849304", "0.7071068286895752"),
    ],
)
def test_neighbouring_numbers_are_two(c: str, d: str) -> None:
    """Each is the float nearest to a number of its own."""
    (verdict,) = both(
        "x: f32[5]",
        f"c = const f32[] {c}; d = const f32[] {d}; e = const f32[] 100000000.0; %0 = Mul(x, c);"
        " %1 = Mul(x, d); %2 = Sub(%0, %1); %3 = Mul(%2, e); return %3",
        "%0 = Sub(x, x); return %0",
    ).outputs
    assert isinstance(verdict, Unknown)


def test_graphs_with_other_numbers_of_outputs_are_not_compared() -> None:
    with pytest.raises(ValueError, match="zip"):
        both("x: f32[5]", "return x", "return x, x")
