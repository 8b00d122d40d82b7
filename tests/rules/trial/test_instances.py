"""Shapes near those of an instance, and the extents that its indices are below."""

from random import Random

import numpy as np
import pytest

from superopt.ir.graph import Input, Value, constant, node
from superopt.ops import OPS
from superopt.rules.lang.rule import parse_rules
from superopt.rules.trial.instances import (
    STYLES,
    _index_limits,
    _neighbor_shapes,
    instance_of_names,
    instances,
    misfit_reason,
    replace_size,
)
from superopt.rules.trial.sample.left_side import LeftSideBuilder
from superopt.te.expr.dtype import F32, I64
from superopt.te.expr.tensor import TensorType


def test_neighbor_shapes_change_one_axis_or_the_rank() -> None:
    assert list(_neighbor_shapes((2, 1))) == [(1, 1), (3, 1), (2, 2), (1, 2, 1)]
    assert list(_neighbor_shapes((1,))) == [(2,), (1, 1), ()]


def test_a_size_is_replaced_wherever_it_is() -> None:
    assert replace_size((2, 3, (2, "2")), 2, 5) == (5, 3, (5, "2"))
    assert replace_size(2, 2, 5) == 5
    assert replace_size(True, 1, 5) is True


def test_styles_have_all_ranks_equal_sizes_and_sizes_of_1() -> None:
    assert {s.rank for s in STYLES} == {None, 1, 2, 3, 4}
    assert {s.equal_sizes for s in STYLES} == {True, False}
    assert all(0 <= s.ones_share < 0.5 and s.max_size == 7 for s in STYLES)
    assert any(s.ones_share for s in STYLES)


# --- indices --------------------------------------------------------------------------------------

X = Input("x", TensorType(F32, (5, 3)))
INDEX, J = (Input(name, TensorType(I64, (2,))) for name in "ij")


def gather(data: Value, index: Value, axis: int) -> Value:
    return node(OPS["Gather"], [data, index], axis=axis)


def test_an_index_is_below_the_least_extent_that_it_selects_from() -> None:
    assert _index_limits((gather(X, INDEX, 0),), (X, INDEX)) == {INDEX: 5}
    assert _index_limits((gather(X, INDEX, 0), gather(X, INDEX, 1)), (X, INDEX)) == {INDEX: 3}
    total = node(OPS["Add"], [INDEX, J])
    assert _index_limits((gather(X, total, 1),), (X, INDEX, J)) == {INDEX: 3, J: 3}
    assert _index_limits((gather(INDEX, J, 0),), (INDEX, J)) == {J: 2}
    assert _index_limits((gather(X, gather(INDEX, J, 0), 1),), (X, INDEX, J)) == {INDEX: 3, J: 2}
    assert _index_limits((node(OPS["Neg"], [X]),), (X,)) == {}


@pytest.mark.parametrize(
    ("numbers", "is_valid"), [((0, 4), True), ((-5, 0), True), ((0, 5), False), ((-6, 0), False)]
)
def test_constant_indices_are_in_range(numbers: tuple[int, ...], is_valid: bool) -> None:
    index = constant(np.array(numbers))
    assert _index_limits((gather(X, index, 0),), (X,)) == ({} if is_valid else None)
    assert _index_limits((gather(X, constant(np.array([], np.int64)), 0),), (X,)) == {}


def test_a_window_of_padding_only_has_no_limits() -> None:
    image = Input("x", TensorType(F32, (1, 1, 2)))
    pool = node(OPS["MaxPool"], [image], kernel_shape=(2,), pads=(3, 3), dilations=(3,))
    assert _index_limits((pool,), (image,)) is None


# --- instances ------------------------------------------------------------------------------------


def test_why_no_instance_fits() -> None:
    (rule,) = parse_rules("r(x: f[n, m]): Relu(x) => Transpose(x, perm=(1, 0)) where n != m")
    reason = misfit_reason(rule, 0)
    assert reason.startswith("its sides have different types, as for x: f")
    assert "its left side is" in reason
    (fits,) = parse_rules("r(x: f[n, m]): Relu(x) => Max(x, 0)")
    assert misfit_reason(fits, 0) == ""
    (never,) = parse_rules("r(x: f): Relu(x) => x where rank(x) > 9")
    assert misfit_reason(never, 0) == ""


def test_an_instance_is_made_of_its_names_again() -> None:
    (rule,) = parse_rules("r(x: f[n, m], y: f): Add(Relu(x), y) => Add(y, Relu(x))")
    for one, _ in zip(instances(rule, 0), range(8), strict=False):
        again = instance_of_names(rule, one.names, Random(0).randrange(9))
        assert again is not None
        assert again.inputs == one.inputs
        assert str(again) == str(one)


def test_a_constant_that_needs_a_later_operand_ends_the_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No draw can bind x before ones(size(x, 0)): one attempt shows that."""
    attempts: list[object] = []
    build = LeftSideBuilder.roots

    def count(self: LeftSideBuilder) -> tuple[Value, ...]:
        attempts.append(self)
        return build(self)

    monkeypatch.setattr(LeftSideBuilder, "roots", count)
    (rule,) = parse_rules("r(x: f, y: f): Mul(Add(y, ones((size(x, 0),))), x) => Mul(x, Add(y, 1))")
    assert not list(instances(rule, 0))
    assert len(attempts) == 1
    attempts.clear()
    (other,) = parse_rules("r(x: f[n]): Mul(x, ones((size(x, 0),))) => x")  # x is bound before
    assert len(list(zip(instances(other, 0), range(3), strict=False))) == 3


def test_instances_are_distinct_and_the_same_for_a_seed() -> None:
    (rule,) = parse_rules("r(x: f[n, m]): Neg(Neg(x)) => x")
    first, again, other = (
        [str(one) for one, _ in zip(instances(rule, seed), range(30), strict=False)]
        for seed in (0, 0, 1)
    )
    assert first == again != other
    assert len(set(first)) == len(first) == 30
