"""Numbers, sizes and graphs at the ends of what there is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import superopt
from superopt.errors import UsageError
from superopt.kernels.loops.tile import Pack
from superopt.plan.program import pack_constants
from tests.support.compilation.forms import build, node
from tests.support.compilation.models import near, reference


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceProd"])
@pytest.mark.parametrize("shape", [(2, 0, 3), (0,), (3, 0)])
def test_sums_of_nothing(op: str, shape: tuple[int, ...]) -> None:
    m = build([node(op, ["x"], ["y"], keepdims=0)], {"x": shape})
    feeds = {"x": np.zeros(shape, np.float32)}
    near(superopt.compile(m)(**feeds), reference(m, feeds))


@pytest.mark.parametrize("columns", [1, 17, 101])
def test_products_of_nothing(columns: int) -> None:
    given = {"w": np.zeros((0, columns), np.float32), "c": np.arange(columns, dtype=np.float32)}
    m = build(
        [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "c"], ["y"])], {"x": (31, 0)}, given
    )
    exe = superopt.compile(m)
    assert not exe.fallback_nodes({})
    wanted = np.broadcast_to(given["c"], (31, columns))
    np.testing.assert_array_equal(exe(x=np.zeros((31, 0), np.float32))["y"], wanted)


def test_a_constant_that_cannot_be_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the product has no kernel."""

    def refused(pack: Pack, array: np.ndarray, out: np.ndarray) -> None:
        raise IndexError("index 7 is out of bounds")

    monkeypatch.setattr(pack_constants, "pack_constant", refused)
    m = build(
        [node("MatMul", ["x", "w"], ["y"])], {"x": (5, 8)}, {"w": np.eye(8, dtype=np.float32)}
    )
    exe = superopt.compile(m)
    ((_, why),) = exe.fallback_nodes({})
    assert "index 7" in why
    x = np.ones((5, 8), np.float32)
    np.testing.assert_array_equal(exe(x=x)["y"], x)


def test_results_beyond_memory() -> None:
    exe = superopt.compile(build([node("Add", ["a", "b"], ["y"])], {"a": ("n", 1), "b": (1, "m")}))
    side = np.ones(2**23, np.float32)
    with pytest.raises(UsageError, match="no memory for the outputs"):
        exe(a=side[:, None], b=side[None])
    assert exe(a=side[:2, None], b=side[None, :3])["y"].shape == (2, 3)


def test_the_logarithm_of_a_small_softplus() -> None:
    """Which is its argument, where that is far below 0."""
    x = np.linspace(-80, 20, 1001, dtype=np.float32)
    m = build([node("Softplus", ["x"], ["s"]), node("Log", ["s"], ["y"])], {"x": x.shape})
    wanted = np.log(np.log1p(np.exp(x.astype(np.float64))))
    np.testing.assert_allclose(superopt.compile(m)(x=x)["y"], wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("float_class", ["E1", "E2"])
def test_sums_of_which_no_inverse_is_a_number(float_class: str) -> None:
    x = np.zeros((2, 40), np.float32)
    x[0, 3], x[1] = 1e-40, 2e-40
    total = {"a": np.array([1], np.int64)}
    nodes = [node("ReduceSum", ["x", "a"], ["s"], keepdims=1), node("Div", ["x", "s"], ["y"])]
    m = build(nodes, {"x": x.shape}, total)
    near(superopt.compile(m, float_class=float_class)(x=x), reference(m, {"x": x}))


def test_what_is_read_twice_forty_times() -> None:
    """It would be an expression of 2^40 terms."""
    nodes, now = [], "x"
    for i in range(40):
        nodes += [node("Add", [now, now], [f"a{i}"]), node("Mul", [f"a{i}", "c"], [f"m{i}"])]
        now = f"m{i}"
    m = build(nodes, {"x": (3, 50)}, {"c": np.array(0.51, np.float32)}, out=now)
    x = np.random.default_rng(0).random((3, 50), np.float32)
    np.testing.assert_allclose(superopt.compile(m)(x=x)[now], x * 1.02**40, rtol=1e-5)


def chain(count: int, step: Callable[[int, str], tuple[list, str]]) -> tuple[list, str]:
    nodes, now = [], "x"
    for k in range(count):
        own, now = step(k, now)
        nodes += own
    return nodes, now


def cubes(k: int, v: str) -> tuple[list, str]:
    return [node("Mul", [v, v], [f"s{k}"]), node("Mul", [f"s{k}", v], [f"t{k}"]),
            node("Tanh", [f"t{k}"], [f"v{k}"])], f"v{k}"  # fmt: skip


def folds(k: int, v: str) -> tuple[list, str]:
    return [node("Transpose", [v], [f"t{k}"]), node("Reshape", [f"t{k}", "sh"], [f"v{k}"])], f"v{k}"


def deep(k: int, v: str) -> tuple[list, str]:
    return [node("Tanh", [v], [f"v{k}"])], f"v{k}"


CHAINS = {"cubes": (cubes, 20), "folds": (folds, 20), "deep": (deep, 400)}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CHAINS)
def test_long_chains(name: str) -> None:
    step, count = CHAINS[name]
    nodes, out = chain(count, step)
    m = build(nodes, {"x": (4, 33)}, {"sh": np.array([4, 33], np.int64)}, out=out)
    feeds = {"x": np.random.default_rng(0).random((4, 33), np.float32)}
    near(superopt.compile(m)(**feeds), reference(m, feeds))


def test_a_sum_of_hundreds() -> None:
    """Deeper than Python goes: it runs in onnxruntime."""
    m = build([node("Sum", ["x", *["c"] * 300], ["y"])], {"x": (3,)}, {"c": np.ones(3, np.float32)})
    np.testing.assert_array_equal(superopt.compile(m)(x=np.zeros(3, np.float32))["y"], 300)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Transpose", ["x"], ["t"], perm=[2, 0, 1]), node("Flatten", ["t"], ["y"])],
        [node("Reshape", ["x", "sh"], ["y"], allowzero=1)],
    ],
)
def test_what_is_folded_of_nothing(nodes: list) -> None:
    m = build(nodes, {"x": (3, 0, 4)}, {"sh": np.array([0, 6], np.int64)})
    feeds = {"x": np.zeros((3, 0, 4), np.float32)}
    near(superopt.compile(m)(**feeds), reference(m, feeds))


def test_an_input_of_any_rank() -> None:
    """onnxruntime reads it, ONNX's checker does not."""
    m = build([node("Relu", ["x"], ["y"])], {"x": (1,)})
    for v in (*m.graph.input, *m.graph.output):
        v.type.tensor_type.ClearField("shape")
    for shape in ((3, 9), (), (2, 1, 5)):
        assert superopt.compile(m)(x=np.ones(shape, np.float32))["y"].shape == shape


@pytest.mark.parametrize(("op", "number"), [("Max", np.nan), ("Min", np.nan), ("Div", -0.0)])
def test_constants_that_no_fraction_is(op: str, number: float) -> None:
    m = build([node(op, ["x", "c"], ["y"])], {"x": (4,)}, {"c": np.array(number, np.float32)})
    feeds = {"x": np.array([1, -2, np.inf, 0.5], np.float32)}
    near(superopt.compile(m)(**feeds), reference(m, feeds))


@pytest.mark.parametrize(
    ("op", "index", "attrs"),
    [("Gather", [2, 0, -1], {"axis": 1}), ("GatherElements", [[2, 0, 1]] * 3, {"axis": 0}),
     ("GatherND", [[1, 2], [0, 0]], {})],
)  # fmt: skip
def test_truth_values_that_are_gathered(op: str, index: list, attrs: dict) -> None:
    """By places that are computed elsewhere: a kernel reads two buffers."""
    nodes = [node("Greater", ["x", "zero"], ["b"]), node(op, ["b", "i"], ["y"], **attrs)]
    known = {"zero": np.zeros((), np.float32), "i": np.array(index)}
    m = build(nodes, {"x": (3, 4)}, known)
    feeds = {"x": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)}
    near(superopt.compile(m)(**feeds), reference(m, feeds))
