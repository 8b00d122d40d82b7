"""What `verify` says where floats are not real numbers: NaN, infinities, ties, absorbed addends."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

import superopt
from superopt.api.functions import VERIFY_METHODS
from superopt.check.special_values import special_feeds
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model

pytest.importorskip("onnxruntime")

ZERO = "z = Constant <value_float = 0.0> ()"
ONE = "o = Constant <value_float = 1.0> ()"
INFINITY = "k = Constant <value = float {inf}> ()"
HEAD = '<ir_version: 8, opset_import: ["" : 18]>'


def model(body: str, output: str = "float", inputs: str = "float[4, 3] x, float[4, 3] w"):
    shape = "" if output.endswith("]") else "[4, 3]"
    return parser.parse_model(f"{HEAD} g ({inputs}) => ({output}{shape} y) {{ {body} }}")


# First model, second model, and the type of the output: over real numbers these are equal.
REFUTED = {
    "NaN guard": (f"{ZERO} n = IsNaN(x) y = Where(n, z, x)", "y = Identity(x)", "float"),
    "infinity guard": (f"{ZERO} n = IsInf(x) y = Where(n, z, x)", "y = Identity(x)", "float"),
    "guard of a softmax": (
        f"{ZERO} p = Softmax <axis = -1> (x) n = IsNaN(p) y = Where(n, z, p)",
        "y = Softmax <axis = -1> (x)", "float"),
    "x == x": (f"{ZERO} n = Equal(x, x) y = Where(n, x, z)", "y = Identity(x)", "float"),
    "x <= x": (f"{ZERO} n = LessOrEqual(x, x) y = Where(n, x, z)", "y = Identity(x)", "float"),
    "x - x == 0": (
        f"{ZERO} d = Sub(x, x) n = Equal(d, z) y = Where(n, x, z)", "y = Identity(x)", "float"),
    "|0 x| < 1": (
        f"{ZERO} {ONE} d = Mul(z, x) e = Abs(d) n = Less(e, o) y = Where(n, x, z)",
        "y = Identity(x)", "float"),
    "by Identity": (
        f"{ZERO} i = Identity(x) n = Equal(x, i) y = Where(n, x, z)", "y = Identity(x)", "float"),
    "tests for the same, other values": (
        f"{ZERO} n = IsNaN(x) y = Where(n, z, x)", f"{ONE} n = IsNaN(x) y = Where(n, o, x)",
        "float"),
    "not less is not greater or equal": (
        "n = Less(x, w) y = Not(n)", "y = GreaterOrEqual(x, w)", "bool"),
    "absorbed addend": (
        "s = Add(x, w) y = Equal(s, w)", f"{ZERO} y = Equal(x, z)", "bool"),
    "absorbed addend behind a choice": (
        f"{ZERO} {ONE} s = Add(x, w) n = Equal(s, w) y = Where(n, o, z)",
        f"{ZERO} {ONE} n = Equal(x, z) y = Where(n, o, z)", "float"),
    "absorbed addend, greater": (
        "s = Add(x, w) y = Greater(s, w)", f"{ZERO} y = Greater(x, z)", "bool"),
    "difference that cancels": ("d = Sub(x, w) s = Add(d, w) y = Equal(s, x)",
                                "y = LessOrEqual(x, x)", "bool"),
}  # fmt: skip


@pytest.mark.parametrize("method", ["auto", "index"])
@pytest.mark.parametrize("name", REFUTED)
def test_floats_refute_what_is_equal_over_real_numbers(name: str, method: str) -> None:
    first, second, output = REFUTED[name]
    a, b = model(first, output), model(second, output)
    for pair in ((a, b), (b, a)):
        verdict = superopt.verify(*pair, method=method, limit=10)
        assert verdict.decision == "differs", (verdict.decision, verdict.reason)
        assert "(inputs: " in verdict.reason
        assert [o.decision for o in verdict.outputs] == ["refuted"]


AGREE = {
    "guard before and behind a move": (
        f"{ZERO} n = IsNaN(x) v = Where(n, z, x) y = Transpose <perm = [1, 0]> (v)",
        f"{ZERO} t = Transpose <perm = [1, 0]> (x) n = IsNaN(t) y = Where(n, z, t)"),
    "guard of a doubled value": (
        f"{ZERO} n = IsNaN(x) d = Add(x, x) y = Where(n, z, d)",
        f"{ZERO} t = Constant <value_float = 2.0> () n = IsNaN(x) d = Mul(x, t)"
        " y = Where(n, z, d)"),
}  # fmt: skip


@pytest.mark.parametrize("name", AGREE)
def test_models_that_test_for_nan_are_not_proved_over_real_numbers(name: str) -> None:
    first, second = AGREE[name]
    output = "float[3, 4]" if "Transpose" in first else "float"
    a, b = model(first, output), model(second, output)
    verdict = superopt.verify(a, b, limit=10)
    assert verdict.decision == "agrees", verdict.reason
    assert "real numbers only" in verdict.reason
    assert [o.decision for o in verdict.outputs] == ["unknown"]


PROVED = {
    "rectified": (f"{ZERO} y = Max(x, z)", "y = Relu(x)"),
    "clipped": (
        f"{ZERO} {ONE} d = Add(x, x) y = Clip(d, z, o)",
        f"{ZERO} {ONE} t = Constant <value_float = 2.0> () d = Mul(t, x) y = Clip(d, z, o)"),
    "greater is less turned round": (
        f"{ZERO} n = Greater(x, w) y = Where(n, x, z)",
        f"{ZERO} n = Less(w, x) y = Where(n, x, z)"),
    "safe softmax": (
        "m = ReduceMax <keepdims = 1> (x, a) d = Sub(x, m) e = Exp(d)"
        " s = ReduceSum <keepdims = 1> (e, a) y = Div(e, s)",
        "y = Softmax <axis = -1> (x)"),
    "least by a choice": ("n = Less(x, w) y = Where(n, x, w)", "y = Min(x, w)"),
    "regrouped": ("s = Add(x, w) y = Add(s, x)", "s = Add(x, x) y = Add(s, w)"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROVED)
def test_legitimate_proofs_stay(name: str) -> None:
    axes = "a = Constant <value_ints = [-1]> ()"
    a, b = (model(f"{axes} {body}") for body in PROVED[name])
    assert superopt.verify(a, b, limit=20).decision == "proved"


def test_a_proof_names_results_that_are_not_finite_and_differ() -> None:
    """They count as undefined in models without a test for NaN, which the note says."""
    first = model(f"{ZERO} n = Greater(x, z) y = Where(n, x, z)")
    verdict = superopt.verify(first, model("y = Relu(x)"), limit=20)
    assert verdict.decision == "proved"
    (note,) = [n for n in verdict.notes if "sets of inputs" in n]
    assert "except for results that are not finite: output y: nan instead of 0.0" in note
    same = superopt.verify(model("n = Less(x, w) y = Where(n, x, w)"), model(
        "n = Greater(w, x) y = Where(n, x, w)"), limit=20)  # fmt: skip
    assert same.decision == "proved"
    assert not any("except" in n for n in same.notes)


def test_the_same_guard_is_the_same_graph() -> None:
    """No trial is needed where both models have the same nodes."""
    a = model(REFUTED["NaN guard"][0])
    b = onnx.ModelProto()
    b.CopyFrom(a)
    b.doc_string = "another file"
    for method in ("auto", "index", "rules"):
        assert superopt.verify(a, b, method=method, limit=5).decision == "proved"


@pytest.mark.parametrize("method", VERIFY_METHODS)
def test_outputs_without_elements(method: str) -> None:
    """An empty output is not one with elements, whichever model has it."""

    def reversed_slice(end: int) -> onnx.ModelProto:
        return parser.parse_model(f"""{HEAD} g (float[10] x) => (float[A] y) {{
            s = Constant <value_ints = [9]> () e = Constant <value_ints = [{end}]> ()
            a = Constant <value_ints = [0]> () t = Constant <value_ints = [-1]> ()
            y = Slice(x, s, e, a, t) }}""")

    full, empty = reversed_slice(-11), reversed_slice(-1)
    for pair in ((full, empty), (empty, full)):
        verdict = superopt.verify(*pair, method=method, limit=5)
        wanted = ("differs",) if method in ("auto", "numeric") else ("differs", "unknown")
        assert verdict.decision in wanted
    other = parser.parse_model(f"""{HEAD} g (float[10] x) => (float[A] y) {{
        s = Constant <value_ints = [3]> () e = Constant <value_ints = [3]> ()
        y = Slice(x, s, e) }}""")
    assert superopt.verify(empty, other, method="auto", limit=5).decision == "proved"


@pytest.mark.parametrize("kind", ["float", "float16", "bfloat16", "double"])
def test_special_inputs_hold_what_they_promise(kind: str) -> None:
    m = import_model(read_model(model("y = Add(x, w)", kind, f"{kind}[4, 3] x, {kind}[4, 3] w")))
    finite = [f.arrays for f in special_feeds(m.graph, {}, 0, 16, finite=True)]
    x, w = (np.stack([a[n].astype(np.float64) for a in finite]) for n in ("x", "w"))
    assert np.isfinite(x).all()
    assert (x == w).any(), "ties"
    assert (np.signbit(x) & (x == 0)).any(), "negative zero"
    own = finite[0]["x"].dtype
    sums = x.astype(own) + w.astype(own)
    if kind != "bfloat16":
        assert ((sums == w) & (x != 0)).any(), "absorbed addends"
        assert ((x != 0) & (np.abs(x) < np.finfo(own).tiny)).any(), "subnormal numbers"
    other = [
        f.arrays["x"].astype(np.float64) for f in special_feeds(m.graph, {}, 0, 8, finite=False)
    ]
    some = np.stack(other)
    assert np.isnan(some).any()
    assert np.isposinf(some).any()
    assert (np.isneginf(some).all(axis=-1)).any(), "a row of -inf"
