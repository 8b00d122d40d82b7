"""Folding: what is constant is computed once, exactly as often as bounds and types allow."""

import time
from collections.abc import Set

import numpy as np
import pytest

from superopt.ir import constant_folding
from superopt.ir import graph as ir_graph
from superopt.ir.constant_folding import (
    EXTRA_CONSTANT_BYTES,
    MAX_CONSTANT_GROWTH,
    fold_constants,
    folded_bytes,
)
from superopt.ir.constant_values import is_constant
from superopt.ir.op import Attr, Op, Payload
from superopt.ir.stand_ins import reads_stand_in, stand_in
from superopt.ops import OPS
from superopt.te.expr.dtype import BF16, BOOL, F16, F32, F64, I4, I8, I32, I64, U8, DType, to_numpy
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType

X = ir_graph.Input("x", TensorType(F32, (2,)))


def op(name: str, *inputs: ir_graph.Value | None, **attrs: Attr) -> ir_graph.Value:
    return ir_graph.result(ir_graph.node(OPS[name], inputs, **attrs), 0)


def const(*values: float | list[float], dtype: DType = F32) -> ir_graph.Constant:
    return ir_graph.constant(np.array(values).astype(to_numpy(dtype)))


def scalar(value: float, dtype: DType = F32) -> ir_graph.Constant:
    return ir_graph.constant(np.array(value).astype(to_numpy(dtype)))


def folded(v: ir_graph.Value, **limits: int) -> ir_graph.Value:
    """`v` after folding a graph whose only output it is."""
    (out,) = fold_constants(ir_graph.Graph((X,), (v,)), **limits).graph.outputs
    return out


def value_of(v: ir_graph.Value) -> np.ndarray:
    found = folded(v)
    assert isinstance(found, ir_graph.Constant), found
    assert found.type == v.type
    return found.load()


def test_a_constant_subgraph_becomes_one_constant() -> None:
    y = op("Mul", X, op("Add", const(1, 2), const(3, 4)))
    done = fold_constants(ir_graph.Graph((X,), (y,)))
    (out,) = done.graph.outputs
    assert out is op("Mul", X, const(4, 6))
    assert done.removed_nodes == 1
    assert (done.bytes_before, done.bytes_after) == (16, 8)
    assert done.skipped == ()


def test_large_results_of_stand_ins_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are priced by their types alone; small ones are computed, as rules inspect them."""
    rng = np.random.default_rng(0)
    weights = [
        stand_in(ir_graph.constant(rng.standard_normal((600, 600)).astype(np.float32)), n)
        for n in range(2)
    ]
    x = ir_graph.Input("x", TensorType(F32, (600, 600)))
    total = op("Add", *weights)
    y = op("Mul", op("Add", x, total), op("ReduceSum", total, axes=(0, 1), keepdims=1))

    computed, load_root = [], constant_folding._load_root

    def load(v: ir_graph.Value, sensitive: Set[ir_graph.Value]) -> np.ndarray:
        computed.append(v)
        return load_root(v, sensitive)

    monkeypatch.setattr(constant_folding, "_load_root", load)
    (out,) = fold_constants(ir_graph.Graph((x,), (y,)), lazy=True).graph.outputs
    product = ir_graph.producer(out)
    assert product is not None
    inner, sums = product.inputs
    node = ir_graph.producer(inner)
    assert node is not None
    found = node.inputs[1]
    assert isinstance(found, ir_graph.Constant)
    assert (found.type, found.nbytes) == (total.type, 600 * 600 * 4)
    assert reads_stand_in(found)
    assert isinstance(sums, ir_graph.Constant)
    assert computed == []
    np.testing.assert_array_equal(found.load(), weights[0].load() + weights[1].load())


def test_a_graph_without_constants_is_the_same_object() -> None:
    graph = ir_graph.Graph((X,), (op("Relu", X),))
    assert fold_constants(graph).graph is graph


def test_inputs_and_unused_inputs_stay() -> None:
    unused = ir_graph.Input("unused", TensorType(F32, (3,)))
    graph = ir_graph.Graph((unused, X), (op("Add", X, op("Neg", const(1, 2))),))
    assert fold_constants(graph).graph.inputs == (unused, X)


def test_outputs_fold_too() -> None:
    assert value_of(op("Neg", const(1, 2))).tolist() == [-1, -2]


def test_only_what_is_read_by_something_else_is_computed() -> None:
    inner = op("Neg", const(1, 2))
    outer = op("Exp", inner)
    assert (
        len(ir_graph.constants(fold_constants(ir_graph.Graph((X,), (op("Add", X, outer),))).graph))
        == 1
    )


@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16, I64, I32, I8, U8, BOOL, I4], ids=str)
def test_types_and_ranks_are_kept(dtype: DType) -> None:
    for v in (
        scalar(1, dtype),
        const(1, 0, dtype=dtype),
        ir_graph.constant(np.zeros((0, 3), to_numpy(dtype))),
    ):
        for name in ("Identity", "Where"):
            y = op("Where", scalar(1, BOOL), v, v) if name == "Where" else op(name, v)
            got = value_of(y)
            assert got.dtype == to_numpy(dtype)
            assert got.shape == v.type.shape
            assert got.tobytes() == v.load().tobytes()


def test_results_of_several_are_folded_one_by_one() -> None:
    split = ir_graph.node(OPS["Split"], [const(1, 2, 3)], axis=0, split=(1, 2))
    y = op("Add", X, ir_graph.result(split, 1))
    assert folded(y) is op("Add", X, const(2, 3))
    both = fold_constants(ir_graph.Graph((X,), ir_graph.results(split))).graph.outputs
    assert [c.load().tolist() for c in both] == [[1], [2, 3]]  # type: ignore[union-attr]


# --- numbers --------------------------------------------------------------------------------------


def test_arithmetic_is_rounded_once() -> None:
    """1e8 + 1 - 1e8 is 0 in float32, and 1 when only the result is rounded."""
    y = op("Sub", op("Add", const(1e8), const(1)), const(1e8))
    assert value_of(y).tolist() == [1.0]
    third = op("Div", const(1), const(3))
    (got,) = value_of(op("Mul", third, const(3)))
    assert got == np.float32(np.float64(1) / 3 * 3)


def test_movements_leave_every_bit() -> None:
    odd = np.array([[np.nan, -0.0, np.inf], [1e-45, 3.4e38, -1]], np.float32)
    odd.view(np.uint32)[0, 0] |= 5  # a NaN with a payload
    y = op("Transpose", ir_graph.constant(odd), perm=(1, 0))
    assert value_of(y).tobytes() == np.ascontiguousarray(odd.T).tobytes()


def test_rounding_that_the_model_asks_for_is_done() -> None:
    """A value that passes through float16 has the precision of float16 afterwards."""
    y = op("Cast", op("Cast", const(1 / 3), to=F16), to=F32)
    assert value_of(y).tolist() == [float(np.float16(1 / 3))]


def test_steps_see_what_they_see_at_run_time() -> None:
    """0.7 / 0.1 is 7 once it is float32: rounded down it is 7, not 6."""
    q = op("Div", const(0.7), const(0.1))
    assert np.float32(0.7) / np.float32(0.1) == np.float32(
        np.float64(np.float32(0.7)) / np.float32(0.1)
    )
    runtime = np.floor(np.float32(0.7) / np.float32(0.1))
    assert value_of(op("Floor", q)).tolist() == [runtime]
    assert value_of(op("Cast", q, to=I64)).tolist() == [int(runtime)]
    assert value_of(op("Equal", q, const(float(np.float32(0.7) / np.float32(0.1))))).tolist() == [
        True
    ]


def test_integers_wrap_and_divide_as_onnx_says() -> None:
    assert value_of(op("Add", const(127, dtype=I8), const(1, dtype=I8))).tolist() == [-128]
    assert value_of(op("Div", const(-7, dtype=I32), const(2, dtype=I32))).tolist() == [-3]


# --- what is not folded ---------------------------------------------------------------------------


def opaque(*inputs: ir_graph.Value, name: str = "RandomNormal") -> ir_graph.Value:
    return ir_graph.opaque_node(Op(name, None), inputs, Payload(object()), [TensorType(F32, (2,))])


def test_opaque_and_random_nodes_are_never_folded() -> None:
    r = opaque()
    s = opaque(const(1, 2), name="Custom")
    y = op("Add", op("Add", r, s), op("Add", const(1, 2), const(3, 4)))
    out = folded(y)
    assert out is op("Add", op("Add", r, s), const(4, 6))
    memo: dict[ir_graph.Node, bool] = {}
    assert not is_constant(r, memo)
    assert not is_constant(op("Neg", s), memo)
    assert is_constant(op("Neg", const(1)), memo)
    assert not is_constant(X, memo)
    assert not is_constant(op("Neg", X), memo)


def test_what_opaque_nodes_read_is_folded() -> None:
    c = op("Add", const(1, 2), const(3, 4))
    out = folded(opaque(c, name="Custom"))
    assert out.inputs == (const(4, 6),)  # type: ignore[union-attr]


def test_symbolic_sizes_are_not_folded() -> None:
    y = op("Expand", scalar(1), shape=(Size("n"), 2))
    assert folded(y) is y


def test_strings_are_not_folded() -> None:
    words = ir_graph.constant(np.array(["a", "b"], object))
    y = op("Identity", words)
    done = fold_constants(ir_graph.Graph((X,), (y,)))
    assert done.graph.outputs == (y,)
    assert done.skipped == ("<Identity string[2]>: strings",)


def test_what_fails_is_left_for_run_time() -> None:
    """It may never be reached; other constants are folded all the same."""
    bad = op("Gather", const(1, 2), const(9, dtype=I64))
    good = op("Neg", const(1, 2))
    graph = ir_graph.Graph((X,), (op("Add", bad, bad), good, op("Add", good, op("Abs", good))))
    done = fold_constants(graph)
    assert done.graph.outputs[0] is graph.outputs[0]
    assert done.graph.outputs[1] is const(-1, -2)
    assert len(done.skipped) == 1
    assert "<Gather f32[1]>" in done.skipped[0]


# --- bounds ---------------------------------------------------------------------------------------


def wide(n: int, seed: float = 1.0) -> ir_graph.Value:
    return op("Expand", const(seed), shape=(n,))


def test_the_model_grows_by_its_own_size_and_one_percent_at_most() -> None:
    w = ir_graph.constant(np.arange(100_000, dtype=np.float32))
    x = ir_graph.Input("x", TensorType(F32, (100_000,)))
    fits, too_much = wide(100_000, 1.5), wide(100_000, 2.5)
    y = op("Add", op("Add", op("Mul", x, w), fits), too_much)
    done = fold_constants(ir_graph.Graph((x,), (y,)))
    assert done.bytes_after <= MAX_CONSTANT_GROWTH * done.bytes_before + EXTRA_CONSTANT_BYTES
    assert done.bytes_after >= 1.9 * done.bytes_before  # one of them was folded
    assert len(done.skipped) == 1
    assert done.skipped[0] == "<Expand f32[100000]> would take 400000 bytes"


def test_the_operands_of_what_is_too_large_are_folded() -> None:
    big = op("Expand", op("Neg", op("Exp", const(1))), shape=(1 << 20,))
    out = folded(big)
    assert out.op.name == "Expand"  # type: ignore[union-attr]
    assert isinstance(out.inputs[0], ir_graph.Constant)  # type: ignore[union-attr]


def test_a_limit_can_be_given() -> None:
    y = wide(1000)
    assert isinstance(folded(y, limit_bytes=4000), ir_graph.Constant)
    assert folded(y, limit_bytes=3999) is y


def test_a_huge_intermediate_result_is_not_computed() -> None:
    """4 TB in the middle of a subgraph whose result is one number."""
    huge = op("Expand", const(1), shape=(1 << 20, 1 << 20))
    y = op("ReduceSum", huge, axes=(0, 1), keepdims=0)
    begin = time.process_time()
    done = fold_constants(ir_graph.Graph((X,), (y,)))
    assert done.graph.outputs == (y,)
    assert time.process_time() - begin < 1
    assert "would take 4398046511104 bytes" in done.skipped[0]


def test_elements_of_four_bits_are_half_a_byte() -> None:
    w = ir_graph.constant(np.zeros(40_000, to_numpy(I4)))
    done = fold_constants(ir_graph.Graph((X,), (op("Identity", w), op("Transpose", w, perm=(0,)))))
    assert done.bytes_before == 20_000


def test_many_constants_in_linear_time() -> None:
    y: ir_graph.Value = X
    for k in range(3000):
        y = op("Add", y, op("Neg", const(k, k + 1)))
    begin = time.process_time()
    done = fold_constants(ir_graph.Graph((X,), (y,)))
    assert time.process_time() - begin < 5
    assert done.removed_nodes == 3000


def test_a_deep_chain_of_constants() -> None:
    v: ir_graph.Value = const(1, 2)
    for _ in range(20_000):
        v = op("Neg", v)
    assert folded(v) is const(1, 2)


def test_shared_results_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from superopt.ir import constant_folding as module

    calls: list[ir_graph.Node] = []
    real = module.node_results

    def watched(n: ir_graph.Node, *args: object) -> list[np.ndarray]:
        calls.append(n)
        return real(n, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "node_results", watched)
    shared = op("Exp", const(1, 2))
    ys = tuple(op("Add", X, op(name, shared)) for name in ("Neg", "Abs", "Sqrt"))
    fold_constants(ir_graph.Graph((X,), ys))
    assert len(calls) == len(set(calls)) == 4


def test_rounding_sensitive_fp16_values_are_rounded_at_each_step() -> None:
    """(2048 + 0.75) - 2048 is 0 in float16: the sum has lost what is less than 1."""
    big = const(2048, dtype=F16)
    assert value_of(op("Sub", op("Add", big, const(0.75, dtype=F16)), big)).tolist() == [0.0]
    tenth, ten = const(0.1, dtype=F16), const(10, dtype=F16)
    product = op("Mul", op("Mul", tenth, ten), ten)
    wanted = np.floor(np.float16(0.1) * np.float16(10) * np.float16(10))
    assert wanted != np.floor(np.float64(np.float16(0.1)) * 100)
    assert value_of(op("Floor", product)).tolist() == [wanted]


def test_kept_values_stay_nodes_and_are_folded_where_they_are_operands_of_constants() -> None:
    a, b = (op("Transpose", const([1.0, 2.0], [3.0, n]), perm=(1, 0)) for n in (4.0, 5.0))
    both = op("Concat", a, b, axis=0)
    graph = ir_graph.Graph((X,), (op("MatMul", a, X), op("MatMul", both, X)))
    assert folded_bytes(graph) == (4 + 8) * 4
    assert folded_bytes(graph, {a, b}) == 8 * 4
    found = fold_constants(graph, kept={a, b}).graph
    assert [n.op.name for n in ir_graph.nodes(found)] == ["Transpose", "MatMul", "MatMul"]
    all_folded = fold_constants(graph).graph
    assert [n.op.name for n in ir_graph.nodes(all_folded)] == ["MatMul", "MatMul"]
