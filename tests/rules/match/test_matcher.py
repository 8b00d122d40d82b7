"""What matches and what does not: terms, attributes; and in which order."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from superopt.ir.graph import Graph, Input, Value, constant, node, opaque_node
from superopt.ir.op import Op, Payload
from superopt.ops import OPS
from superopt.rules.lang.value_facts import is_const
from superopt.rules.library.load import load_library
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.matcher import matches
from superopt.te.expr.dtype import F32, I64
from superopt.te.expr.tensor import TensorType
from tests.support.rules.places import found, graph, named, results_of, rule

X = "x: f32[2, 3, 4]"


# --- terms ----------------------------------------------------------------------------------------


def test_a_chain() -> None:
    g = graph(X, "%0 = Relu(x)", "%1 = Relu(%0)", "%2 = Relu(%1)", "%2")
    a, b = found("r(x: f): Relu(Relu(x)) => Relu(x)", g)
    assert named(a)["x"] == "x"
    assert [n.op.name for n in a.nodes] == ["Relu", "Relu"]
    assert a.roots == (a.nodes[0],)
    assert b.nodes[1] is a.nodes[0]
    assert results_of(a.rule, g)[0] == "%0 = Relu(x); %1 = Relu(%0); return %1"


def test_inner_values_may_have_other_users() -> None:
    g = graph(X, "%0 = Neg(x)", "%1 = Neg(%0)", "%2 = Add(%0, %1)", "%2")
    assert results_of("r(x: f): Neg(Neg(x)) => x", g) == ["%0 = Neg(x); %1 = Add(%0, x); return %1"]
    assert not found("r(x: f): Neg(Neg(x)) => x where single_use(Neg(x))", g)


def test_a_name_twice_is_one_value() -> None:
    g = graph(X, "%0 = Sub(x, x)", "%1 = Abs(x)", "%2 = Sub(x, %1)", "%3 = Sub(%0, %2)", "%3")
    (m,) = found("r(x: f): Sub(x, x) => x", g)
    assert m.roots[0].type == g.inputs[0].type
    equal_terms = graph(
        X,
        "%0 = Abs(x)",
        "%1 = Mul(%0, %0)",
        "%2 = Neg(x)",
        "%3 = Mul(%0, %2)",
        "%4 = Add(%1, %3)",
        "%4",
    )
    assert len(found("r(x: f): Mul(Abs(x), Abs(x)) => x", equal_terms)) == 1


def test_all_operands_of_a_run_have_its_sizes() -> None:
    text = "r(*xs: f[n, 2]): Concat(*xs, axis=k) => Concat(*xs, axis=k)"
    for rows, count in (((3, 3, 3), 1), ((3, 3, 4), 0), ((3, 4, 4), 0)):
        inputs = [f"x{k}: f32[{n}, 2]" for k, n in enumerate(rows)]
        g = graph(*inputs, "%0 = Concat(x0, x1, x2, axis=0)", "%0")
        assert [m.bindings["n"] for m in found(text, g)] == [3] * count


def test_commutative_operators_match_in_both_orders() -> None:
    g = graph(
        X,
        "y: f32[2, 3, 4]",
        "%0 = Relu(x)",
        "%1 = Mul(y, %0)",
        "%2 = Mul(%0, y)",
        "%3 = Sub(y, %0)",
        "%4 = Add(%1, %2)",
        "%5 = Add(%4, %3)",
        "%5",
    )
    r = rule("r(x: f, y: f): Mul(Relu(x), y) => y")
    assert [named(m) for m in found(r, g)] == [{"x": "x", "y": "y"}] * 2
    assert not found("r(x: f, y: f): Sub(Relu(x), y) => y", g)


def test_one_order_is_enough_where_the_other_gives_the_same() -> None:
    g = graph(X, "y: f32[2, 3, 4]", "%0 = Mul(x, y)", "%0")
    assert len(found("r(x: f, y: f): Mul(x, y) => Neg(Mul(Neg(x), y))", g)) == 2
    assert len(found("r(x: f, y: f): Mul(x, y) => Exp(Add(Log(x), Log(y)))", g)) == 1
    assert (
        len(found("r(x: f, y: f): Mul(x, y) => Mul(x, y) where const(x) or not const(x)", g)) == 2
    )
    square = graph(X, "%0 = Mul(x, x)", "%0")
    assert len(found("r(x: f, y: f): Mul(x, y) => Neg(Mul(Neg(x), y))", square)) == 1
    # One order of the first product leaves the second to be tried in both.
    two = graph(X, "y: f32[2, 3, 4]", "%0 = Mul(x, y)", "%1 = Add(y, x)", "%2 = Sub(%0, %1)", "%2")
    assert (
        len(found("r(x: f, y: f): Sub(Mul(x, y), Add(x, y)) => Sub(Mul(y, x), Add(y, x))", two))
        == 1
    )


def test_results_of_a_node_with_several() -> None:
    g = graph(
        "x: f32[6]",
        "%0, %1, %2 = Split(x, split=(1, 2, 3))",
        "%3 = Relu(%1)",
        "%4 = Concat(%0, %1, %2, axis=0)",
        "%3, %4",
    )
    (m,) = found("r(x: f): Relu(Split(x, axis=0, split=s)[1]) => x", g)
    assert named(m)["s"] == (1, 2, 3)
    assert not found("r(x: f): Relu(Split(x, axis=0, split=s)[0]) => x", g)
    assert results_of("r(x: f): Concat(*Split(x, axis=k, split=s), axis=k) => x", g) == [
        "%0, %1, %2 = Split(x, split=(1, 2, 3)); %3 = Relu(%1); return %3, x"
    ]
    halves = "r(x: f): Split(x, axis=0, split=s) => [Slice(x, starts=(0,), ends=(d,)) for d in s]"
    assert results_of(halves, g) == [
        "%0 = Slice(x, starts=(0,), ends=(2,)); %1 = Relu(%0); "
        "%2 = Slice(x, starts=(0,), ends=(1,)); %3 = Slice(x, starts=(0,), ends=(3,)); "
        "%4 = Concat(%2, %0, %3, axis=0); return %1, %4"
    ]
    one = graph("x: f32[6]", "%0 = Split(x, split=(6,))", "%1 = Relu(%0)", "%1")
    assert len(found("r(x: f): Relu(Split(x, axis=0, split=s)[0]) => x", one)) == 1


def test_all_results_in_another_order_are_something_else() -> None:
    g = graph(
        "x: f32[6]",
        "%0, %1 = Split(x, split=(3, 3))",
        "%2 = Concat(%1, %0, axis=0)",
        "%3 = Concat(%0, axis=0)",
        "%2, %3",
    )
    assert not found("r(x: f): Concat(*Split(x, axis=k, split=s), axis=k) => x", g)


def test_absent_operands() -> None:
    g = graph(X, "c = const f32[] 6.0", "%0 = Clip(x, None, c)", "%1 = Clip(%0)", "%1")
    (m,) = found("r(x: f): Clip(x, None, 6) => x", g)
    assert named(m)["x"] == "x"
    (m,) = found("r(x: f): Clip(x) => x", g)
    assert m.roots == (g.outputs[0],)
    assert not found("r(x: f, a: f, b: f): Clip(x, a, b) => x", g)


def test_opaque_nodes_are_leaves() -> None:
    x = Input("x", TensorType(F32, (4,)))
    odd = opaque_node(Op("Relu", None), [x], Payload(None), [x.type])  # a Relu of somebody else
    g = Graph((x,), (node(OPS["Relu"], [odd]),))
    (m,) = found("r(x: f): Relu(x) => x", g)
    assert m.bindings["x"] is odd
    assert not found("r(x: f): Relu(Relu(x)) => x", g)


# --- attributes -----------------------------------------------------------------------------------


def test_attributes_bind_compare_and_default() -> None:
    g = graph(
        X,
        "%0 = Transpose(x, perm=(2, 0, 1))",
        "%1 = Transpose(%0, perm=(1, 2, 0))",
        "%2 = Transpose(%1)",
        "%2",
    )
    undo = "r(x: f): Transpose(Transpose(x, perm=p), perm=inverse(p)) => x"
    assert results_of(undo, g) == ["%0 = Transpose(x); return %0"]
    assert len(found("r(x: f): Transpose(Transpose(x, perm=p), perm=q) => x", g)) == 2
    (m,) = found("r(x: f): Transpose(x) => x", g)  # perm not mentioned: reversed
    assert m.roots == (g.outputs[0],)
    assert not found("r(x: f): Transpose(Transpose(x, perm=p), perm=p) => x", g)


def test_attributes_compare_in_the_operator_s_one_form() -> None:
    g = graph(X, "%0 = Concat(x, x, axis=2)", "%1 = Softmax(%0, axis=2)", "%1")
    assert len(found("r(x: f): Concat(x, x, axis=-1) => x", g)) == 1
    assert len(found("r(x: f): Concat(x, x, axis=rank(x) - 1) => x", g)) == 1
    assert not found("r(x: f): Concat(x, x, axis=-2) => x", g)
    assert len(found("r(x: f): Softmax(x) => x", g)) == 1


def test_float_attributes_compare_as_onnx_stores_them() -> None:
    sixth = float(np.float32(1 / 6))
    g = graph(X, f"%0 = HardSigmoid(x, alpha={sixth}, beta=0.5)", "%0")
    assert len(found("r(x: f): HardSigmoid(x, alpha=1/6, beta=0.5) => x", g)) == 1
    assert not found("r(x: f): HardSigmoid(x, alpha=0.1666, beta=0.5) => x", g)


def test_all_other_attributes() -> None:
    g = graph(
        "x: f32[1, 4, 8, 8]",
        "w: f32[4, 2, 3, 3]",
        "v: f32[4, 2, 3, 3]",
        "%0 = Conv(x, w, group=2, pads=(1, 1, 1, 1))",
        "%1 = Conv(x, v, group=2)",
        "%2 = Relu(%0)",
        "%1, %2",
    )
    keep = "r(x: f, w: f): Relu(Conv(x, w, group=g, **a)) => Conv(x, Relu(w), group=g, **a)"
    assert "%1 = Relu(w); %2 = Conv(x, %1, group=2, pads=(1, 1, 1, 1))" in results_of(keep, g)[0]
    other = "r(x: f, w: f): Relu(Conv(x, w, **a)) => Conv(x, w, **a, pads=(0, 0, 2, 2))"
    assert "Conv(x, w, group=2, pads=(0, 0, 2, 2))" in results_of(other, g)[0]
    pair = "r(x: f, v: f, w: f): (Conv(x, v, **a), Conv(x, w, **a)) => (x, x)"
    assert not found(pair, g)
    assert not found("r(x: f, w: f): Conv(x, w) => x", g)
    assert len(found("r(x: f, w: f): Conv(x, w, group=2) => x", g)) == 1


# --- order, sets, surroundings --------------------------------------------------------------------


def test_matches_come_in_a_fixed_order() -> None:
    def text() -> list[str]:
        g = graph(
            X, "y: f32[2, 3, 4]", "%0 = Add(x, y)", "%1 = Add(%0, x)", "%2 = Add(%1, %0)", "%2"
        )
        return [
            str(named(m)["y"])
            for r in load_library()
            for m in matches(r, graph_context(g))
            if "y" in m.bindings
        ]

    assert text() == text()
    assert text()


def test_long_chains_need_no_recursion() -> None:
    x = Input("x", TensorType(I64, (2,)))
    v: Value = x
    for _ in range(20_000):
        v = node(OPS["Neg"], [v])
    g = Graph((x,), (v,))
    ctx = graph_context(g)
    assert not is_const(v)
    every = list(matches(rule("r(x: num): Neg(Neg(x)) => x"), ctx))
    assert len(every) == 19_999
    last = list(ctx.position)[-1:]
    assert len(list(matches(every[0].rule, ctx, last))) == 1


def test_many_candidates_are_not_tried_with_each_other() -> None:
    """Pairs are found over the operand that they share: work grows with the number of pairs."""
    r = rule("r(x: f, a: f, b: f): (MatMul(x, a), MatMul(x, b)) => (x, x) where const(a), const(b)")

    def calls(groups: int) -> int:
        out: list[Value] = []
        for n in range(groups):
            x = Input("x", TensorType(F32, (2, 2)))
            for k in (0.5, 0.25):
                w = constant(np.full((2, 2), n + k, np.float32))
                out.append(node(OPS["MatMul"], [x, w]))
        g = Graph((), tuple(out))
        ctx = graph_context(g)
        assert len(list(matches(r, ctx))) == groups
        count = 0

        def counted(frame: object, event: str, arg: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(counted)
        try:
            list(matches(r, ctx))
        finally:
            sys.setprofile(None)
        return count

    assert calls(320) <= 8 * calls(40) + 200


@pytest.mark.parametrize("size", [2, 5, 8])
def test_pairs_of_equal_terms_are_tried_once(size: int) -> None:
    body = [f"%{n} = MatMul(x, w{n})" for n in range(size)]
    inputs = [f"w{n}: f32[4, {n + 1}]" for n in range(size)]
    g = graph("x: f32[3, 4]", *inputs, *body, ", ".join(f"%{n}" for n in range(size)))
    same = found("r(x: f, a: f[k, m], b: f[k, p]): (MatMul(x, a), MatMul(x, b)) => (x, x)", g)
    assert len(same) == size * (size - 1) // 2
    assert all(g.outputs.index(m.roots[0]) < g.outputs.index(m.roots[1]) for m in same)
    apart = "r(x: f, a: f[k, m], b: f[k, p]): (MatMul(x, a), MatMul(x, b)) => (x, x) where m < p"
    assert len(found(apart, g)) == size * (size - 1) // 2
    other = apart.replace("m < p", "m > p")
    assert len(found(other, g)) == size * (size - 1) // 2
    both = apart.replace("m < p", "m != p + 100")
    assert len(found(both, g)) == size * (size - 1)


def test_a_table_is_found_among_constants() -> None:
    text = "r(x: f[n, 2]): Mul(x, table((1, 2))) => x"
    for numbers, count in (((1, 2), 1), ((2, 1), 0)):
        x = Input("x", TensorType(F32, (3, 2)))
        w = constant(np.array(numbers, np.float32))
        g = Graph((x,), (node(OPS["Mul"], (x, w)),))
        assert len(list(matches(rule(text), graph_context(g)))) == count
