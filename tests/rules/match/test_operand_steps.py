"""Operands in a row, cut into the runs that a rule gives."""

import pytest

from superopt.ir.graph import Input, Node, node
from superopt.ops import OPS
from superopt.rules.match.operand_steps import MAX_CUT_EVERYWHERE, _cuts, _part_starts
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

MANY = MAX_CUT_EVERYWHERE + 1


@pytest.mark.parametrize(
    ("op", "operands", "runs", "cuts"),
    [
        ("Concat", 3, 1, [()]),
        ("Concat", 3, 2, [(1,), (2,)]),
        ("Concat", 4, 3, [(1, 2), (1, 3), (2, 3)]),
        ("Concat", 2, 3, []),
        # a Sum is computed from the left, so that only the first run may have several operands
        ("Sum", 4, 2, [(3,)]),
        ("Sum", 4, 3, [(2, 3)]),
        ("Sum", 4, 1, [()]),
        ("Concat", MANY, 2, [(1,), (MANY // 2,), (MANY - 1,)]),
        ("Concat", MANY, 3, []),
        ("Concat", MANY - 1, 2, [(n,) for n in range(1, MANY - 1)]),
    ],
)
def test_cuts(op: str, operands: int, runs: int, cuts: list[tuple[int, ...]]) -> None:
    assert list(_cuts(op, operands, runs)) == cuts


@pytest.mark.parametrize(("op", "starts"), [("Concat", [0, 1, 2]), ("Sum", [0])])
def test_a_part_starts_anywhere_but_in_a_sum(op: str, starts: list[int]) -> None:
    inputs = [Input(f"x{k}", TensorType(F32, (2,))) for k in range(4)]
    n = node(OPS[op], inputs, **({"axis": 0} if op == "Concat" else {}))
    assert isinstance(n, Node)
    assert list(_part_starts(n, 2)) == starts
