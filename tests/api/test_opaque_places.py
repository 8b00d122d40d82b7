"""Operators without a tensor expression, at every place of a model, through every command."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import superopt
from superopt.api.functions import VERIFY_METHODS
from superopt.errors import SuperoptError
from tests.support.onnx_io.opaque_models import OPAQUE, PLAIN, SHAPE, model

ort = pytest.importorskip("onnxruntime")

Steps = Sequence[tuple[str, int, int]]
# Where the opaque operator stands, as steps around it; 0 and 1 are the inputs.
PLACES = {
    "at an input": lambda kind: [(kind, 0, 1), ("Max", 2, 1), ("Concat", 3, 2)],
    "in the middle": lambda kind: [("Max", 0, 1), (kind, 2, 0), ("Sum", 3, 2)],
    "at an output": lambda kind: [("Concat", 0, 1), ("Relu", 2, 2), (kind, 3, 0)],
    "twice of shared operands": lambda kind: [(kind, 0, 1), (kind, 0, 1), ("Min", 2, 3)],
    "one behind the other": lambda kind: [(kind, 0, 1), ("Gemm", 2, 0), (kind, 3, 2)],
}


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(SHAPE).astype(np.float32) for name in ("x", "w")}


def run(m: onnx.ModelProto) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(m.SerializeToString(), options)
    return session.run(None, arrays())  # type: ignore[no-any-return]


def renamed(m: onnx.ModelProto) -> onnx.ModelProto:
    """The same model in another file."""
    other = onnx.ModelProto()
    other.CopyFrom(m)
    for n in other.graph.node:
        n.name = f"other {n.output[0]}"
    return other


@pytest.mark.ci
@pytest.mark.one_in(24)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", OPAQUE)
def test_equal_graphs_around_an_opaque_operator(kind: str, place: str) -> None:
    """Both have the opaque operator, one computes a Relu twice: all methods give a verdict."""
    steps: Steps = PLACES[place](kind)
    last = len(steps) + 1
    a = model([*steps, ("Relu", last, last)], [len(steps)])
    b = renamed(a)
    verdict = superopt.verify(a, b, limit=5)
    assert verdict.decision == "proved", verdict.reason
    once = model(steps, [len(steps) - 1])
    for n in (twice := renamed(once)).graph.node:
        if n.op_type == "Identity":  # Neg(Neg(y)) in its place
            n.op_type, end = "Neg", n.output[0]
            n.output[0] = "negative"
            twice.graph.node.add(op_type="Neg", input=["negative"], output=[end])
    for method in VERIFY_METHODS:
        verdict = superopt.verify(once, twice, method=method, limit=3)
        allowed = ("proved", "agrees") if method in ("auto", "numeric") else ("proved", "unknown")
        assert verdict.decision in allowed, (method, verdict.reason)


@pytest.mark.slow
def test_a_random_node_is_not_another_random_node() -> None:
    """The difference of two draws is not that of a draw and itself."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) {{
        a = RandomNormalLike (x)
        b = RandomNormalLike (x)
        y = Sub (a, {0})
    }}"""
    two, one = (onnx.parser.parse_model(text.format(name)) for name in ("b", "a"))
    for method in VERIFY_METHODS:
        assert superopt.verify(two, one, method=method, limit=3).decision != "proved"


def test_local_functions_of_one_name_are_compared() -> None:
    """Nodes that call functions of one name are not equal where the functions are not."""
    a = model([("local function", 0, 1)], [0])
    b = renamed(a)
    (negative,) = (n for f in b.functions for n in f.node if n.op_type == "Neg")
    negative.op_type = "Abs"
    assert superopt.verify(a, b, limit=3).decision == "differs"


@pytest.mark.one_in(0)
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(
        st.tuples(
            st.one_of(st.sampled_from(sorted(OPAQUE)), st.sampled_from(sorted(PLAIN))),
            st.integers(0, 6),
            st.integers(0, 6),
        ),
        min_size=2,
        max_size=5,
    ),
    second=st.integers(0, 4),
)
def test_every_command_takes_random_models(steps: Steps, second: int) -> None:
    m = model(steps, [len(steps) - 1, second])
    wanted = run(m)
    done = superopt.optimize(m, budget=5, cost="roofline")
    done.explain(["y0", "relu-relu"])
    for made in (run(done.model), superopt.compile(m).run(arrays()).values()):
        for want, got in zip(wanted, made, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    for other in (renamed(m), done.model):
        verdict = superopt.verify(m, other, limit=3)
        assert verdict.decision in ("proved", "agrees"), verdict.reason
    superopt.derive(m, done.model, limit=1)


@pytest.mark.parametrize("kind", ["Max", "Concat", "Softmax"])
def test_an_unknown_operator(kind: str) -> None:
    """onnxruntime does not run it: optimize and verify say what they can, compile why it cannot."""
    m = model([("Relu", 0, 0), (kind, 2, 1), ("Relu", 3, 3)], [2])
    m.opset_import.add(domain="acme", version=1)
    for n in m.graph.node:
        if n.op_type == kind:
            n.domain = "acme"
    assert superopt.optimize(m, budget=1, cost="roofline").report.opaque
    for method in VERIFY_METHODS:
        assert superopt.verify(m, renamed(m), method=method, limit=3).decision == "proved"
    with pytest.raises(SuperoptError, match="acme"):
        superopt.compile(m)
