"""What matches and what does not: types, sizes, constants, conditions."""

from __future__ import annotations

import numpy as np

from superopt.ir.graph import Graph, Input, constant, node, opaque_node, result
from superopt.ir.op import Op, Payload
from superopt.ops import OPS
from superopt.rules.lang.value_facts import are_attrs_equal, is_const, uniform_value
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType
from tests.support.rules.places import found, graph, named

X = "x: f32[2, 3, 4]"


# --- types ----------------------------------------------------------------------------------------


def test_shapes_bind_sizes_and_compare_them() -> None:
    g = graph(
        "x: f32[2, 3]",
        "y: f32[3, 4]",
        "z: f32[5, 2, 3]",
        "%0 = MatMul(x, y)",
        "%1 = MatMul(z, y)",
        "%0, %1",
    )
    r = "r(a: f[*s, n, k], b: f[k, m]): MatMul(a, b) => a"
    assert [{k: v for k, v in named(m).items() if k not in "ab"} for m in found(r, g)] == [
        {"s": (), "n": 2, "k": 3, "m": 4},
        {"s": (5,), "n": 2, "k": 3, "m": 4},
    ]
    assert len(found("r(a: f[n, k], b: f): MatMul(a, b) => a", g)) == 1
    assert len(found("r(a: f[5, *s], b: f): MatMul(a, b) => a", g)) == 1
    assert len(found("r(a: f[n, n + 1], b: f): MatMul(a, b) => a", g)) == 1
    assert not found("r(a: f[n, n], b: f): MatMul(a, b) => a", g)
    assert not found("r(a: f[*s], b: f[*s]): MatMul(a, b) => a", g)


def test_a_run_of_axes_is_one_run() -> None:
    g = graph("x: f32[2, 3, 4]", "y: f32[2, 3, 5]", "%0 = Concat(x, y, axis=2)", "%0")
    (m,) = found("r(x: f[*s, n], y: f[*s, m]): Concat(x, y, axis=-1) => x where len(s) == 2", g)
    assert named(m)["s"] == (2, 3)
    assert not found("r(x: f[n, *s], y: f[n, *s]): Concat(x, y, axis=-1) => x", g)


def test_element_types() -> None:
    g = graph(
        "x: f32[2]",
        "y: f64[2]",
        "i: i64[2]",
        "%0 = Add(x, x)",
        "%1 = Add(y, y)",
        "%2 = Add(i, i)",
        "%0, %1, %2",
    )
    kinds = {"f": 2, "i": 1, "num": 3, "any": 3, "bool": 0, "f32": 1, "i64": 1, "i32": 0}
    for kind, count in kinds.items():
        assert len(found(f"r(x: {kind}): Add(x, x) => x", g)) == count, kind
    mixed = graph("x: f32[2]", "y: f64[2]", "%0 = Cast(y, to=f32)", "%1 = Add(x, %0)", "%1")
    assert not found("r(x: f, y: f): Add(x, Cast(y, to=f32)) => x", mixed)
    assert len(found("r(x: f, y: g): Add(x, Cast(y, to=f32)) => x", mixed)) == 1


def test_symbolic_sizes() -> None:
    g = graph(
        "x: f32[n, 4]",
        "y: f32[n, 4]",
        "z: f32[m, 4]",
        "%0 = Concat(x, y, axis=0)",
        "%1 = Concat(x, z, axis=0)",
        "%2 = Reshape(%0, shape=(n * 8,))",
        "%1, %2",
    )
    assert len(found("r(x: f[a, k], y: f[a, k]): Concat(x, y, axis=0) => x", g)) == 1
    two = "r(x: f[a, k], y: f[b, k]): Concat(x, y, axis=0) => x where {}"
    for condition, count in {
        "a == b": 1,
        "a != b": 0,
        "not a == b": 0,
        "a >= 1": 2,
        "a > 1": 0,
        "a < a + b": 2,
        "k == 4": 2,
        "known(k)": 2,
        "known(a)": 0,
        "a == b or k == 4": 2,
        "a == b and k == 5": 0,
        "shape(x) == shape(y)": 1,
        "a in (1, 2, b)": 1,
        "size(x, 0) * 2 == a + a": 2,
    }.items():
        assert len(found(two.format(condition), g)) == count, condition
    flat = "r(x: f[a, k], y: f): Reshape(Concat(x, y, axis=0), shape=(2 * a * k,)) => x"
    assert len(found(flat, g)) == 1


# --- constants ------------------------------------------------------------------------------------


def test_numbers_match_constants_by_value() -> None:
    g = graph(
        "x: f32[2, 2]",
        "c = const f32[2] [2.0, 2.0]",
        "d = const f32[2] [2.0, 3.0]",
        "e = const f32[] 0.1",
        "%0 = Mul(x, c)",
        "%1 = Mul(%0, d)",
        "%2 = Mul(%1, e)",
        "%2",
    )
    assert len(found("r(x: f): Mul(x, 2) => x", g)) == 1
    assert len(found("r(x: f): Mul(x, 0.1) => x", g)) == 1  # as f32 has it
    assert len(found("r(x: f): Mul(x, lit(1 / 10)) => x", g)) == 1
    (m,) = found("r(x: f): Mul(x, lit(v)) => Mul(x, lit(v * v)) where v > 1", g)
    assert m.bindings["v"] == 2.0
    assert not found("r(x: f): Mul(x, 3) => x", g)
    assert len(found("r(x: f, c: f): Mul(x, c) => x where value(c) > 0", g)) == 2


def test_numbers_of_small_types_are_rounded() -> None:
    third = float(np.float16(1 / 3))
    g = graph("x: f16[2]", f"c = const f16[] {third}", "%0 = Mul(x, c)", "%0")
    assert len(found("r(x: f): Mul(x, 0.3333333333333333) => x", g)) == 1
    whole = graph("x: i64[2]", "c = const i64[] 1", "%0 = Mul(x, c)", "%0")
    assert len(found("r(x: num): Mul(x, 1) => x", whole)) == 1
    assert not found("r(x: num): Mul(x, 1.5) => x", whole)


def test_filled_constants() -> None:
    g = graph(
        "x: f32[2, 2]",
        "c = const f32[2, 2] [1.0, 0.0, 0.0, 1.0]",
        "z = const f32[2] [0.0, 0.0]",
        "%0 = MatMul(x, c)",
        "%1 = Add(%0, z)",
        "%1",
    )
    assert len(found("r(x: f[n, k]): MatMul(x, eye(k)) => x", g)) == 1
    assert not found("r(x: f[n, k]): MatMul(x, eye(k + 1)) => x", g)
    assert len(found("r(x: f[n, k]): Add(x, zeros((k,))) => x", g)) == 1
    assert len(found("r(x: f[n, k]): Add(x, full((k,), n - 2)) => x", g)) == 1
    assert not found("r(x: f[n, k]): Add(x, zeros((n, k))) => x", g)
    assert not found("r(x: f[n, k]): Add(x, ones((k,))) => x", g)


def test_large_constants_are_not_read() -> None:
    def never() -> np.ndarray:
        raise AssertionError("read")

    big = TensorType(F32, (1024, 1024))
    c = constant(type=big, key="on disk", load=never, nbytes=4 << 20)
    x = Input("x", big)
    g = Graph((x,), (node(OPS["Mul"], [x, c]),))
    assert uniform_value(c) is None
    assert not found("r(x: f): Mul(x, 2) => x", g)
    assert not found("r(x: f, c: f): Mul(x, c) => x where value(c) == 2", g)
    assert len(found("r(x: f, c: f): Mul(x, c) => x where const(c)", g)) == 1


def test_constness() -> None:
    x = Input("x", TensorType(F32, (4,)))
    c = constant(np.arange(4, dtype=np.float32))
    folded = node(OPS["Neg"], [node(OPS["Add"], [c, c])])
    assert is_const(c)
    assert is_const(folded)
    assert is_const(result(node(OPS["Split"], [c], axis=0, split=(1, 3)), 1))
    assert not is_const(x)
    assert not is_const(node(OPS["Add"], [folded, x]))
    odd = opaque_node(Op("RandomNormal", None), [], Payload(None), [x.type])
    assert not is_const(node(OPS["Add"], [folded, odd]))
    filled = OPS["ConstantOfShape"]
    assert is_const(node(filled, [], input=(4,)))
    assert not is_const(node(filled, [], input=(Size("n"), 4)))  # known only when it runs
    assert not is_const(node(OPS["Shape"], [x]))


# --- conditions -----------------------------------------------------------------------------------


def test_single_use() -> None:
    r = "r(x: f): Neg(Relu(x)) => x where single_use({})"
    g = graph(X, "%0 = Relu(x)", "%1 = Neg(%0)", "%1")
    assert len(found(r.format("Relu(x)"), g)) == 1
    assert len(found(r.format("x"), g)) == 1
    read = graph(X, "%0 = Relu(x)", "%1 = Neg(%0)", "%2 = Abs(%0)", "%1, %2")
    assert not found(r.format("Relu(x)"), read)
    returned = graph(X, "%0 = Relu(x)", "%1 = Neg(%0)", "%1, %0")
    assert not found(r.format("Relu(x)"), returned)
    leaf = graph(X, "%0 = Relu(x)", "%1 = Neg(%0)", "%2 = Abs(x)", "%1, %2")
    assert not found(r.format("x"), leaf)
    inside = graph(X, "%0 = Relu(x)", "%1 = Mul(%0, %0)", "%1")  # both uses are the match's own
    assert len(found("r(x: f): Mul(Relu(x), Relu(x)) => x where single_use(Relu(x))", inside)) == 1


def test_conditions_define_names() -> None:
    g = graph("x: f32[6]", "%0 = Relu(x)", "%0")
    r = "r(x: f[n]): Relu(x) => x where h == n // 2, t == (h, h + 1), t[1] == 4, len(t) == 2"
    (m,) = found(r, g)
    assert (m.bindings["h"], m.bindings["t"]) == (3, (3, 4))
    assert not found("r(x: f[n]): Relu(x) => x where h == n // 0", g)


def test_float_attributes_are_equal_if_their_32_bits_are() -> None:
    stored = float(np.float32(0.1))
    assert are_attrs_equal(0.1, stored)
    assert are_attrs_equal((1, 0.1), (1, stored))
    assert not are_attrs_equal(0.1, 0.2)
    assert not are_attrs_equal("0.1", stored)
    assert not are_attrs_equal(stored, "0.1")
    assert not are_attrs_equal((0.1,), (0.1, 0.1))
