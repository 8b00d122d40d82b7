"""Instances like another one: what a rule claims too much is seen there at once."""

import pytest

from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.trial.cases import Cases
from superopt.rules.trial.instances import (
    Instance,
    instances,
    neighbor_instances,
    resized_instances,
)
from superopt.rules.trial.try_rule import Refuted, try_on_instances

PRODUCT = "a(x: f[n, k], y: f[k, m]): Transpose(MatMul(x, y), perm=(1, 0)) => {}"
RIGHT = PRODUCT.format("MatMul(Transpose(y, perm=(1, 0)), Transpose(x, perm=(1, 0)))")


def first(text: str) -> tuple[Rule, Instance]:
    (rule,) = parse_rules(text)
    return rule, next(instances(rule, 0))


def shapes(one: Instance) -> list[tuple[object, ...]]:
    return [i.type.shape or () for i in one.inputs]


def test_a_size_is_another_one_wherever_it_is() -> None:
    rule, one = first(RIGHT)
    (n, k), (_, m) = shapes(one)
    found = [shapes(other) for other in resized_instances(rule, one)]
    assert [(n, k), (k, m)] not in found
    assert all(x[1] == y[0] for x, y in found)
    assert {len({n, k, m} & {*x, *y}) for x, y in found} == {len({n, k, m}) - 1}
    assert len({str(some) for some in found}) == len(found) == 2 * len({n, k, m})


def test_all_may_have_an_axis_more() -> None:
    rule, one = first("a(x: f, y: f): Relu(MatMul(x, y)) => Max(MatMul(x, y), 0)")
    ranks = [len(s) for s in shapes(one)]
    assert [r + 1 for r in ranks] in [
        list(map(len, shapes(o))) for o in resized_instances(rule, one)
    ]


def test_element_types_stay() -> None:
    """A parameter of a declared shape is drawn anew, beside others that are not."""
    rule, _ = first("a(x: f, y: f[d, 1, 1]): Mul(Relu(x), y) => Mul(y, Relu(x))")
    some = [one for _, one in zip(range(6), instances(rule, 0), strict=False)]
    near = [
        o
        for one in some
        for o in (*resized_instances(rule, one), *neighbor_instances(rule, one, 0))
    ]
    assert len(near) > 30
    assert all(len({i.type.dtype for i in o.inputs}) == 1 for o in near)


WRONG = {
    "a window that covers all": (
        "a(x: f[1, 1, n]): MaxPool(x, kernel_shape=(3,), pads=(1, 1), strides=(1,))"
        " => Max(x, ReduceMax(x, axes=(2,), keepdims=1))",
        (1, 1, 2),
    ),
    "one column": (
        "a(x: f[n, m]): ReduceSum(x, axes=(1,), keepdims=1) => ReduceMax(x, axes=(1,), keepdims=1)",
        (3, 1),
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", WRONG)
def test_what_holds_at_one_size_only_is_refuted_near_it(name: str) -> None:
    text, shape = WRONG[name]
    (rule,) = parse_rules(text)
    one = next(i for i in instances(rule, 0, max_tries=5000) if shapes(i) == [shape])
    assert try_on_instances(rule, Cases(0, [one], ()), 0)
    assert isinstance(
        try_on_instances(rule, Cases(0, resized_instances(rule, one), ()), 0), Refuted
    )
