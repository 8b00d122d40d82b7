"""Items of contiguous vectors in formulas."""

import pytest

from superopt.rules.lang.term import Binary, Call, Formula, Lit, Name, Seq, Slice, Subscript
from superopt.verifier.instances.attributes import Unsupported
from superopt.verifier.instances.vectors import replace_items

ITEMS = Call("items", (Name("i"),))
FIRST, SECOND, LENGTH, SPLIT = (Name(n) for n in ("first of i", "second of i", "length of i", "m"))


def _last(first: Formula, length: Formula) -> Formula:
    return Binary("-", Binary("+", first, length), Lit(1))


@pytest.mark.parametrize(
    ("formula", "split", "wanted"),
    [
        (Subscript(ITEMS, Lit(0)), "", FIRST),
        (Subscript(ITEMS, Lit(0)), "m", FIRST),
        (Subscript(ITEMS, SPLIT), "m", SECOND),
        (Subscript(ITEMS, Binary("-", SPLIT, Lit(1))), "m", _last(FIRST, SPLIT)),
        (Subscript(ITEMS, Lit(-1)), "", _last(FIRST, LENGTH)),
        (Subscript(ITEMS, Lit(-1)), "m", _last(SECOND, Binary("-", LENGTH, SPLIT))),
        (Call("min", (ITEMS,)), "m", Call("min", (FIRST, SECOND))),
        (Slice(ITEMS, None, Lit(1), None), "", Seq((FIRST,))),
        (Call("contiguous", (ITEMS,)), "", Lit(True)),
    ],
)
def test_items_become_names(formula: Formula, split: str, wanted: Formula) -> None:
    assert replace_items(formula, {"i": split}) == wanted


@pytest.mark.parametrize("split", ["", "k"])
def test_other_items_are_unsupported(split: str) -> None:
    with pytest.raises(Unsupported):
        replace_items(Subscript(ITEMS, SPLIT), {"i": split})
