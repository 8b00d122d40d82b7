"""Left sides of rules, built from their leaves up."""

from collections.abc import Iterator
from random import Random

import pytest

from superopt.ir.graph import Constant, Node, Value
from superopt.ir.op import InferError
from superopt.rules.lang.functions import NotKnown
from superopt.rules.lang.rule import parse_rules
from superopt.rules.lang.term import App, Pick, Var
from superopt.rules.trial.sample.draw import Draw, RejectedChoice, Style
from superopt.rules.trial.sample.left_side import LeftSideBuilder


def builder(text: str, seed: int = 0) -> LeftSideBuilder:
    (rule,) = parse_rules(f"r{text}")
    return LeftSideBuilder(rule, Draw(Random(seed), Style()))


def built(text: str, count: int = 20) -> Iterator[tuple[LeftSideBuilder, tuple[Value, ...]]]:
    """The left sides that some seeds build."""
    found = 0
    for seed in range(100):
        one = builder(text, seed)
        try:
            roots = one.roots()
            one.check_conditions()
        except (RejectedChoice, NotKnown, InferError):
            continue
        yield one, roots
        found += 1
        if found == count:
            return
    assert found > count / 4, "few attempts succeed"


def attribute_values(text: str, key: str) -> set[object]:
    return {v.attr(key) for _, (v,) in built(text) if isinstance(v, Node)}


def test_a_name_twice_is_one_operand() -> None:
    for one, (root,) in built("(x: f): Mul(Relu(x), x) => Mul(x, Relu(x))"):
        assert isinstance(root, Node)
        relu, x = root.inputs
        assert isinstance(relu, Node)
        assert relu.inputs == (x,)
        assert one.inputs == [x]


def test_an_equal_term_twice_is_one_value() -> None:
    for one, (root,) in built("(x: f): Mul(Relu(x), Relu(x)) => Mul(x, Relu(x))"):
        assert isinstance(root, Node)
        assert root.inputs[0] is root.inputs[1]
        assert one.terms[one.rule.lhs[0]] is root


def test_one_result_is_picked_and_others_do_not_exist() -> None:
    text = "(x: f[n, 4]): Relu(Split(x, axis=1, split=(1, 3))[{}]) => x"
    for one, (root,) in built(text.format(1)):
        n = one.names["n"]
        assert root.type.shape == (n, 3)
    one = builder(text.format(1))
    one.roots()
    (relu,) = one.rule.lhs
    assert isinstance(relu, App)
    (pick,) = relu.operands
    assert isinstance(pick, Pick)
    for index in (2, 3):
        with pytest.raises(RejectedChoice, match=f"no result {index}"):
            one.build_value(Pick(pick.term, index))  # type: ignore[arg-type]
    with pytest.raises(RejectedChoice, match="Split has 2 results"):
        one.build_value(pick.term)
    with pytest.raises(RejectedChoice, match="z alone"):
        one.build_value(Var("z"))


def test_several_roots_and_all_results() -> None:
    text = "(x: f, y: f): (Relu(x), Neg(y)) => (Relu(x), Neg(y))"
    assert {len(roots) for _, roots in built(text)} == {2}
    text = "(x: f[n, m]): Split(x, axis=0, split=(1, 2)) => Split(x, axis=0, split=(1, 2))"
    assert {len(roots) for _, roots in built(text)} == {2}


def test_attributes_of_a_rule_are_kept_and_bound() -> None:
    text = "(x: f): Softmax(Neg(x), axis=k) => Softmax(Neg(x), axis=k)"
    for one, (root,) in built(text):
        assert isinstance(root, Node)
        assert one.names["k"] == root.attr("axis")
    assert attribute_values("(x: f): Softmax(x, axis=1) => x", "axis") == {1}
    same = "(x: f, y: f): Add(Softmax(x, axis=k), Softmax(y, axis=k)) => x"
    for _, (root,) in built(same):
        assert isinstance(root, Node)
        axes = {n.attr("axis") for n in root.inputs if isinstance(n, Node)}
        assert len(axes) == 1


def test_the_rest_of_the_attributes_is_shared() -> None:
    for one, (root,) in built("(x: f, w: f): Relu(Conv(x, w, group=1, **a)) => x"):
        assert isinstance(root, Node)
        conv = root.inputs[0]
        assert isinstance(conv, Node)
        assert conv.attr("group") == 1
        assert one.names["a"] == tuple(p for p in conv.attrs if p[0] != "group")
    two = "(x: f, v: f, w: f): Add(Conv(x, v, **a), Conv(x, w, **a)) => x"
    for _, (root,) in built(two):
        assert isinstance(root, Node)
        left, right = root.inputs
        assert isinstance(left, Node)
        assert isinstance(right, Node)
        assert left.attrs == right.attrs


def test_an_attribute_that_operands_determine() -> None:
    text = "(x: f[n, m]): Reshape(Relu(x), shape=(m, n)) => x"
    for one, (root,) in built(text):
        assert root.type.shape == (one.names["m"], one.names["n"])
    assert attribute_values("(x: f): Softmax(Relu(x), axis=rank(x) - 1) => x", "axis") <= {
        0, 1, 2, 3,
    }  # fmt: skip


def test_likely_attributes_are_drawn() -> None:
    text = "(x: f[n, m], *, k: likely((0,), (1,))): ReduceSum(x, axes=k) => ReduceSum(x, axes=k)"
    assert attribute_values(text, "axes") == {(0,), (1,)}


def test_runs_have_one_to_three_operands_of_their_own() -> None:
    counts = []
    for one, (root,) in built("(*xs: f): Concat(*xs, axis=k) => Concat(*xs, axis=k)", 80):
        assert isinstance(root, Node)
        assert one.names["xs"] == root.inputs
        assert len({id(x) for x in root.inputs}) == len(root.inputs)
        counts.append(len(root.inputs))
    assert set(counts) == {1, 2, 3}
    assert counts.count(2) > 0.4 * len(counts)


def test_a_run_twice_has_the_same_operands() -> None:
    for one, (root,) in built("(*xs: f): Add(Concat(*xs, axis=k), Sum(*xs)) => Sum(*xs)"):
        assert isinstance(root, Node)
        assert [n.inputs for n in root.inputs if isinstance(n, Node)] == [one.names["xs"]] * 2


def test_an_attribute_that_a_later_operator_determines_is_compared_at_the_end() -> None:
    text = "(x: f, y: f): Concat(Softmax(x, axis=k - 1), y, axis=k) => x"
    for _, (root,) in built(text):
        assert isinstance(root, Node)
        softmax = root.inputs[0]
        assert isinstance(softmax, Node)
        axis = root.attr("axis")
        assert isinstance(axis, int)
        assert softmax.attr("axis") == (axis - 1) % len(root.type.shape or ())
    for one, (root,) in built("(x: f[n, m]): Reshape(x, shape=(m, n)) => x"):
        assert root.type.shape == (one.names["m"], one.names["n"])
        assert [key for _, key, _ in one.deferred] == ["shape"]


def test_numbers_and_fills_are_constants_of_the_type_of_their_siblings() -> None:
    for _, (root,) in built("(x: f32): Add(x, 7) => x"):
        assert isinstance(root, Node)
        seven = root.inputs[1]
        assert isinstance(seven, Constant)
        assert str(seven.type.dtype) == "f32"
        assert set(seven.load().reshape(-1).tolist()) == {7}
    for one, (root,) in built("(x: f32[n, m]): MatMul(x, eye(m)) => x"):
        assert isinstance(root, Node)
        eye = root.inputs[1]
        assert isinstance(eye, Constant)
        assert eye.type.shape == (one.names["m"],) * 2


def test_conditions_reject_or_define() -> None:
    for one, _ in built("(x: f[n, m]): Relu(x) => x where n < m, k == 2 * n"):
        n, m = one.names["n"], one.names["m"]
        assert isinstance(n, int)
        assert isinstance(m, int)
        assert n < m
        assert one.names["k"] == 2 * n
    one = builder("(x: f): Relu(x) => x where rank(x) > 9")
    one.roots()
    with pytest.raises(RejectedChoice, match="a condition does not hold"):
        one.check_conditions()


def test_an_operand_that_may_be_a_constant_is_an_input() -> None:
    for one, _ in built("(x: f, c: f): Mul(x, c) => x where const(c)"):
        assert [i.name for i in one.inputs] == ["x", "c"]
