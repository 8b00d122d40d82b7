"""Bounds of slices whose starts, ends or steps a rule leaves open."""

import pytest

from superopt.ops.movement.slicing import PAST_START
from superopt.rules.lang.rule import parse_rules
from superopt.te.expr import index
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import Tensor
from superopt.verifier.context import ProofContext
from superopt.verifier.instances.attributes import Unsupported
from superopt.verifier.instances.bindings import Bindings
from superopt.verifier.instances.choices import Ranks
from superopt.verifier.instances.sizes import Fork, RejectedChoice, State

N, B = Size("n"), Size("b")


def bindings(**choices: object) -> Bindings:
    (rule,) = parse_rules("r(x: f): Relu(x) => Max(x, 0)")
    return Bindings(ProofContext(), State(choices, {}), rule, Ranks(1, 4))


def test_a_reversed_slice_ends_at_the_first_element_or_later() -> None:
    with pytest.raises(Fork) as forked:
        bindings().reversed_bounds("k", 0, N)
    assert [s.choices for s in forked.value.states if s] == [{"first k": True}, {"first k": False}]
    first = index.dim(index.as_index(N) - 1)
    assert bindings(**{"first k": True}).reversed_bounds("k", 0, N) == (first, PAST_START)
    assert bindings(**{"first k": False}).reversed_bounds("k", 2, N) == (first, 1)


def test_a_reversed_slice_from_zero_has_no_element_before_its_end() -> None:
    with pytest.raises(RejectedChoice):
        bindings(**{"first k": False}).reversed_bounds("k", 0, N)
    with pytest.raises(RejectedChoice):
        bindings(**{"first k": True}).reversed_bounds("k", 2, N)


def test_an_open_end_is_after_its_start_and_inside_the_axis() -> None:
    x = Tensor("x", F32, (Size("l"), 5))
    with pytest.raises(Fork):  # l is a start, the kept part and a tail
        bindings().choose_ends("k", x, {"starts": (0,), "axes": (0,)})
    with pytest.raises(RejectedChoice):
        bindings().choose_ends("k", x, {"starts": (0,), "axes": (2,)})
    with pytest.raises(RejectedChoice):
        bindings().choose_ends("k", x, {"starts": (0, 0), "axes": (0,)})
    with pytest.raises(Unsupported):
        bindings().choose_ends("k", x, {"axes": (0,)})
