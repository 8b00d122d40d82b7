"""The matcher on random graphs: against a naive one, near some nodes, and by what they compute."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from hypothesis import given

from superopt.ir.evaluate import evaluate
from superopt.ir.graph import Graph, Input, Node, Value, constant, constants, nodes, users
from superopt.ir.text import constant_label, parse_graph, show_graph
from superopt.ops import OPS
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.lang.term import App, Name, Var
from superopt.rules.library.load import load_library
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.matcher import Match, matches
from superopt.rules.match.pattern import compile_pattern
from superopt.rules.match.rewrite import Refusal, apply, rewrite
from superopt.rules.match.rule_index import RuleIndex
from superopt.te.expr.dtype import F64
from superopt.te.expr.tensor import TensorType
from tests.support.ir.random_graphs import dense, graphs

SOME = parse_rules(
    """
relu-relu(x: f): Relu(Relu(x)) => Relu(x)
add-relu(x: f, y: f): Add(Relu(x), y) => Add(y, Relu(x))
assoc(x: f, y: f, z: f): Add(Add(x, y), z) => Add(x, Add(y, z))
distribute(x: f, y: f, z: f): Add(Mul(x, y), Mul(x, z)) <=> Mul(x, Add(y, z))
square(x: f, y: f): Mul(x, Mul(x, y)) => Mul(Mul(x, x), y)
sub-self(x: f, y: f): Sub(Add(x, y), y) => Add(x, Sub(y, y))
sub-mul(x: f, y: f): Sub(Mul(x, y), Add(x, y)) => Sub(Mul(y, x), Add(y, x))
transposes(x: f): Transpose(Transpose(x, perm=p), perm=q) => Transpose(x, perm=compose(p, q))
matmul-add(x: f, y: f, z: f): Add(MatMul(x, y), MatMul(x, z)) => MatMul(x, Add(y, z))
"""
)


def _ways(t: App | Var, v: Value | None, env: dict[str, object]) -> Iterator[dict[str, object]]:
    """Every way to match a term, the simple way; attributes are bare names or defaults."""
    if isinstance(t, Var):
        if v is not None and env.get(t.name, v) is v:
            yield env | {t.name: v}
        return
    if not isinstance(v, Node) or v.op is not t.op or len(v.inputs) != len(t.operands):
        return
    attrs = dict(v.attrs)
    for key, f in t.attrs:
        assert isinstance(f, Name)
        if env.get(f.id, attrs[key]) != attrs[key]:
            return
        env = env | {f.id: attrs[key]}
    orders = [v.inputs]
    if "commutative" in t.op.laws:
        orders.append(v.inputs[::-1])
    for order in orders:
        ways = [env]
        for operand, value in zip(t.operands, order, strict=True):
            assert isinstance(operand, (App, Var))
            ways = [new for way in ways for new in _ways(operand, value, way)]
        yield from ways


@pytest.mark.parametrize("seed", range(30))
def test_the_matcher_finds_what_a_naive_one_finds(seed: int) -> None:
    """Compared by results, because of two ways that give the same one is enough."""
    g = dense(seed, 80)
    ctx = graph_context(g)
    found = 0
    for r in SOME:
        fast = {_key(m, rewrite(m, ctx)) for m in matches(r, ctx)}
        found += len(fast)
        slow = set()
        (left,) = r.lhs
        assert isinstance(left, App)
        for n in nodes(g):
            for way in _ways(left, n, {}):
                chosen = _with(r, n, way)
                slow.add(_key(chosen, rewrite(chosen, ctx)))
        assert fast == slow, r.name
    assert found


def _with(r: Rule, n: Node, way: dict[str, object]) -> Match:
    """A match with the given bindings."""
    p = compile_pattern(r)
    cells: list[object] = [None] * p.size
    for name, value in way.items():
        cells[p.slots[name]] = value
    return Match(r, (n,), (n,), None, p, tuple(cells))


def _key(m: Match, change: dict[Value, Value] | Refusal) -> object:
    """A match by its result; products and sums in any order, as the naive one has them."""
    if isinstance(change, Refusal):
        return m.roots, change.reason
    return m.roots, tuple(_form(v, 3) for v in change.values())


def _form(v: Value | None, depth: int) -> object:
    if not isinstance(v, Node) or not depth:
        return v
    parts = [_form(i, depth - 1) for i in v.inputs]
    if "commutative" in v.op.laws:
        parts.sort(key=lambda p: str(hash(p)))
    return v.op, tuple(parts), v.attrs


@given(graphs())
def test_a_context_has_the_order_of_nodes_and_the_users(g: Graph) -> None:
    ctx = graph_context(g)
    assert list(ctx.position) == nodes(g)
    assert list(ctx.position.values()) == list(range(len(ctx.position)))
    assert ctx.users == users(g)
    assert all(some == [n for n in nodes(g) if n.op is op] for op, some in ctx.by_op.items())
    assert sum(map(len, ctx.by_op.values())) == len(nodes(g))


@pytest.mark.one_in(8)
@pytest.mark.parametrize("seed", range(12))
def test_near_some_nodes_are_the_matches_that_cover_one(seed: int) -> None:
    g = dense(seed, 25)
    ctx = graph_context(g)
    near = frozenset(Random(seed).sample(list(ctx.position), 2))
    for r in load_library():
        every = {_place(m) for m in matches(r, ctx) if not near.isdisjoint(m.nodes)}
        some = [_place(m) for m in matches(r, ctx, near)]
        assert set(some) == every, r.name
        assert len(set(some)) == len(some), r.name


@pytest.mark.parametrize("seed", range(12))
def test_an_index_finds_what_its_rules_find(seed: int) -> None:
    g = dense(seed, 25)
    ctx, library = graph_context(g), load_library()
    index = RuleIndex(library)
    each = [(m.rule.name, _place(m)) for r in library for m in matches(r, ctx)]
    assert [(m.rule.name, _place(m)) for m in index.matches(ctx)] == each
    assert len(each) > 20
    near = frozenset(Random(seed).sample(list(ctx.position), 2))
    some = [(m.rule.name, _place(m)) for r in library for m in matches(r, ctx, near)]
    found = [(m.rule.name, _place(m)) for m in index.matches(ctx, near)]
    assert sorted(found, key=str) == sorted(some, key=str)
    assert [name for name, _ in found] == [name for name, _ in some]  # rules in their order
    assert [(m.rule.name, _place(m)) for m in index.matches(ctx, near)] == found


def _place(m: Match) -> object:
    return m.roots, m.part, tuple(m.cells[s] for s in m.pattern.slots.values())


FEW = [r for r in load_library() if r.float_class in ("E0", "E1")]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(12))
def test_rewrites_keep_the_graph_s_values(seed: int) -> None:
    """20 rewrites one after the other, compared with the first graph in float64."""
    g = _in_float64(dense(seed, 12))
    rng, applied = Random(seed), 0
    feeds = {i.name: np.random.default_rng(seed).uniform(0.5, 1, (4, 4)) for i in g.inputs}
    first = evaluate(g, feeds)
    for _ in range(20):
        ctx = graph_context(g)
        every = [m for r in FEW for m in matches(r, ctx)]
        done = apply(rng.choice(every), ctx)
        if isinstance(done, Refusal) or len(nodes(done.graph)) > 60:
            continue
        applied += 1
        g = done.graph
        for a, b in zip(first, evaluate(g, feeds), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-6, atol=1e-9 * max(1.0, np.abs(a).max()))
    assert applied >= 10


def _in_float64(g: Graph) -> Graph:
    inputs = {i.name: Input(i.name, TensorType(F64, i.type.shape)) for i in g.inputs}
    wide = {c: constant(c.load().astype(np.float64)) for c in constants(g)}
    text = show_graph(g).replace("f32[", "f64[")
    for c, new in wide.items():
        text = text.replace(constant_label(c), constant_label(new))
    return parse_graph(
        text, OPS, inputs=inputs, constants={constant_label(c): c for c in wide.values()}
    )
