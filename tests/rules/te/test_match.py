"""Parts of patterns on tensor expressions."""

from superopt.rules.te.match import _summands
from superopt.rules.te.term import Call, Lit, Var


def test_a_sum_is_split_into_axes_with_coefficients_and_numbers() -> None:
    k, h, c, n = (Var(name) for name in "khcn")
    pattern = Call("add", (Call("add", (k, Call("mul", (n, h)))), c))
    kinds = {"k": "axis", "h": "axis", "c": "int", "n": "int"}
    assert _summands(pattern, kinds) == ([(Lit(1), k), (n, h)], [c])
