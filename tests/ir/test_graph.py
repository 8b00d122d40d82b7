"""Graphs: interning, order, replacement, and chains too long for recursion."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.ir.evaluate import evaluate
from superopt.ir.graph import (
    Graph,
    Input,
    Node,
    Value,
    constant,
    constants,
    depends_on,
    intern_node,
    node,
    nodes,
    opaque_node,
    operands,
    producer,
    replace,
    result,
    results,
    users,
    walk,
)
from superopt.ir.op import InferError, Op, Payload
from superopt.ops import OPS
from superopt.te.expr.dtype import F32, I64
from superopt.te.expr.tensor import TensorType
from tests.support.ir.random_graphs import graphs

T = TensorType(F32, (2, 4))
RANDOM = Op("RandomNormalLike", None)


def chain(x: Value, length: int) -> Value:
    v = x
    for _ in range(length):
        v = node(OPS["Neg"], [v])
    return v


# --- interning ------------------------------------------------------------------------------------


def test_equal_applications_are_one_node() -> None:
    x, y = Input("x", T), Input("y", T)
    assert node(OPS["Add"], [x, y]) is node(OPS["Add"], [x, y])
    assert node(OPS["Add"], [x, y]) is not node(OPS["Add"], [y, x])
    a = node(OPS["Concat"], [x, y], axis=-1)
    assert a is node(OPS["Concat"], [x, y], axis=1)
    assert a.attr("axis") == 1


def test_inputs_of_one_name_are_two() -> None:
    assert Input("x", T) != Input("x", T)


def test_absent_operands_at_the_end_do_not_count() -> None:
    x = Input("x", T)
    clip = node(OPS["Clip"], [x, None, None])
    assert clip is node(OPS["Clip"], [x])
    assert clip.inputs == (x,)
    top = constant(np.array(1, np.float32))
    assert node(OPS["Clip"], [x, None, top]).inputs == (x, None, top)


def test_constants_are_equal_by_content() -> None:
    a = constant(np.arange(100.0))
    assert a is constant(np.arange(100.0))
    assert a is not constant(np.arange(100.0).reshape(10, 10))
    assert a is not constant(np.arange(100.0).astype(np.float32))
    assert constant(np.array(0.0)) is not constant(np.array(-0.0))
    with pytest.raises(ValueError, match="read-only"):
        a.load()[0] = 1


def test_a_constant_needs_content_or_a_way_to_load_it() -> None:
    with pytest.raises(TypeError, match="needs an array, or type, key and load"):
        constant(type=T)


def test_opaque_nodes_are_their_own() -> None:
    x = Input("x", T)
    a = opaque_node(RANDOM, [x], Payload("one"), [T])
    b = opaque_node(RANDOM, [x], Payload("one"), [T])
    assert a is not b
    with pytest.raises(InferError, match="Relu has a tensor expression"):
        opaque_node(OPS["Relu"], [x], Payload("one"), [T])
    with pytest.raises(InferError, match="RandomNormalLike"):
        node(RANDOM, [x])


def test_the_table_holds_nodes_weakly() -> None:
    x = Input("x", T)
    kept = chain(x, 3)
    gc.collect()
    assert chain(x, 3) is kept
    probe = node(OPS["Exp"], [x])
    key = (probe.op, probe.inputs, probe.attrs)
    del probe
    gc.collect()
    other = TensorType(F32, (9,))  # had the node been kept, it would be found with its old type
    assert intern_node(*key, (other,)).types == (other,)


def test_results_and_items() -> None:
    x = Input("x", T)
    one = node(OPS["Split"], [x], axis=1, split=(4,))
    assert results(one) == (one,)
    assert result(one, 0) is one
    two = node(OPS["Split"], [x], axis=1, split=(1, 3))
    first, second = results(two)
    assert second is result(two, 1)
    assert second.type == TensorType(F32, (2, 3))
    assert producer(second) is two
    assert operands(second) == (x,)
    assert producer(x) is None
    assert repr(two) == "<Split f32[2, 1], f32[2, 3]>"
    with pytest.raises(ValueError):
        _ = two.type
    with pytest.raises(KeyError, match="Split has no attribute pads"):
        two.attr("pads")
    del first


# --- order and use --------------------------------------------------------------------------------


@given(graphs())
def test_nodes_come_once_and_after_their_operands(g: Graph) -> None:
    order = nodes(g)
    place = {n: i for i, n in enumerate(order)}
    assert len(place) == len(order)
    for n in order:
        for v in n.inputs:
            p = None if v is None else producer(v)
            assert p is None or place[p] < place[n]
    assert {p for v in g.outputs if (p := producer(v))} <= set(order)
    assert nodes(g) == order
    assert list(walk(g)) == [v for n in order for v in results(n)]


@given(graphs())
def test_users_and_constants_are_those_of_the_nodes(g: Graph) -> None:
    order = nodes(g)
    for v, readers in users(g).items():
        assert readers == [n for n in order if v in n.inputs]
    read = {v for n in order for v in n.inputs} | set(g.outputs)
    found = constants(g)
    assert len(set(found)) == len(found)
    assert set(found) == {
        v for v in read if v is not None and not operands(v) and v not in g.inputs
    }


@given(graphs(), st.data())
def test_depends_is_reachability(g: Graph, data: st.DataObject) -> None:
    values = [*g.inputs, *walk(g)]
    a, b = data.draw(st.sampled_from(values)), data.draw(st.sampled_from(values))
    below: set[Value] = set()
    stack: list[Value] = [a]
    while stack:
        v = stack.pop()
        below.add(v)
        stack += operands(v)
    assert depends_on([a], [b]) == (b in below)
    assert not depends_on([a], [])


# --- replacement ----------------------------------------------------------------------------------


def test_replace_rebuilds_what_is_downstream_and_shares_the_rest() -> None:
    x, y = Input("x", T), Input("y", T)
    left, right = node(OPS["Relu"], [x]), node(OPS["Abs"], [y])
    g = Graph((x, y), (node(OPS["Add"], [left, right]), right))
    new = replace(g, {left: y})
    assert new == Graph((x, y), (node(OPS["Add"], [y, right]), right))
    assert replace(g, {}) == g
    assert replace(g, {right: right}) == g
    assert replace(g, {node(OPS["Exp"], [x]): y}) == g  # not in the graph


def test_replace_of_some_results() -> None:
    x = Input("x", T)
    split = node(OPS["Split"], [x], axis=1, split=(2, 2))
    a, b = results(split)
    g = Graph((x,), (node(OPS["Mul"], [a, b]),))
    relu = node(OPS["Relu"], [b])
    assert replace(g, {a: relu}).outputs[0] is node(OPS["Mul"], [relu, b])


def test_replace_may_use_what_it_replaces() -> None:
    x = Input("x", T)
    relu = node(OPS["Relu"], [x])
    g = Graph((x,), (node(OPS["Neg"], [relu]),))
    twice = node(OPS["Relu"], [relu])
    assert replace(g, {relu: twice}).outputs[0] is node(OPS["Neg"], [twice])


def test_replace_rebuilds_the_results_of_a_node_with_several() -> None:
    x = Input("x", T)
    relu = node(OPS["Relu"], [x])
    a, b = results(node(OPS["Split"], [relu], axis=1, split=(2, 2)))
    new = replace(Graph((x,), (a, b)), {relu: x})
    assert new.outputs == results(node(OPS["Split"], [x], axis=1, split=(2, 2)))


@given(graphs(symbolic=False), st.data())
def test_replace_by_an_equal_value_keeps_all_values(g: Graph, data: st.DataObject) -> None:
    inner = list(walk(g))
    if not inner:
        return
    old = data.draw(st.sampled_from(inner))
    new = replace(g, {old: node(OPS["Neg"], [node(OPS["Neg"], [old])])})
    rng = np.random.default_rng(0)
    feeds = {
        i.name: rng.normal(size=tuple(d for d in i.type.shape or () if isinstance(d, int))).astype(
            np.float32
        )
        for i in g.inputs
    }
    with np.errstate(all="ignore"):
        before, after = evaluate(g, feeds), evaluate(new, feeds)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)
    assert replace(g, {old: old}, nodes(g)) == g


# --- long chains ----------------------------------------------------------------------------------


def test_a_chain_of_20_000_nodes_needs_no_recursion() -> None:
    x = Input("x", TensorType(I64, (2,)))
    end = chain(x, 20_000)
    g = Graph((x,), (end,))
    order = nodes(g)
    assert len(order) == 20_000
    assert depends_on([end], [x])
    first: Node = order[0]
    shorter = replace(g, {first: x})
    assert len(nodes(shorter)) == 19_999
    assert shorter.outputs[0] is chain(x, 19_999)
