"""Boxes, and fewer of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from superopt.partial.boxes import Span, joined, mask, show, singles, volume, whole


def test_spans() -> None:
    s = Span(3, 14, 4)
    assert (s.count, s.at(2), list(s.indices()), str(s)) == (3, 11, [3, 7, 11], "3:14:4")
    assert s.part(1, 3) == Span(7, 12, 4)
    assert s.part(0, 3, 2) == Span(3, 12, 8)
    assert show((Span(0, 1), Span(0, 4))) == "[0, 0:4]"


def test_two_ends_are_no_period() -> None:
    assert joined([(Span(0, 1),), (Span(5, 6),)], (6,)) == ((Span(0, 1),), (Span(5, 6),))
    every = [(Span(i, i + 1),) for i in (0, 2, 4)]
    assert joined(every, (6,)) == ((Span(0, 5, 2),),)


@given(st.lists(st.booleans(), min_size=24, max_size=24))
def test_joined_boxes_are_the_same_elements(there: list[bool]) -> None:
    shape = (2, 3, 4)
    wanted = np.array(there).reshape(shape)
    some = [b for b in singles(whole(shape)) if wanted[tuple(s.begin for s in b)]]
    made = joined(some, shape)
    assert sum(map(volume, made)) == wanted.sum()  # none twice
    np.testing.assert_array_equal(mask(made, shape), wanted)
