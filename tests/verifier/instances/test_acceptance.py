"""Sizes at which an operator accepts operands."""

import pytest

from superopt.ops import OPS
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, F32
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import Tensor
from superopt.verifier.instances import acceptance
from superopt.verifier.instances.acceptance import accepted_sizes

N = Size("n")


def test_a_size_is_found_after_a_refused_one() -> None:
    operands = Tensor("a", F32, (1, N)), Tensor("b", F32, (2, 1))
    assert accepted_sizes(OPS["MatMul"], operands, (), ()) == {"n": 2}


def test_a_size_that_hypotheses_require_is_found() -> None:
    nine = index.apply("eq", (N, index.as_index(9)), BOOL)
    operands = Tensor("a", F32, (N,)), Tensor("b", F32, (9,))
    assert accepted_sizes(OPS["Add"], operands, (), (nine,)) == {"n": 9}


def test_sizes_that_are_tried_first_are_all_1_then_all_2(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[dict[str, int]] = []

    def refuse(op: object, types: object, attrs: object, sizes: dict[str, int]) -> bool:
        tried.append(sizes)
        return False

    monkeypatch.setattr(acceptance, "_accepts", refuse)
    names = "bcdef"
    operands = [Tensor(name, F32, (Size(name),)) for name in names]
    assert acceptance.accepted_sizes(OPS["Max"], operands, (), ()) is None
    assert tried[:2] == [dict.fromkeys(names, 1), dict.fromkeys(names, 2)]
    assert len(tried) == acceptance.MAX_REFUSALS
    assert all(len(set(sizes.values())) > 1 for sizes in tried[2:5])
    assert {n for sizes in tried for n in sizes.values()} == {1, 2, 3, 4}


def test_operands_refused_at_every_size_have_none() -> None:
    operands = Tensor("a", F32, (2, N)), Tensor("b", F32, (3, N))
    assert accepted_sizes(OPS["Add"], operands, (), ()) is None


def test_operands_of_known_sizes_have_none_to_choose() -> None:
    assert accepted_sizes(OPS["Relu"], (Tensor("a", F32, (2, 3)),), (), ()) is None


def test_absent_operands_have_no_sizes() -> None:
    scalar = Tensor("least", F32, ())
    assert accepted_sizes(OPS["Clip"], (Tensor("a", F32, (N,)), None, scalar), (), ()) == {"n": 1}


def test_sizes_near_the_numbers_of_hypotheses_are_found() -> None:
    above = index.apply("lt", (index.as_index(20), N), BOOL)
    below = index.apply("lt", (N, index.as_index(23)), BOOL)
    one = Tensor("a", F32, (N,))
    for hypotheses, wanted in (((above,), {21, 22}), ((above, below), {21, 22})):
        found = accepted_sizes(OPS["Relu"], (one,), (), hypotheses)
        assert found is not None
        assert found["n"] in wanted
    only = index.apply("ne", (N, index.as_index(21)), BOOL)
    assert accepted_sizes(OPS["Relu"], (one,), (), (above, only)) == {"n": 22}
