"""Parts of patterns on tensor expressions, and which indices match them."""

from collections.abc import Mapping

import pytest

from superopt.rules.te.build import Value
from superopt.rules.te.match import Context, Matcher, _summands
from superopt.rules.te.term import Call, Lit, Var, parse_te_rules
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Axis, Const, Expr
from superopt.te.expr.tensor import compare


def test_a_sum_is_split_into_axes_with_coefficients_and_numbers() -> None:
    k, h, c, n = (Var(name) for name in "khcn")
    pattern = Call("add", (Call("add", (k, Call("mul", (n, h)))), c))
    kinds = {"k": "axis", "h": "axis", "c": "int", "n": "int"}
    assert _summands(pattern, kinds) == ([(Lit(1), k), (n, h)], [c])


OUT, K = Axis("o", 8), Axis("k", 3)
STRIDED = "strided(o: axis, k: axis, f: int, b: int, s: size): (o + f * k + b) % s == 0"


def bindings(e: Expr) -> list[Mapping[str, Value]]:
    _, (fact,) = parse_te_rules(STRIDED, "test")
    return list(Matcher(fact.rule, Context(), (OUT, K), e).matches(e))


def test_an_affine_index_matches_in_any_order() -> None:
    found = bindings(compare("eq", (K * 2 + OUT + 5) % 3, 0))
    assert {k: v for k, v in found[0].items() if k in "ok"} == {"o": OUT, "k": K}
    assert len(found) == 1


@pytest.mark.parametrize("index", [OUT + 5, OUT * K + 5, Const(5, INDEX) + OUT * 2 + K * 3])
def test_other_indices_do_not_match(index: Expr) -> None:
    assert bindings(compare("eq", index % 3, 0)) == []
