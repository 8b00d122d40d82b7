"""Sizes at which an operator accepts operands."""

from superopt.ops import OPS
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, F32
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import Tensor
from superopt.verifier.instances.acceptance import accepted_sizes

N = Size("n")


def test_a_size_is_found_after_a_refused_one() -> None:
    operands = Tensor("a", F32, (1, N)), Tensor("b", F32, (2, 1))
    assert accepted_sizes(OPS["MatMul"], operands, (), ()) == {"n": 2}


def test_a_size_that_hypotheses_require_is_found() -> None:
    nine = index.apply("eq", (N, index.as_index(9)), BOOL)
    operands = Tensor("a", F32, (N,)), Tensor("b", F32, (9,))
    assert accepted_sizes(OPS["Add"], operands, (), (nine,)) == {"n": 9}


def test_operands_refused_at_every_size_have_none() -> None:
    operands = Tensor("a", F32, (2, N)), Tensor("b", F32, (3, N))
    assert accepted_sizes(OPS["Add"], operands, (), ()) is None
