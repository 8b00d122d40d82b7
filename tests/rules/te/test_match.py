"""Parts of patterns on tensor expressions, and which indices match them."""

from collections.abc import Mapping

import pytest

from superopt.rules.te.build import Value
from superopt.rules.te.match import ANY_ROOT, Context, Matcher, _summands, key_of, root_key
from superopt.rules.te.rewrite import load_te_rules
from superopt.rules.te.term import (
    AxisTerm,
    Call,
    Element,
    Fold,
    Lit,
    Store,
    TeRule,
    Var,
    parse_te_rules,
)
from superopt.te.expr.dtype import F16, F32, INDEX
from superopt.te.expr.node import Axis, Const, Expr
from superopt.te.expr.tensor import (
    Tensor,
    apply,
    cast,
    compare,
    compute,
    const,
    reduce_sum,
    select,
)


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


def test_an_axis_alone_is_an_element_of_axes() -> None:
    a = Tensor("a", F32, (4, 8))
    t = compute((4, 8), lambda i, j: select(compare("lt", i, 2), a[i, j], const(0, F32)))
    assert load_te_rules("rows", "hold-").rewrite(t, Context()) is None


def test_the_root_of_a_pattern_is_that_of_what_it_matches() -> None:
    element, c = Tensor("x", F32, (8,))[OUT], Var("c")
    pairs = [
        (Call("exp", (c,)), apply("exp", element)),
        (Call("f16", (c,)), cast(element, F16)),
        (Element("x", (Var("i"),)), element),
        (Store("", (), c), element),
        (Fold("sum", (AxisTerm("i"),), c), reduce_sum(8, lambda i: Tensor("x", F32, (8,))[i])),
    ]
    assert [root_key(p) for p, _ in pairs] == [key_of(e) for _, e in pairs]
    assert len({key_of(e) for _, e in pairs}) == 4
    for p in (c, Lit(1)):
        assert root_key(p) == ANY_ROOT == ""
    assert key_of(OUT) not in {key_of(e) for _, e in pairs}


@pytest.mark.parametrize(
    ("kind", "kinds"),
    [
        ("any", "number constant load computed axis int nat size"),
        ("computed", "computed"),
        ("axis", "axis"),
        ("size", "size"),
        ("nat", "nat size"),
        ("int", "int nat size"),
        ("number", "number int nat size"),
        ("constant", "constant number int nat size axis"),
        ("f32", "number constant load computed"),
        ("f32[...]", "constant load"),
    ],
)
def test_kinds_of_names(kind: str, kinds: str) -> None:
    x, c = Tensor("x", F32, (8,)), Tensor("c", F32, (8,))
    examples = {
        "number": const(0.5, F32), "constant": c[OUT], "load": x[OUT], "axis": OUT,
        "computed": apply("exp", x[OUT]), "nat": Const(0, INDEX), "size": Const(1, INDEX),
        "int": Const(-1, INDEX),
    }  # fmt: skip
    rule = TeRule("r", {"e": kind}, Var("e"), Var("e"))
    matcher = Matcher(rule, Context(constants=(c,)), (OUT,), OUT)
    assert {n for n, e in examples.items() if matcher.has_kind("e", e)} == set(kinds.split())
