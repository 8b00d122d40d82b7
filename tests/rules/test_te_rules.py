"""The engine of rules on tensor expressions: what matches, what is built, and that values stay."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from superopt.errors import UsageError
from superopt.rules.te.match import Context
from superopt.rules.te.rewrite import (
    RuleSet,
    load_te_library,
    load_te_rules,
    rewrite_definitions,
)
from superopt.rules.te.term import parse_te_rules
from superopt.te.eval.interpret import evaluate
from superopt.te.expr.dtype import BOOL, F16, F32
from superopt.te.expr.node import Axis, Const, Expr
from superopt.te.expr.tensor import (
    Tensor,
    TensorType,
    apply,
    cast,
    compare,
    compute,
    conjunction,
    const,
    placeholder,
    reduce_max,
    reduce_sum,
    select,
)


def rules(text: str) -> RuleSet:
    found, _ = parse_te_rules(text, "test")
    return RuleSet(tuple(found))


def array(t: Tensor) -> np.ndarray:
    shape = tuple(n for n in t.shape if isinstance(n, int))
    return np.random.default_rng(len(t.name)).integers(-8, 9, shape).astype(np.float32)


def assert_equal_values(before: Tensor, after: Tensor, *inputs: Tensor) -> None:
    """Assert that both have the same values, which are exact."""
    given = {t.name: array(t) for t in inputs}
    a, b = (np.asarray(evaluate(t, given)) for t in (before, after))
    np.testing.assert_array_equal(a.reshape(-1), b.reshape(-1))


X = placeholder("x", TensorType(F32, (3, 5, 12)))
W = placeholder("ww", TensorType(F32, (3, 12)))


@pytest.mark.parametrize("sizes", [((5, 4), (1, 3)), ((1, 5), (5, 3)), ((2, 4), (3, 3))])
def test_split_reduction(sizes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    parts, terms = sizes
    for reduce in (reduce_sum, reduce_max):
        y = compute((3,), lambda i, reduce=reduce: reduce((5, 12), lambda j, k: X[i, j, k]) * 2)
        context = Context(conditions={"part_sizes": lambda *n: [(parts, terms)]})
        made = load_te_rules("reductions", "split-").rewrite(y, context)
        assert made is not None
        (each,) = made.stored
        assert each.shape == (np.prod(parts), 3)
        assert_equal_values(y, made.tensor, X)


def test_parts_that_are_too_few_do_not_match() -> None:
    y = compute((3,), lambda i: reduce_sum((5, 12), lambda j, k: X[i, j, k]))
    context = Context(conditions={"part_sizes": lambda *n: [((1, 2), (5, 5))]})
    assert load_te_rules("reductions", "split-").rewrite(y, context) is None


def test_terms_that_count() -> None:
    def element(i: Expr, k: Expr) -> Expr:
        guard = conjunction(compare("eq", k % 3, 1), compare("lt", k, 9))
        return select(guard, X[i, 0, k], 0) * W[i, k]

    y = compute((3,), lambda i: reduce_sum(12, lambda k: element(i, k)))
    context = Context(
        conditions={
            "vanishes": lambda x: False,
            "terms_that_count": lambda k: [(3, 3, 1)] if k.extent == 12 else [],
        }
    )
    after = load_te_rules("reductions", "drop-sum", "restrict-sum").rewrite_fully(y, context)
    assert "k0 < 3" in str(after.body)
    assert_equal_values(y, after, X, W)


def test_rewriting_without_an_end_is_an_error() -> None:
    y = compute((3,), lambda i: reduce_sum(1, lambda k: X[i, 0, k]))
    again = Context(
        conditions={"vanishes": lambda x: False, "terms_that_count": lambda k: [(1, 2, 0)]}
    )
    with pytest.raises(RuntimeError, match=r"restrict-sum rewrote .* times without an end"):
        load_te_rules("reductions", "drop-sum", "restrict-sum").rewrite_fully(y, again)


def test_digits_of_an_axis() -> None:
    y = compute((3,), lambda i: reduce_sum(60, lambda k: X[i, k // 12, k % 12]))
    after = load_te_rules("reductions", "digits-").rewrite_fully(y, Context())
    assert str(after.body) == "sum(x[i0, k0.1, k0.0] for k0.1 < 5, k0.0 < 12)"
    assert_equal_values(y, after, X)
    whole = compute((3,), lambda i: reduce_sum(12, lambda k: X[i, 0, k]))
    assert load_te_rules("reductions", "digits-").rewrite(whole, Context()) is None


def test_channels_of_a_group() -> None:
    y = compute((3, 4), lambda i, g: reduce_sum((3, 5), lambda c, j: X[i, j, g * 3 + c]))
    asked: list[Expr] = []
    context = Context(conditions={"is_channel": lambda i, *rest: asked.append(i) or len(asked) > 2})
    made = load_te_rules("reductions", "group-channels-").rewrite(y, context)
    assert made is not None
    assert "x[i0, k1, channel]" in str(made.stored[0].body)
    assert_equal_values(y, made.tensor, X)


def test_groups_of_an_axis() -> None:
    mean = compute((3, 4), lambda i, g: reduce_sum((5, 3), lambda j, c: X[i, j, g * 3 + c]))
    y = compute((3, 12), lambda i, c: W[i, c] - mean[i, c // 3])
    made = load_te_rules("axes").rewrite(y, Context({mean: mean}))
    assert made is not None
    assert made.tensor.shape == (3, 4, 3)
    assert_equal_values(y, made.tensor, X, W)
    other = compute((3, 12), lambda i, c: W[i, c] - mean[i, c // 5])  # 5 does not divide 12
    assert load_te_rules("axes").rewrite(other, Context({mean: mean})) is None
    plain = compute((3, 12), lambda i, c: W[i, c] - W[i, c // 3])  # of no reduction
    assert load_te_rules("axes").rewrite(plain, Context({mean: mean})) is None


def test_a_definition_is_looked_into_if_it_may_be_inlined() -> None:
    t = compute((3, 12), lambda i, k: W[i, k] * Const(4, F32))
    y = compute((3,), lambda i: reduce_sum(12, lambda k: t[i, k] * X[i, 0, k]))
    hoist = load_te_rules("products", "hoist-")
    near = {"near_one": lambda c: True}
    assert rewrite_definitions(hoist, {t: t, y: y}, Context({}, near)) == {t: t, y: y}
    out = rewrite_definitions(hoist, {t: t, y: y}, Context({t: t}, near))
    assert list(out) == [y]  # nothing else reads t
    assert str(out[y].body) == "(sum((ww[i0, k0] * x[i0, 0, k0]) for k0 < 12) * 4)"
    z = compute((3, 12), lambda i, k: t[i, k])
    assert list(rewrite_definitions(hoist, {t: t, y: y, z: z}, Context({t: t}, near))) == [t, y, z]
    far = Context({t: t}, {"near_one": lambda c: False})
    assert hoist.rewrite(y, far) is None


def test_names_of_axes_are_different_axes() -> None:
    mask = placeholder("mask", TensorType(BOOL, (4, 4)))
    conditions = {"visible_below": lambda m: [0], "visible_above": lambda m: [],
                  "diagonal": lambda m: []}  # fmt: skip
    below = load_te_rules("masks")

    def rewritten(t: Tensor, constants: tuple[Tensor, ...]) -> bool:
        return below.rewrite(t, Context(conditions=conditions, constants=constants)) is not None

    assert rewritten(compute((4, 4), lambda i, j: mask[i, j]), (mask,))
    assert not rewritten(compute((4,), lambda i: mask[i, i]), (mask,))
    assert not rewritten(compute((4,), lambda i: mask[i, 0]), (mask,))
    assert not rewritten(compute((4, 4), lambda i, j: mask[i, j]), ())


def test_a_variable_depends_on_its_axes_only() -> None:
    r = rules("r(c): sum(*k < n, x(*k) * c) => sum(*k, x(*k)) * c")
    free = compute((3,), lambda i: reduce_sum(12, lambda k: W[i, k] * X[i, 0, 0]))
    made = r.rewrite(free, Context())
    assert made is not None
    assert_equal_values(free, made.tensor, W, X)
    bound = compute((3,), lambda i: reduce_sum(12, lambda k: W[i, k] * X[i, 0, k]))
    assert r.rewrite(bound, Context()) is None


def test_equal_variables_match_equal_expressions() -> None:
    r = rules("r(x): x - x => 0")
    assert r.rewrite(compute((3,), lambda i: W[i, 0] - W[i, 0]), Context()) is not None
    assert r.rewrite(compute((3,), lambda i: W[i, 0] - W[i, 1]), Context()) is None


def test_numbers_match_in_both_orders() -> None:
    r = rules("r(c: number): x * c => x + c")
    for e in (W[0, 0] * 3, 3 * W[0, 0]):
        made = r.rewrite(Tensor("y", F32, (), (), e), Context())
        assert made is not None
        assert str(made.tensor.body) == "(ww[0, 0] + 3)"


def test_kinds() -> None:
    half = placeholder("h", TensorType(F16, (3,)))
    r = rules("r(x: (f16 | bf16)[...]): f32(x) => f32(x) * 1")
    assert r.rewrite(compute((3,), lambda i: cast(half[i], F32)), Context()) is not None
    twice = compute((3,), lambda i: cast(half[i] + half[i], F32))  # no load
    assert r.rewrite(twice, Context()) is None
    assert r.rewrite(compute((3,), lambda i: cast(W[i, 0], F32) + 1), Context()) is None


def test_properties_see_stages() -> None:
    eps = compute((3,), lambda i: W[i, 0] + 1)
    root = compute((3,), lambda i: apply("sqrt", eps[i]))
    rows = load_te_rules("rows", "divide-")

    def inverted(by: Expr) -> bool:
        conditions = {"per_row": lambda e: e == by}
        context = Context(conditions=conditions, sees_stages=True)
        return rows.rewrite_root(X[0, 0, 0] / by, context) is not None

    i = Axis("i0", 3)
    assert inverted(root[i])
    assert inverted(eps[i])
    assert not inverted(W[i, 0])
    tiny = compute((3,), lambda i: W[i, 0] + const(1e-35, F32))
    assert not inverted(tiny[i])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("r(x): x +", "x +"),
        ("r(x: f33): x => x", "f33 is no kind"),
        ("sum(k, x)", "a rule begins with its name"),
        ("\nr(x): x => [x]", "test:2: [x] is not part of the rule language"),
        ("r(x): x is x => x", "Is"),
    ],
)
def test_malformed(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        parse_te_rules(text, "test")


def test_a_store_has_the_axes_of_its_element() -> None:
    r = rules("r(x): sum(*k < n, x(*k)) => sum(*k, store[...](x(*k)))")
    y = compute((3,), lambda i: reduce_sum(12, lambda k: W[i, k]))
    with pytest.raises(ValueError, match="without its axes"):
        r.rewrite(y, Context())


def test_the_reference_lists_the_rules(root: Path) -> None:
    page = (root / "docs" / "reference" / "te_rules.md").read_text()
    shown: set[str] = set()
    for name in re.findall(r"`([a-z0-9-]+(?:\{sum,max,min\})?)`", page):
        base = name.removesuffix("{sum,max,min}")
        shown |= {base + fn for fn in ("sum", "max", "min")} if base != name else {name}
    assert {rule.name for rule in load_te_library()} <= shown
    names = [rule.name for rule in load_te_library()]
    assert len({*names}) == len(names)
