"""Branches that are known to be taken are part of the model."""

import numpy as np
import pytest

import superopt
from tests.support.onnx_io.rounds import session, text

# Names are used again in both branches, and outside.
SQUEEZE = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[{rows},3] x) => (float[{rows},3] y) <int64 one = {{1}}> {{
        shape = Shape (x)
        zero = Constant <value_int = 0> ()
        rows = Gather (shape, zero)
        alone = Equal (rows, one)
        a = Neg (x)
        b = If (alone) <
            then_branch = t () => (float[?,3] o) <float[3] w = {{1, 2, 3}}> {{
                s = Exp (a)
                o = Mul (s, w)
            }},
            else_branch = e () => (float[?,3] o) <float[3] w = {{4, 5, 6}}> {{
                yes = Constant <value = bool {{1}}> ()
                m = Mul (a, w)
                o = If (yes) <
                    then_branch = tt () => (float[?,3] p) {{ p = Add (m, w) }},
                    else_branch = te () => (float[?,3] p) {{ p = Sub (m, w) }}>
            }}>
        s = Abs (b)
        y = Add (s, b)
    }}"""


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("symbolic", [False, True])
def test_the_branch_that_is_taken(rows: int, symbolic: bool) -> None:
    m = text(SQUEEZE.format(rows="n" if symbolic else rows))
    exe = superopt.compile(m)
    x = np.random.default_rng(0).standard_normal((rows, 3)).astype(np.float32)
    (wanted,) = session(m).run(None, {"x": x})
    got = exe(x=x)["y"]
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert exe.fallback_nodes({"n": rows} if symbolic else {}) == []


def test_other_outputs_of_branches() -> None:
    """What is of the model around it, and one twice."""
    m = text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[3] x) => (float[3] y, float[3] z, float[3] u) {
            yes = Constant <value = bool {1}> ()
            a = Neg (x)
            y, b, c = If (yes) <
                then_branch = t () => (float[3] q, float[3] o, float[3] r)
                    <float[3] w = {1, 2, 3}> {
                        q = Identity (a)
                        o = Mul (a, w)
                        r = Identity (o)
                    },
                else_branch = e () => (float[3] k, float[3] l, float[3] j) {
                    k = Identity (x)
                    l = Neg (x)
                    j = Neg (k)
                }>
            z = Abs (b)
            u = Exp (c)
        }""")
    x = np.arange(3, dtype=np.float32)
    exe = superopt.compile(m)
    got = exe(x=x)
    for name, wanted in zip("yzu", session(m).run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(got[name], wanted, rtol=1e-6)
    assert exe.fallback_nodes({}) == []


def test_what_a_call_decides_stays() -> None:
    m = text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[3] x, bool c) => (float[3] y) { y = If (c) <
            then_branch = t () => (float[3] o) { o = Neg (x) },
            else_branch = e () => (float[3] o) { o = Abs (x) }> }""")
    exe = superopt.compile(m)
    x = np.array([-1, 2, -3], np.float32)
    np.testing.assert_array_equal(exe(x=x, c=np.array(True))["y"], -x)
    np.testing.assert_array_equal(exe(x=x, c=np.array(False))["y"], np.abs(x))


def test_kept_and_read_again(tmp_path) -> None:  # type: ignore[no-untyped-def]
    m = text(SQUEEZE.format(rows=1))
    x = np.ones((1, 3), np.float32)
    exe = superopt.compile(m)
    exe.save(tmp_path / "m.superopt")
    again = superopt.load(tmp_path / "m.superopt")
    np.testing.assert_array_equal(again(x=x)["y"], exe(x=x)["y"])
