"""Marker numbers of unknown attributes."""

import math
from fractions import Fraction

from superopt.verifier.context import UnknownNumbers


def test_the_root_of_a_marker_is_known() -> None:
    unknowns = UnknownNumbers()
    root = Fraction(math.sqrt(unknowns.mark("epsilon")))
    assert unknowns.root_name(root) == "epsilon"
    assert unknowns.root_name(-root) is None
    assert unknowns.root_name(Fraction(1, 2)) is None
