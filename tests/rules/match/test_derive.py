"""Chains of rules between graphs."""

import numpy as np
import pytest

from superopt.ir import graph as ir_graph
from superopt.ops import OPS
from superopt.rules.lang.rule import parse_rules
from superopt.rules.library.load import load_library
from superopt.rules.match.derive import Derived, DeriveLimits, Link, Underived, derive, shorten
from superopt.rules.match.rule_index import RuleIndex
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

X, Y, Z, W = (ir_graph.Input(n, TensorType(F32, (4, 4))) for n in "xyzw")


def make(name: str, *operands: ir_graph.Value, **attrs: object) -> ir_graph.Node:
    return ir_graph.node(OPS[name], operands, **attrs)  # type: ignore[arg-type]


def turned(x: ir_graph.Value) -> ir_graph.Node:
    return make("Transpose", x, perm=(1, 0))


def graph(v: ir_graph.Value) -> ir_graph.Graph:
    return ir_graph.Graph((X, Y, Z, W), (v,))


PAIRS = {
    "the same": (turned(X), turned(X)),
    "a product turned": (
        make("MatMul", turned(X), turned(Y)),
        turned(make("MatMul", Y, X)),
    ),
    "three steps": (turned(make("Relu", turned(X))), make("Relu", X)),
    "from both sides": (
        make("Concat", *(make("Relu", make("MatMul", X, w)) for w in (Y, Z)), axis=1),
        make("Relu", make("MatMul", X, make("Concat", Y, Z, axis=1))),
    ),
    "a chain of products": (
        make("MatMul", make("MatMul", make("MatMul", X, Y), Z), W),
        make("MatMul", X, make("MatMul", Y, make("MatMul", Z, W))),
    ),
}


@pytest.fixture(scope="module")
def library() -> RuleIndex:
    return RuleIndex(load_library())


@pytest.mark.parametrize("name", PAIRS)
def test_what_follows_is_derived(name: str, library: RuleIndex) -> None:
    a, b = map(graph, PAIRS[name])
    found = derive(a, b, library, DeriveLimits())
    assert isinstance(found, Derived)
    here = a.outputs
    for link in found.forward:
        assert link.before.outputs == here
        here = link.after.outputs
    there = b.outputs
    for link in found.backward:
        assert link.before.outputs == there
        there = link.after.outputs
    assert here == there


WAYS = """
there(x: f): Erf(x) => Mul(Relu(x), Add(Exp(x), Sqrt(Neg(x))))
further(x: f): Sqrt(Neg(x)) => Sqrt(Abs(x))
aside(x: f): Erf(x) => Erf(Tanh(x))
aside-sin(x: f): Tanh(x) => Tanh(Sin(x))
aside-cos(x: f): Tanh(x) => Tanh(Cos(x))
aside-sin-cos(x: f): Sin(x) => Sin(Cos(x))
aside-cos-sin(x: f): Cos(x) => Cos(Sin(x))
"""


def test_a_graph_that_has_to_grow_does_before_all_small_ones_are_seen() -> None:
    """These rules are no laws: two of them lead to the other graph, over one that has its size."""
    whole = make("Add", make("Exp", X), make("Sqrt", make("Abs", X)))
    a, b = graph(make("Erf", X)), graph(make("Mul", make("Relu", X), whole))
    found = derive(a, b, RuleIndex(parse_rules(WAYS)), DeriveLimits())
    assert isinstance(found, Derived)
    assert [link.rule for link in found.forward] == ["there", "further"]
    assert found.visited < 8


DETOUR = """
out(x: f): Erf(x) => Erf(Abs(x))
on(x: f): Erf(Abs(x)) => Sqrt(Abs(x))
straight(x: f): Erf(x) => Sqrt(Abs(x))
backwards(x: f): Tanh(x) => Sqrt(Abs(x))
"""


def test_a_chain_has_no_detours() -> None:
    """These rules are no laws."""
    start, aside, end = (
        graph(v)
        for v in (make("Erf", X), make("Erf", make("Abs", X)), make("Sqrt", make("Abs", X)))
    )
    other = graph(make("Tanh", X))
    rules = RuleIndex(parse_rules(DETOUR))
    forth = (Link("out", start, aside), Link("on", aside, end))
    found = shorten(Derived(forth, (), 9), start, end, rules)
    assert [(s.rule, s.before, s.after) for s in found.forward] == [("straight", start, end)]
    assert not found.backward
    both = shorten(Derived(forth, (Link("backwards", other, end),), 9), start, other, rules)
    assert [s.rule for s in both.forward] == ["straight"]
    assert [s.rule for s in both.backward] == ["backwards"]
    unknown = RuleIndex(parse_rules("none(x: f): Exp(x) => Erf(x)"))  # what was found stays
    assert shorten(Derived(forth, (), 9), start, end, unknown) == Derived(forth, (), 9)


def test_what_is_false_is_not(library: RuleIndex) -> None:
    a, b = graph(turned(make("Relu", make("Add", X, Y)))), graph(make("Add", X, Y))
    assert isinstance(derive(a, b, library, DeriveLimits(max_graphs=2000)), Underived)


def test_all_that_can_be_reached_is_looked_at() -> None:
    a, b = graph(turned(make("Relu", make("Add", X, Y)))), graph(make("Add", X, Y))
    few = [r for r in load_library() if r.origin == "hand"]
    found = derive(a, b, RuleIndex(few), DeriveLimits(max_seconds=20))
    assert isinstance(found, Underived)
    assert found.reason == "nothing more can be reached"


def test_rules_about_own_operators_leave_graphs_for_the_others() -> None:
    """Sums can be grouped in more ways than may be visited; the way out is by a product."""
    rules = RuleIndex(
        parse_rules(
            "group(x: f, y: f, z: f): Add(Add(x, y), z) <=> Add(x, Add(y, z))\n"
            "again(x: f, y: f): Add(x, y) <=> Add(Add(x, y), Add(x, Add(y, x)))\n"  # has no end
            "product(x: f, y: f): Div(x, y) => Mul(x, Div(1, y))\n"
            "one(x: f): Mul(x, 1) => x"
        )
    )
    left = make("Add", make("Add", make("Add", X, Y), Z), W)
    number = ir_graph.constant(np.float32(1))
    found = derive(
        graph(make("Div", left, number)), graph(left), rules, DeriveLimits(max_graphs=200)
    )
    assert isinstance(found, Derived)
    assert [s.rule for s in found.forward] == ["product", "one"]


def test_a_search_that_is_stopped_says_so(library: RuleIndex) -> None:
    a, b = map(graph, PAIRS["a chain of products"])
    found = derive(a, b, library, DeriveLimits(), stop=lambda: True)
    assert isinstance(found, Underived)
    assert found.reason == "it was stopped"


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        (DeriveLimits(max_steps=1), "the limit of steps was reached"),
        (DeriveLimits(max_graphs=3), "the limit of graphs was reached"),
        (DeriveLimits(max_seconds=0), "the time was used up"),
    ],
)
def test_a_bound_is_named(bounds: DeriveLimits, reason: str) -> None:
    rules = RuleIndex(
        parse_rules("add-assoc(x: f, y: f, z: f): Add(Add(x, y), z) <=> Add(x, Add(y, z))")
    )
    left = make("Add", make("Add", make("Add", X, Y), Z), W)
    right = make("Mul", make("Mul", make("Mul", X, Y), Z), W)
    found = derive(graph(left), graph(right), rules, bounds)
    assert isinstance(found, Underived)
    assert found.reason == reason


def test_joins_within_joins_are_one() -> None:
    """However they nest, and with a rule for two of their operands."""
    x, y, z = X, Y, Z
    rules = RuleIndex(parse_rules("same(x: f): Max(x, x) => x ; float=E0"))
    nested = make("Max", x, make("Max", y, make("Max", z, x)))
    found = derive(graph(nested), graph(make("Max", make("Max", x, y), z)), rules, DeriveLimits())
    assert isinstance(found, Derived)
    assert [link.rule for link in (*found.forward, *found.backward)] == ["same"]
    joined = [make("Concat", make("Concat", x, y, axis=0), z, axis=0)]
    joined.append(make("Concat", x, make("Concat", y, z, axis=0), axis=0))
    assert isinstance(derive(*map(graph, joined), RuleIndex([]), DeriveLimits()), Derived)
    turned_round = make("Concat", make("Concat", y, x, axis=0), z, axis=0)
    assert not isinstance(
        derive(graph(joined[0]), graph(turned_round), rules, DeriveLimits()), Derived
    )
