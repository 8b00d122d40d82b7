"""Pool windows that lie entirely in the padding."""

from itertools import product

import pytest

from superopt.ir.graph import Input, node
from superopt.ops import OPS
from superopt.rules.trial.sample.windows import has_padding_only_window
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_windows_are_as_counted_in_a_padded_axis(op: str, size: int) -> None:
    for kernel, step, spread, before, after in product(
        (1, 2, 3), (1, 2, 3), (1, 2, 3), *[range(3)] * 2
    ):
        reach = (kernel - 1) * spread
        if before > reach or after > reach or before + size + after <= reach:
            continue
        padded = [False] * before + [True] * size + [False] * after
        windows = [
            padded[at : at + reach + 1 : spread] for at in range(0, len(padded) - reach, step)
        ]
        x = Input("x", TensorType(F32, (1, 1, 9, size)))
        pool = node(
            OPS[op], [x], kernel_shape=(2, kernel), strides=(1, step), dilations=(1, spread),
            pads=(0, before, 0, after),
        )  # fmt: skip
        assert has_padding_only_window(pool) is (not all(map(any, windows)))


def test_only_pools_have_windows() -> None:
    x = Input("x", TensorType(F32, (1, 1, 2)))
    assert has_padding_only_window(node(OPS["Relu"], [x])) is False
    assert has_padding_only_window(node(OPS["MaxPool"], [x], kernel_shape=(2,))) is False
