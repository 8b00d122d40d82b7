"""Right sides: what is built, what is refused, n-ary operators, several roots, surroundings."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.ir.evaluate import evaluate
from superopt.ir.graph import (
    Graph,
    Input,
    Node,
    Value,
    depends_on,
    node,
    nodes,
    producer,
    replace,
    result,
)
from superopt.ops import OPS
from superopt.rules.lang.rule import parse_rules
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.matcher import matches
from superopt.rules.match.rewrite import Applied, Refusal, apply, rewrite
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType
from tests.support.rules.places import found, graph, lines, named, refusals, results_of, rule

X = "x: f32[2, 3, 4]"


# --- what is built --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "becomes"),
    [
        ("x", "return x"),
        ("Mul(x, 2)", "%0 = Mul(x, c0); return %0"),
        ("Add(1, Mul(2, x))", "%0 = Mul(c0, x); %1 = Add(c1, %0); return %1"),
        (
            "Where(Greater(x, 0), x, lit(1 / 4))",
            "%0 = Greater(x, c0); %1 = Where(%0, x, c1); return %1",
        ),
        ("Clip(x, None, 6)", "%0 = Clip(x, None, c0); return %0"),
        (
            "Concat(*Split(x, axis=1, split=(1, 2)), axis=-2)",
            "%0, %1 = Split(x, axis=1, split=(1, 2)); %2 = Concat(%0, %1, axis=1); return %2",
        ),
        (
            "Sum(*[Mul(x, lit(i)) for i in (1, 2)])",
            "%0 = Mul(x, c0); %1 = Mul(x, c1); %2 = Sum(%0, %1); return %2",
        ),
        (
            "Sum(*[Mul(x, lit(i * j)) for i, j in zip(range(1, 3), (4, 5))])",
            "%0 = Mul(x, c0); %1 = Mul(x, c1); %2 = Sum(%0, %1); return %2",
        ),
        (
            "Transpose(Transpose(x, perm=(2, 0, 1)), perm=inverse((2, 0, 1)))",
            "%0 = Transpose(x, perm=(2, 0, 1)); %1 = Transpose(%0, perm=(1, 2, 0)); return %1",
        ),
        ("Add(x, zeros(shape(x)))", "%0 = Add(x, c0); return %0"),
        (
            "Add(Neg(Exp(x)), Exp(x))",
            "%0 = Exp(x); %1 = Neg(%0); %2 = Add(%1, %0); return %2",
        ),
        (
            "Cast(Cast(x, to=f64), to=dtype(x))",
            "%0 = Cast(x, to=f64); %1 = Cast(%0, to=f32); return %1",
        ),
        ("Softmax(x, axis=k - 1)", "%0 = Softmax(x, axis=1); return %0"),
    ],
)
def test_right_sides(right: str, becomes: str) -> None:
    g = graph(X, "%0 = Softmax(x, axis=-1)", "%0")
    assert results_of(f"r(x: f): Softmax(x, axis=k) => {right}", g) == [becomes]


def test_numbers_take_the_element_type_of_their_siblings() -> None:
    for kind in ("f16", "bf16", "f64", "i32"):
        g = graph(f"x: {kind}[2]", "%0 = Neg(x)", "%0")
        (m,) = found("r(x: num): Neg(x) => Mul(x, -1)", g)
        change = rewrite(m)
        assert isinstance(change, dict)
        (new,) = change.values()
        assert isinstance(new, Node)
        assert str(new.inputs[1].type) == f"{kind}[]"  # type: ignore[union-attr]


def test_subterms_are_built_once_and_shared() -> None:
    g = graph(X, "%0 = Tanh(x)", "%0")
    (m,) = found("r(x: f): Tanh(x) => Div(Sub(Exp(x), Exp(Neg(x))), Add(Exp(x), Exp(Neg(x))))", g)
    done = apply(m, graph_context(g))
    assert isinstance(done, Applied)
    assert [n.op.name for n in done.new_nodes] == ["Exp", "Neg", "Exp", "Sub", "Add", "Div"]
    assert done.change == {g.outputs[0]: done.graph.outputs[0]}
    assert nodes(done.graph) == list(done.new_nodes)


@pytest.mark.parametrize(
    ("text", "reason", "detail"),
    [
        ("r(x: f): Relu(x) => Transpose(x)", "shape", "f32[2, 3, 4] would become f32[4, 3, 2]"),
        ("r(x: f): Relu(x) => Cast(x, to=f64)", "shape", "would become f64[2, 3, 4]"),
        ("r(x: f): Relu(x) => Split(x, split=(1, 1))", "shape", "1 results would become 2"),
        ("r(x: f): Relu(x) => MatMul(x, x)", "infer", "4 != 3"),
        ("r(x: f): Relu(x) => Concat(x, axis=5)", "infer", "axis 5"),
        ("r(x: f): Relu(x) => Add(x, Split(x, split=(1, 1)))", "infer", "2 results where one"),
        ("r(x: f): Relu(x) => Split(x, split=(2,))[1]", "infer", "no result 1"),
        ("r(x: f): Relu(x) => Mul(x, lit(value(x)))", "condition", "not a uniform constant"),
        ("r(x: f): Relu(x) => Mul(x, lit(1 // 0))", "condition", "1 // 0"),
        ("r(x: f): Relu(x) => Add(x, zeros((1, -1)))", "condition", "shape (1, -1)"),
        ("r(x: f): Relu(x) => Add(x, zeros((1 << 2,)))", "language", ""),
        ("r(x: f): Relu(x) => Add(x, zeros((4096, 4096)))", "unsafe", "67,108,864 bytes"),
        ("r(x: f): Relu(x) => Mul(x, full((1,), 0.5, i32))", "condition", "0.5 is no i32"),
    ],
)
def test_refusals(text: str, reason: str, detail: str) -> None:
    g = graph(X, "%0 = Relu(x)", "%0")
    if reason == "language":
        with pytest.raises(Exception, match="not part of the rule language"):
            parse_rules(text)
        return
    (refusal,) = refusals(text, g)
    assert refusal.reason == reason
    assert detail in refusal.detail


def test_symbolic_sizes_in_right_sides() -> None:
    g = graph("x: f32[n, 4]", "%0 = Relu(x)", "%0")
    there = "r(x: f[n, k]): Relu(x) => Reshape(Relu(Reshape(x, shape=(n * k,))), shape=(n, k))"
    assert results_of(there, g) == [
        "%0 = Reshape(x, shape=(n * 4,)); %1 = Relu(%0); %2 = Reshape(%1, shape=(n, 4)); return %2"
    ]
    (refusal,) = refusals("r(x: f[n, k]): Relu(x) => Add(x, zeros((n, k)))", g)
    assert refusal.reason == "condition"


# --- n-ary operators ------------------------------------------------------------------------------

FOUR = (X, "%0 = Relu(x)", "%1 = Neg(x)", "%2 = Abs(x)", "%3 = Concat(x, %0, %1, %2, axis=0)", "%3")


def test_a_binary_pattern_cuts_an_n_ary_operator() -> None:
    g = graph(*FOUR)
    r = rule("r(x: f[n, *s], y: f[m, *s]): Concat(x, y, axis=0) => Concat(x, y, axis=0)")
    cuts = found(r, g)
    assert [(m.bindings["n"], m.bindings["m"]) for m in cuts] == [(2, 6), (4, 4), (6, 2)]
    assert all(m.roots == g.outputs for m in cuts)
    assert all(m.nodes == (producer(g.outputs[0]),) for m in cuts)
    assert [rewrite(m) for m in cuts] == [{g.outputs[0]: g.outputs[0]}] * 3  # built flat again


def test_neighbours_inside_an_n_ary_operator() -> None:
    g = graph(X, "%0 = Neg(x)", "%1 = Relu(x)", "%2 = Relu(%0)",
              "%3 = Concat(x, %1, %2, x, axis=1)", "%4 = Exp(%3)", "%4")  # fmt: skip
    r = "r(x: f, y: f): Concat(Relu(x), Relu(y), axis=k) => Relu(Concat(x, y, axis=k))"
    (m,) = found(r, g)
    assert m.part is not None
    assert m.part[1:] == (1, 3)
    assert [n.op.name for n in m.nodes] == ["Concat", "Relu", "Relu"]
    assert results_of(r, g) == [
        "%0 = Neg(x); %1 = Concat(x, %0, axis=1); %2 = Relu(%1); "
        "%3 = Concat(x, %2, x, axis=1); %4 = Exp(%3); return %4"
    ]
    some = graph(
        "x: f32[4]", "%0, %1 = Split(x, split=(1, 3))", "%2 = Concat(x, %0, %1, axis=0)", "%2"
    )
    assert results_of("r(x: f): Concat(*Split(x, axis=k, split=s), axis=k) => x", some) == [
        "%0 = Concat(x, x, axis=0); return %0"
    ]


def test_nested_patterns_see_flat_operators() -> None:
    g = graph(X, "y: f32[2, 3, 4]", "z: f32[2, 3, 4]", "%0 = Max(x, y, z)", "%0")
    (m,) = [m for m in found("r(x: f, y: f, z: f): Max(Max(x, y), z) => Max(x, Max(y, z))", g)
            if named(m)["x"] == "x" and named(m)["y"] == "y"]  # fmt: skip
    assert named(m)["z"] == "z"
    assert m.nodes == (g.outputs[0],)  # Max(x, y) is no node of the graph


def test_what_does_not_nest_is_not_cut() -> None:
    g = graph(
        X, "%0 = Neg(x)", "%1 = Mean(x, %0, x)", "%2 = Sum(x, %0, x, x)", "%3 = Add(%1, %2)", "%3"
    )
    assert not found("r(x: f, y: f): Mean(x, y) => x", g)
    # A sum is taken from the left: only its last operand is apart.
    (m,) = found("r(x: f, y: f): Sum(x, y) => Add(x, y)", g)
    assert results_of(m.rule, g)[0].startswith(
        "%0 = Neg(x); %1 = Mean(x, %0, x); %2 = Sum(x, %0, x)"
    )


def test_runs_of_operands() -> None:
    g = graph(*FOUR)
    apart = "r(*xs: f): Neg(Concat(*xs, axis=k)) => Concat(*[Neg(x) for x in xs], axis=k)"
    assert not found(apart, g)
    (m,) = found("r(x: f, xs: f, y: f): Concat(x, *xs, Abs(y), axis=k) => x", g)
    assert len(m.bindings["xs"]) == 2
    outer = graph(*FOUR[:-1], "%4 = Neg(%3)", "%4")
    assert results_of(apart, outer) == [
        "%0 = Neg(x); %1 = Relu(x); %2 = Neg(%1); %3 = Neg(%0); %4 = Abs(x); %5 = Neg(%4); "
        "%6 = Concat(%0, %2, %3, %5, axis=0); return %6"
    ]
    before, after = _run(outer), _run(_applied(apart, outer))
    np.testing.assert_array_equal(before, after)
    assert not found("r(xs: f[5, *s]): Concat(*xs, axis=k) => Concat(*xs, axis=k)", g)
    assert len(found("r(xs: f[2, *s]): Concat(*xs, axis=k) => Concat(*xs, axis=k)", g)) == 1


def _applied(text: str, g: Graph) -> Graph:
    ctx = graph_context(g)
    (m,) = matches(rule(text), ctx)
    done = apply(m, ctx)
    assert isinstance(done, Applied)
    return done.graph


def _run(g: Graph) -> np.ndarray:
    rng = np.random.default_rng(1)
    feeds = {i.name: rng.normal(size=_shape(i)).astype(np.float32) for i in g.inputs}
    return evaluate(g, feeds)[0]


def _shape(i: Input) -> tuple[int, ...]:
    return tuple(d for d in i.type.shape or () if isinstance(d, int))


# --- several roots --------------------------------------------------------------------------------

MERGE = (
    "r(x: f[*s, n, k], a: f[k, m], b: f[k, p]): (MatMul(x, a), MatMul(x, b))"
    " => Split(MatMul(x, Concat(a, b, axis=1)), axis=-1, split=(m, p))"
)


def test_two_products_become_one() -> None:
    g = graph("x: f32[5, 4]", "a: f32[4, 2]", "b: f32[4, 3]", "%0 = MatMul(x, b)", "%1 = Relu(%0)",
              "%2 = MatMul(x, a)", "%1, %2")  # fmt: skip
    assert results_of(MERGE, g) == [
        "%0 = Concat(b, a, axis=1); %1 = MatMul(x, %0); %2, %3 = Split(%1, axis=1, split=(3, 2)); "
        "%4 = Relu(%2); return %4, %3"
    ]


def test_a_rewrite_that_would_need_itself_is_refused() -> None:
    g = graph("x: f32[4, 4]", "a: f32[4, 4]", "%0 = MatMul(x, a)", "%1 = Relu(%0)",
              "%2 = MatMul(x, %1)", "%2")  # fmt: skip
    ctx = graph_context(g)
    (m,) = matches(rule(MERGE), ctx)
    for known in (ctx, None):
        assert rewrite(m, known) == Refusal(
            "cycle", "an operand of the right side needs a result of the left side"
        )
    assert isinstance(apply(m, ctx), Refusal)
    beside = graph("x: f32[4, 4]", "a: f32[4, 4]", "%0 = MatMul(x, a)", "%1 = Relu(a)",
                   "%2 = MatMul(x, %1)", "%0, %2")  # fmt: skip
    assert not refusals(MERGE, beside)


def test_a_root_inside_another() -> None:
    g = graph(X, "%0 = Add(x, x)", "%1 = Relu(%0)", "%2 = Neg(%0)", "%1, %2")
    r = "r(x: f): (Add(x, x), Relu(Add(x, x))) => (Mul(x, 2), Relu(Mul(x, 2)))"
    assert results_of(r, g) == ["%0 = Mul(x, c0); %1 = Relu(%0); %2 = Neg(%0); return %1, %2"]


def test_roots_that_share_nothing_are_tried_nearby() -> None:
    body = [f"%{n} = Exp(x{n})" for n in range(40)]
    g = graph(*(f"x{n}: f32[2]" for n in range(40)), *body, ", ".join(f"%{n}" for n in range(40)))
    r = "r(x: f[n], y: f[n]): (Exp(x), Exp(y)) => Split(Exp(Concat(x, y, axis=0)), split=(n, n))"
    pairs = [(named(m)["x"], named(m)["y"]) for m in found(r, g)]
    assert ("x0", "x1") in pairs
    assert ("x1", "x0") not in pairs
    assert len(pairs) == 4 * 36 + 3 + 2 + 1


def test_several_results_of_one_node() -> None:
    g = graph("x: f32[6]", "%0, %1 = Split(x, split=(2, 4))", "%2, %3 = Split(%0, split=(1, 1))",
              "%1, %2, %3")  # fmt: skip
    r = (
        "r(x: any): (*Split(Split(x, axis=k, split=p)[0], axis=k, split=q),"
        " Split(x, axis=k, split=p)[1]) => Split(x, axis=k, split=q + p[1:]) where len(p) == 2"
    )
    assert results_of(r, g) == ["%0, %1, %2 = Split(x, split=(1, 1, 4)); return %2, %0, %1"]


def test_new_roots_never_need_old_ones_from_outside() -> None:
    """After a multi-root rewrite no key of the change is left in the graph."""
    x = Input("x", TensorType(F32, (4, 4)))
    v: Value = x
    outs: list[Value] = []
    for _ in range(6):
        a = node(OPS["MatMul"], [x, v])
        outs.append(a)
        v = node(OPS["Relu"], [a])
    g = Graph((x,), tuple(outs))
    ctx = graph_context(g)
    for m in matches(rule(MERGE), ctx):
        assert isinstance(rewrite(m, ctx), Refusal)
    wide = Graph(
        (x,), tuple(node(OPS["MatMul"], [x, node(OPS[o], [x])]) for o in ("Relu", "Abs", "Neg"))
    )
    ctx = graph_context(wide)
    for m in matches(rule(MERGE), ctx):
        change = rewrite(m, ctx)
        assert isinstance(change, dict)
        new = replace(wide, change)
        assert not depends_on(new.outputs, change)


def test_items_are_replaced_one_by_one() -> None:
    g = graph("x: f32[6]", "%0, %1 = Split(x, split=(2, 4))", "%2 = Relu(%1)", "%0, %2")
    r = "r(x: f): Split(x, axis=0, split=s)[1] => Slice(x, starts=(s[0],), ends=(s[0] + s[1],))"
    (m,) = found(r, g)
    assert m.roots == (result(producer(g.outputs[0]), 1),)  # type: ignore[arg-type]
    (text,) = results_of(r, g)
    assert "Split" in text
    assert "Slice" in text
    assert lines(g) != text
