"""Row kernels, attention and products of symbolic sizes: which sizes a class has, and results."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.compilation.model.compile_class import compile_size_class
from superopt.compilation.model.size_classes import SizeClass

WIDTH, HEADS = 32, 2
HEAD = WIDTH // HEADS
SIZES = (*range(1, 20), 31, 33, 47, 49, 63, 64, 65, 79, 81, 97, 127, 130, 200)


INTEGERS = {"heads": (0, 0, HEADS, HEAD), "rows": (0, 0, WIDTH), "last": (-1,), "flat": (0, 0, -1)}


@dataclass(frozen=True)
class Case:
    """Nodes from `x` to `y`, in ONNX text; shapes of both, and of constants."""

    nodes: str
    x: str = "batch, n, 32"
    y: str = "batch, n, 32"
    constants: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def model(self) -> onnx.ModelProto:
        text = f"""<ir_version: 9, opset_import: ["" : 18]>
            agraph (float[{self.x}] x) => (float[{self.y}] y) {{ {self.nodes} }}"""
        made = onnx.parser.parse_model(text)
        rng = np.random.default_rng(0)
        for name, shape in self.constants:
            values = rng.standard_normal(shape).astype(np.float32) / 4
            made.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
        for name, given in INTEGERS.items():
            if name in self.nodes:
                made.graph.initializer.append(
                    helper.make_tensor(name, TensorProto.INT64, [len(given)], given)
                )
        return made


ATTENTION = """
    q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)
    q4 = Reshape(q, heads)  k4 = Reshape(k, heads)  v4 = Reshape(v, heads)
    qt = Transpose<perm=[0, 2, 1, 3]>(q4)
    kt = Transpose<perm=[0, 2, 3, 1]>(k4)
    vt = Transpose<perm=[0, 2, 1, 3]>(v4)
    s = MatMul(qt, kt)  p = Softmax(s)  o = MatMul(p, vt)
    ot = Transpose<perm=[0, 2, 1, 3]>(o)  r = Reshape(ot, rows)
    z = MatMul(r, wo)  y = Add(z, x)"""
SQUARE = tuple((name, (WIDTH, WIDTH)) for name in ("wq", "wk", "wv", "wo"))
CASES = {
    "attention": Case(ATTENTION, constants=SQUARE),
    "softmax along a symbolic axis": Case("y = Softmax(x)", "batch, 3, n", "batch, 3, n"),
    "log softmax": Case("y = LogSoftmax(x)", "batch, n", "batch, n"),
    "layer norm": Case(
        "y = LayerNormalization(x, g, b)", constants=(("g", (WIDTH,)), ("b", (WIDTH,)))
    ),
    "layer norm along a symbolic axis": Case(
        "m = ReduceMean<keepdims=1>(x, last)  d = Sub(x, m)  s = Mul(d, d)"
        " v = ReduceMean<keepdims=1>(s, last)  e = Add(v, one)  r = Sqrt(e)  y = Div(d, r)",
        "batch, n", "batch, n", constants=(("one", (1,)),),
    ),
    "a maximum along a symbolic axis": Case(
        "y = ReduceMax<keepdims=0>(x, last)", "batch, 5, n", "batch, 5"
    ),
    "sums along a symbolic axis": Case(
        "y = ReduceSum<keepdims=0>(x, last)", "batch, 5, n", "batch, 5"
    ),
    "softmax of whole vectors": Case(
        "z = Reshape(x, flat)  y = Softmax(z)", "batch, 3, n, 16", "batch, 3, m"
    ),
    "sums of whole vectors": Case(
        "z = Reshape(x, flat)  y = ReduceSum<keepdims=0>(z, last)", "batch, 5, n, 16", "batch, 5"
    ),
    "a product summed over a symbolic axis": Case(
        "t = Transpose<perm=[0, 2, 1]>(x)  y = MatMul(t, x)", y="batch, 32, 32"
    ),
    "two layers": Case(
        "h = MatMul(x, w)  r = Relu(h)  y = MatMul(r, u)",
        constants=(("w", (WIDTH, 100)), ("u", (100, WIDTH))),
    ),
}  # fmt: skip


def compile_class(what: str, example: dict[str, int]) -> tuple[SizeClass, ort.InferenceSession]:
    """Return the class of sizes like the example."""
    model = CASES[what].model()
    found = compile_size_class(superopt.compile(model, threads=1).compiler, example)
    assert found is not None
    return found, ort.InferenceSession(model.SerializeToString())


def shape_at(text: str, sizes: dict[str, int]) -> list[int]:
    return [sizes.get(d.strip()) or int(d) for d in text.split(",")]


def check_results(
    what: str, found: SizeClass, session: ort.InferenceSession, some: Sequence[dict[str, int]]
) -> int:
    """Check the results at the sizes that the class has; return their number."""
    rng = np.random.default_rng(1)
    count = 0
    for sizes in some:
        if not found.formulas.admits(sizes):
            continue
        count += 1
        x = rng.standard_normal(shape_at(CASES[what].x, sizes)).astype(np.float32)
        (want,) = session.run(None, {"x": x})
        variant = found.variant(sizes)
        assert variant is not None
        (got,) = variant.bound_step.run_bound([x], on_device=False)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=str(sizes))
    return count


@pytest.mark.one_in(4)
@pytest.mark.parametrize("n", [1, 2, 5, 12, 20, 37, 64, 150])
@pytest.mark.parametrize("what", CASES)
def test_results_are_right_at_all_sizes_of_a_class(what: str, n: int) -> None:
    found, session = compile_class(what, {"batch": 2, "n": n})
    some = [{"batch": b, "n": k} for b in (1, 2, 3) for k in SIZES if b == 2 or k in (n, 17, 65)]
    assert check_results(what, found, session, some) > 0


LEVELS = {2: (2, 3), 5: (4, 7), 12: (8, 15), 20: (16, 63), 37: (16, 63), 150: (64, None)}


@pytest.mark.parametrize(("n", "least", "greatest"), [(n, *ends) for n, ends in LEVELS.items()])
@pytest.mark.parametrize("what", ["attention", "two layers"])
def test_classes_have_all_sizes_of_a_level(
    what: str, n: int, least: int, greatest: int | None
) -> None:
    found, _ = compile_class(what, {"batch": 1, "n": n})
    admitted = {k for k in range(1, 1001) if found.formulas.admits({"batch": 1, "n": k})}
    assert admitted >= {*range(least, (greatest or 1000) + 1)}


@pytest.mark.parametrize("n", [2, 12, 37, 150])
def test_a_class_has_all_batches(n: int) -> None:
    found, _ = compile_class("attention", {"batch": 2, "n": n})
    assert all(found.formulas.admits({"batch": k, "n": n}) for k in range(2, 200))


def test_tiles_for_small_sizes_are_not_used_for_large_ones() -> None:
    found, _ = compile_class("two layers", {"batch": 1, "n": 5})
    assert not found.formulas.admits({"batch": 1, "n": 64})


def test_attention_of_symbolic_sizes_is_one_kernel() -> None:
    found, _ = compile_class("attention", {"batch": 1, "n": 37})
    (step,) = found.load_steps() or ()
    assert step is not None
    options = step.code.program.options.values()
    assert any(option.algorithm == "attention" for option in options)
