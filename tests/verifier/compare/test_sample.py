"""What the comparison of two graphs makes of a sample: constants as expressions, patterns of
constants, blocks, and the verdict on each output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest

from superopt.ir import graph as ir_graph
from superopt.ir.constant_folding import fold_constants
from superopt.ir.evaluate import evaluate
from superopt.ir.graph import Graph, Value
from superopt.ir.text import show_graph
from superopt.ops import OPS
from superopt.rules.lang.rule import Rule
from superopt.rules.trial.instances import instances
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F32, I64
from superopt.te.expr.tensor import TensorType
from superopt.verifier.compare import regions
from superopt.verifier.compare.constant_folds import foldable_constants
from superopt.verifier.compare.constant_patterns import constant_tensor, is_readable
from superopt.verifier.compare.regions import compare_graphs
from superopt.verifier.compare.related_constants import relate_constants
from superopt.verifier.prove import Limits
from superopt.verifier.verdict import Proved
from tests.support.rules.sample import GROUPS, check_golden, sample

SEED = 7
LIMITS = Limits(seconds=600, work=600, work_beyond=300)
MAX_ELEMENTS = 1 << 9  # of a folded constant
MAX_SHOWN = 8  # constants of a graph
RNG = np.random.default_rng(3)
X, Y = (ir_graph.Input(name, TensorType(F32, (5, 6))) for name in "xy")
IMAGE = ir_graph.Input("image", TensorType(F32, (2, 6, 4, 4)))
INPUTS = (X, Y, IMAGE)


def draw(*shape: int) -> np.ndarray:
    return RNG.integers(2, 90, shape).astype(np.float32)


S, T, M = draw(6), draw(6), np.float32(3)
W, V, U = draw(6, 8), draw(6, 8), draw(8, 4)
K, L = draw(8, 6, 3, 3), draw(8, 6, 1, 1)
B = draw(8)


def op(name: str, *given: Value | np.ndarray | float, **attrs: object) -> Value:
    inputs = [
        v if not isinstance(v, (np.ndarray, np.floating, float))
        else ir_graph.constant(np.asarray(v, np.float32))
        for v in given
    ]  # fmt: skip
    made = ir_graph.node(OPS[name], inputs, **attrs)  # type: ignore[arg-type]
    return ir_graph.results(made)[0]


PRODUCT = op("MatMul", X, W)
CONV = op("Conv", IMAGE, K, B, pads=(1, 1, 1, 1))
GRAPHS: dict[str, Value] = {
    "scale, shift": op("Add", op("Mul", X, S), T),
    "shift, scale": op("Mul", op("Sub", X, T), S),
    "from a constant": op("Sub", T, op("Mul", X, M)),
    "quotient": op("Div", op("Add", X, T), S),
    "scaled product": op("Add", op("Mul", PRODUCT, B), B),
    "product of a shift": op("MatMul", op("Add", X, T), W),
    "product of a scale": op("MatMul", op("Mul", X, S), W),
    "two products": op("MatMul", op("Add", PRODUCT, B), U),
    "sum of products": op("Add", PRODUCT, op("MatMul", Y, V)),
    "difference of products": op("Sub", PRODUCT, op("MatMul", X, V)),
    "transposed product": op("Transpose", op("Mul", PRODUCT, B), perm=(1, 0)),
    "heads": op("Transpose", op("Reshape", PRODUCT, shape=(5, 2, 4)), perm=(1, 0, 2)),
    "gemm": op("Gemm", X, W, B, alpha=0.5, beta=2.0),
    "gemm of a transpose": op("Mul", op("Gemm", X, np.ascontiguousarray(W.T), B, transB=1), M),
    "convolution": op("Mul", CONV, draw(8, 1, 1)),
    "batch norm": op("BatchNormalization", CONV, B, draw(8), draw(8), draw(8)),
    "convolution of a scale": op("Conv", op("Mul", IMAGE, draw(6, 1, 1)), K),
    "sum of convolutions": op("Add", CONV, op("Conv", IMAGE, L)),
    "concat of products": op("Mul", op("Concat", PRODUCT, op("MatMul", X, V), axis=1), draw(16)),
    "concat of scales": op("Concat", op("Mul", X, S), op("Mul", Y, T), axis=0),
    "padded": op("Pad", op("Mul", X, S), pads=(0, 1, 0, 2)),
    "sliced": op("Slice", op("Mul", PRODUCT, B), starts=(2,), ends=(7,), axes=(1,)),
    "relu between": op("Mul", op("Relu", op("Mul", X, S)), T),
}
ROWS: dict[str, Value] = {
    "x s": op("Mul", X, S), "x s + t": op("Add", op("Mul", X, S), T), "t - x": op("Sub", T, X),
    "x w": op("MatMul", X, V[:, :6]), "x w + t": op("Add", op("MatMul", X, W[:, :6]), T),
    "(x s) w": op("MatMul", op("Mul", X, S), W[:, :6]), "-x": op("Neg", op("Mul", X, S)),
    "gemm": op("Gemm", X, W[:, :6], T, alpha=0.5), "x / s": op("Div", op("Sub", X, T), S),
    "x + y": op("Add", op("MatMul", X, W[:, :6]), op("Mul", Y, S)), "3 x": op("Mul", X, M),
    "table": op("Gather", draw(9, 6), ir_graph.Input("i", TensorType(I64, (5,))), axis=0),
}  # fmt: skip
COLUMN, SQUARE = draw(5, 1), draw(6, 6)
AFTER: dict[str, Callable[[Value], Value]] = {
    "* s": lambda v: op("Mul", v, T), "* m": lambda v: op("Mul", v, M),
    "* column": lambda v: op("Mul", v, COLUMN), "+ t": lambda v: op("Add", v, S),
    "- t": lambda v: op("Sub", v, S), "t -": lambda v: op("Sub", S, v),
    "/ s": lambda v: op("Div", v, T), "s /": lambda v: op("Div", T, v), "-": lambda v: op("Neg", v),
    "w": lambda v: op("MatMul", v, SQUARE), "left w": lambda v: op("MatMul", SQUARE[:5, :5], v),
    "gemm": lambda v: op("Gemm", v, SQUARE, T, transB=1, beta=2.0),
    "+ x": lambda v: op("Add", v, X), "- y s": lambda v: op("Sub", v, op("Mul", Y, S)),
    "transposed": lambda v: op("Mul", op("Transpose", v, perm=(1, 0)), COLUMN.reshape(5)),
    "in heads": lambda v: op("Mul", op("Reshape", v, shape=(5, 2, 3)), draw_of(2, 1)),
    "sliced": lambda v: op("Slice", v, starts=(1,), ends=(4,), axes=(1,)),
    "padded": lambda v: op("Pad", v, pads=(0, 1, 0, 2)),
    "beside x": lambda v: op("Mul", op("Concat", v, X, axis=1), draw_of(12)),
    "below y w": lambda v: op("Concat", v, op("MatMul", Y, SQUARE), axis=0),
    "relu": lambda v: op("Mul", op("Relu", v), S), "squared": lambda v: op("Mul", v, v),
}  # fmt: skip


def draw_of(*shape: int) -> np.ndarray:
    return np.arange(2, 2 + int(np.prod(shape)), dtype=np.float32).reshape(shape)


ARRAYS: dict[str, np.ndarray] = {
    "ones": np.ones((2, 3), np.float32), "eye": np.eye(4, dtype=np.float32),
    "range": np.arange(40, dtype=np.int64), "every third": np.arange(5, 95, 3, dtype=np.int64),
    "grid": np.add.outer(np.arange(7) * 10, np.arange(9)).astype(np.float32),
    "causal": np.triu(np.full((9, 9), -1e4, np.float32), 1), "lower": np.tri(6, 7, -1) > 0,
    "band": (np.abs(np.subtract.outer(np.arange(9), np.arange(9))) < 3).astype(np.float32),
    "few": np.array([3, -1, 7], np.int64), "many": (np.arange(60) ** 2 % 61).astype(np.float32),
    "fraction": np.array([0.1, 0.25], np.float64), "exact": np.array([0.5, 0.25], np.float64),
    "empty": np.zeros((0, 3), np.float32), "bools": np.array([True, False, True]),
    "first row": np.arange(8)[None].repeat(8, 0) == 0, "step": np.arange(30) >= 11,
    "descending": np.arange(40, 0, -1), "two values": np.array([1, 5, 5, 1, 5] * 8),
}  # fmt: skip


def show(v: Value) -> str:
    lines = show_graph(Graph((), (v,))).splitlines()
    return "; ".join(x.strip() for x in lines if x.strip().startswith(("%", "return")))


def test_constants_that_a_tool_may_fold() -> None:
    lines = []
    for name, value in GRAPHS.items():
        for v in foldable_constants(Graph(INPUTS, (value,)), MAX_ELEMENTS):
            (array,) = evaluate(Graph((), (v,)), {}, Reals())
            lines.append(f"{name}: {v.type}, sum {np.sum(array, dtype=np.float64):.5g}: {show(v)}")
    check_golden("compare", "folds", lines)


def test_constants_after_each_operator() -> None:
    lines = []
    index = ir_graph.Input("i", TensorType(I64, (5,)))
    for (name, row), (after, build) in product(ROWS.items(), AFTER.items()):
        found = foldable_constants(Graph((*INPUTS, index), (build(row),)), MAX_ELEMENTS)
        arrays = [evaluate(Graph((), (v,)), {}, Reals())[0] for v in found[:MAX_SHOWN]]
        shown = [f"{list(a.shape)} {a.sum(dtype=np.float64):.6g}" for a in arrays]
        lines.append(f"{name}, {after}: {len(found)}: {'; '.join(shown)}")
    check_golden("compare", "operators", lines)


def test_patterns_of_constants() -> None:
    lines = []
    for name, array in ARRAYS.items():
        c = ir_graph.constant(array)
        lines.append(f"{name}: {constant_tensor(c, name).body} {is_readable(c)}")
    check_golden("compare", "patterns", lines)


def blocks() -> Iterator[np.ndarray]:
    """Constants of a second graph, out of W and V."""
    yield from (W.T, W[1:4, 2:], W[::2], W[:, ::-1], np.concatenate([W, V], 1), np.stack([V, W]))
    yield np.pad(W, ((1, 0), (0, 2)))
    yield W.reshape(6, 2, 4).transpose(1, 0, 2)
    yield np.block([[W, np.zeros_like(V)], [np.zeros_like(W), V]])
    yield np.concatenate([W[:3], V[3:]], 0)
    yield np.concatenate([W.T, V.T[2:5]], 0)
    yield np.broadcast_to(W[:, :1], (6, 4))
    yield W + 1
    yield W * B
    yield (W + V) / 4
    yield np.float32(7) * W[0]
    yield from (W.reshape(-1), W[:, :1], W[2], W[:, ::2], W[1::2, 1::3], np.flip(W, (0, 1)))
    yield np.concatenate([V, W[:, :4], W[:, 4:]], 1)
    yield np.concatenate([np.zeros((2, 8), np.float32), W, np.zeros((1, 8), np.float32)], 0)
    yield np.tile(W, (2, 1))
    yield np.repeat(W, 2, 0)
    yield W[[0, 2, 1, 3, 4, 5]]
    yield np.ascontiguousarray(W.reshape(2, 3, 2, 4).transpose(0, 2, 1, 3))
    yield W @ W.T
    yield W - V
    yield W / B
    yield W * np.float32(0.5) + V
    yield np.where(W > 40, W, 0)
    yield np.zeros((3, 4), np.float32)
    yield draw_of(5, 5)


def test_blocks_of_constants() -> None:
    first = op("Add", op("Mul", PRODUCT, B), op("MatMul", X, V))
    lines = []
    for array in blocks():
        c = ir_graph.constant(np.ascontiguousarray(array))
        _, found = relate_constants(Graph((X,), (first,)), Graph((X,), (c,)))
        lines += [f"{array.shape}: {r.ulps is None}: {show(r.value)}" for r in found]
        for r in found:
            np.testing.assert_allclose(evaluate(Graph((), (r.value,)), {}, Reals())[0], array, 1e-6)
        lines += [] if found else [f"{array.shape}: of no other constant"]
    check_golden("compare", "blocks", lines)


def comparison(rule: Rule) -> Iterator[str]:
    """The sides of an instance with constants, which the second graph has folded."""
    for one in instances(rule, SEED, constants=True, rounds=1):
        first, second = Graph(one.inputs, one.lhs), fold_constants(Graph(one.inputs, one.rhs)).graph
        second, relations = relate_constants(first, second)
        found = compare_graphs(first, second, LIMITS, 600.0, SEED)
        yield f"  {one}"
        yield from (f"    {r.ulps is None}: {show(r.value)}" for r in relations)
        for v in found.outputs:
            text = f"{v.obligations} {v.steps}" if isinstance(v, Proved) else bool(v)
            yield f"    {text}, {len(found.regions)} regions"
        return


@pytest.mark.ci
@pytest.mark.parametrize("group", GROUPS)
def test_two_graphs(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "ROUND_SECONDS", (600.0,))  # only work ends a proof
    rules = [r for r in sample(group)[::2] if r.name != "matmul-merge"]  # undecided for 10 s
    check_golden("comparisons", group, (t for r in rules for t in (r.name, *comparison(r))))
