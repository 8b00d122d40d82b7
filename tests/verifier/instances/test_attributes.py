"""The values that an open attribute may take."""

import pytest

from superopt.ops import OPS
from superopt.te.expr.node import Size
from superopt.verifier.context import ProofContext
from superopt.verifier.instances.attributes import OpenAttribute, attribute_options

SMALL = [(1, 1), (2, 2)]
T0, T1 = Size("t0"), Size("t1")


@pytest.mark.parametrize(
    ("op", "key", "rank", "values"),
    [
        ("ConvTranspose", "strides", 4, SMALL),
        ("ConvTranspose", "dilations", 4, SMALL),
        ("ConvTranspose", "pads", 4, [(0, 0, 0, 0), (1, 1, 1, 1), (0, 0, 1, 1)]),
        ("ConvTranspose", "output_padding", 4, [(0, 0), (1, 1)]),
        ("Expand", "shape", 1, [(T0,), (T0, T1)]),
    ],
)
def test_options(op: str, key: str, rank: int, values: list[object]) -> None:
    a = OpenAttribute(ProofContext(), OPS[op], key, "a", [rank], {}, 4)
    assert [option(Size) for option in attribute_options(a)] == values
