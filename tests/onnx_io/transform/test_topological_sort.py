"""The order of nodes."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from superopt.onnx_io.transform.topological_sort import topological_order


@st.composite
def graphs(draw: st.DrawFn) -> list[set[int]]:
    count = draw(st.integers(0, 6))
    number = st.integers(0, max(count - 1, 0))
    return [draw(st.sets(number, max_size=3)) for _ in range(count)]


@given(graphs())
def test_it_is_the_least_order_behind_the_operands(operands: list[set[int]]) -> None:
    orders = (
        order
        for order in permutations(range(len(operands)))
        if all(operands[n] <= {*order[:place]} for place, n in enumerate(order))
    )
    least = next(orders, None)  # permutations come in lexicographic order
    assert topological_order(operands) == (None if least is None else [*least])
