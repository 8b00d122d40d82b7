"""Boxes, and fewer of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from superopt.partial.regions.boxes import Span, format_box, mask, merge_boxes, split_box, volume


def test_spans() -> None:
    s = Span(3, 14, 4)
    assert (s.count, s.index_at(2), list(s.indices()), str(s)) == (3, 11, [3, 7, 11], "3:14:4")
    assert s.part(1, 3) == Span(7, 12, 4)
    assert s.part(0, 3, 2) == Span(3, 12, 8)
    assert format_box((Span(0, 1), Span(0, 4))) == "[0, 0:4]"


def test_two_ends_are_no_period() -> None:
    assert merge_boxes([(Span(0, 1),), (Span(5, 6),)], (6,)) == ((Span(0, 1),), (Span(5, 6),))
    every = [(Span(i, i + 1),) for i in (0, 2, 4)]
    assert merge_boxes(every, (6,)) == ((Span(0, 5, 2),),)


@given(st.lists(st.booleans(), min_size=24, max_size=24))
def test_joined_boxes_are_the_same_elements(there: list[bool]) -> None:
    shape = (2, 3, 4)
    wanted = np.array(there).reshape(shape)
    some = [tuple(Span(i, i + 1) for i in at) for at in np.argwhere(wanted).tolist()]
    made = merge_boxes(some, shape)
    assert sum(map(volume, made)) == wanted.sum()  # none twice
    np.testing.assert_array_equal(mask(made, shape), wanted)


@given(st.lists(st.booleans(), min_size=24, max_size=24))
def test_a_box_of_which_some_is_there(there: list[bool]) -> None:
    box, shape = (Span(1, 4, 2), Span(0, 3), Span(2, 13, 3)), (5, 3, 14)
    held = np.zeros(shape, bool)
    held[1:4:2, :, 2:13:3] = np.array(there).reshape(2, 3, 4)
    some, others = split_box(box, np.array(there))
    np.testing.assert_array_equal(mask(some, shape), held)
    assert sum(map(volume, (*some, *others))) == 24
    np.testing.assert_array_equal(mask((*some, *others), shape), mask([box], shape))


def test_a_number_is_there_or_not() -> None:
    assert split_box((), np.array([True])) == ([()], [])
    assert split_box((), np.array([False])) == ([], [()])
