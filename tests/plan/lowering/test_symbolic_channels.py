"""Images of few channels whose rows have a symbolic width: equal results at all widths."""

from __future__ import annotations

import pytest

import superopt
from tests.plan.lowering.test_channels import FORMS
from tests.support.compilation.forms import build, feeds_of
from tests.support.compilation.models import near, reference


@pytest.mark.one_in(2)
@pytest.mark.parametrize("first", [41, 8])
@pytest.mark.parametrize(
    "name",
    ["eight channels along rows, then three", "channels along one dimension", "one channel of 33"],
)
def test_results_are_equal_at_all_widths(name: str, first: int) -> None:
    """first: the width that the program is planned for."""
    nodes, shapes, known = FORMS[name]
    m = build(nodes, {k: (*s[:-1], "w") for k, s in shapes.items()}, known)
    exe = superopt.compile(m, specialize="never")
    for width in (first, 64, 20, 17, 13, 41):
        feeds = feeds_of({k: (*s[:-1], width) for k, s in shapes.items()})
        near(exe.run(feeds), reference(m, feeds))
