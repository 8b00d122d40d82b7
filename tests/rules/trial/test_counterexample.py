"""Counterexamples: as small as they can be, and what they say is so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from superopt.api.functions import check_rules
from superopt.ir.evaluate import evaluate
from superopt.ir.graph import Graph
from superopt.report.text import rules_text
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.trial.counterexample import (
    MAX_SHOWN_ELEMENTS,
    SIMPLE_NUMBERS,
    SMALL_STYLES,
    Counterexample,
    _distinct_texts,
    _show_elements,
    _simpler_numbers,
)
from superopt.rules.trial.try_rule import Refuted, try_rule
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64
from superopt.verification.rule_verdict import find_counterexample
from tests.support.rules.unsound import WRONG

SOME = WRONG[::9]


def example(rule: Rule) -> Counterexample:
    tried = try_rule(rule)
    assert isinstance(tried, Refuted)
    found = find_counterexample(rule, 0, tried)
    assert found is not None
    return found


def sides(found: Counterexample, feeds: dict[str, np.ndarray]) -> tuple[object, object]:
    """Both values where they are said to differ, evaluated anew."""
    one, n, at = found.difference.instance, found.difference.output, found.difference.index
    left = evaluate(Graph(one.inputs, one.lhs), feeds, Reals(F64))[n]
    right = evaluate(Graph(one.inputs, one.rhs), feeds, Reals(F64))[n]
    return left[at].item(), right[at].item()


@pytest.mark.one_in(16)
@pytest.mark.parametrize("rule", SOME, ids=lambda r: r.name)
def test_what_it_says_is_so(rule: Rule) -> None:
    found = example(rule)
    left, right = sides(found, dict(found.feeds))
    assert left != right
    assert np.array_equal(
        [left, right], [found.difference.left, found.difference.right], equal_nan=True
    )
    assert sum(x.size for x in found.feeds.values()) <= 24
    lines = found.lines()
    assert lines[-2].split(" = ")[0].replace("lhs", "rhs") == lines[-1].split(" = ")[0]


# With the shapes of which none can be smaller.
SMALLEST = [
    ("(x: f): Relu(x) => x", {"x": ()}, -1.0),
    ("(x: f): Mul(x, 2) => Mul(x, 3)", {"x": ()}, 1.0),
    # of one row and column matrices commute, and are what they are transposed
    ("(x: f[n, n], y: f[n, n]): MatMul(x, y) => MatMul(y, x)", {"x": (2, 2), "y": (2, 2)}, None),
    ("(x: f[n, n]): MatMul(x, x) => MatMul(x, Transpose(x, perm=(1, 0)))", {"x": (2, 2)}, None),
    # one element is the same from both ends
    ("(x: f[n]): Slice(x, starts=(-1,), ends=(-1000,), axes=(0,), steps=(-1,)) => x",
     {"x": (2,)}, None),
    # a sum over one row is the row
    ("(x: f[n, m], c: f[m]): ReduceSum(Add(x, c), axes=(0,), keepdims=0)"
     " => Add(ReduceSum(x, axes=(0,), keepdims=0), c)", {"x": (2, 1), "c": (1,)}, None),
    ("(x: f, y: f): Concat(x, y, axis=0) => Concat(y, x, axis=0)", {"x": (1,), "y": (1,)}, None),
]  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("text", "shapes", "value"), SMALLEST)
def test_it_is_the_smallest(text: str, shapes: dict[str, tuple[int, ...]], value: object) -> None:
    (rule,) = parse_rules(f"wrong{text}")
    found = example(rule)
    assert {name: x.shape for name, x in found.feeds.items()} == shapes
    if value is not None:
        assert [x.item() for x in found.feeds.values()] == [value]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("rule", SOME[::3], ids=lambda r: r.name)
def test_counterexamples_are_minimal(rule: Rule) -> None:
    """Where another one is needed, it is there."""
    found = example(rule)
    for name, x in found.feeds.items():
        for k in range(x.size):
            if x.dtype.kind != "f" or not x.reshape(-1)[k]:
                continue
            less = x.copy()
            less.reshape(-1)[k] = 0
            left, right = sides(found, {**found.feeds, name: less})
            assert left == right or not (np.isfinite(left) and np.isfinite(right)), (name, k)  # type: ignore


def test_small_instances_have_any_rank_and_sizes_up_to_2_and_3() -> None:
    assert {(s.rank, s.max_size) for s in SMALL_STYLES} == {
        (rank, size) for rank in (None, 0, 1, 2, 3, 4) for size in (2, 3)
    }
    assert {s.ones_share for s in SMALL_STYLES} == {0.0, 0.1, 0.5, 1.0}
    assert {s.equal_sizes for s in SMALL_STYLES} == {True, False}
    assert [s.max_size for s in SMALL_STYLES] == sorted(s.max_size for s in SMALL_STYLES)


def test_numbers_are_simple_first() -> None:
    digits = [(len(str(abs(n))), abs(n)) for n in SIMPLE_NUMBERS]
    assert digits == sorted(digits, key=lambda d: d[0])
    assert {-n for n in SIMPLE_NUMBERS if n in (1, 2, 3, 4, 0.5)} <= set(SIMPLE_NUMBERS)


@pytest.mark.parametrize(
    ("value", "kind", "limit", "simpler"),
    [
        (0.3, "f8", None, SIMPLE_NUMBERS),
        (-1.0, "f8", None, (0, 1)),
        (0.0, "f8", None, ()),
        (7, "i8", None, (0, 1, -1, 2, -2, 3, -3, 4, -4)),
        (7, "u1", None, (0, 1, 2, 3, 4)),
        (7, "i8", 2, (0, 1, -1, -2)),
        (True, "?", None, (False,)),
        (False, "?", None, ()),
    ],
)
def test_simpler_numbers(
    value: object, kind: str, limit: int | None, simpler: tuple[object, ...]
) -> None:
    assert tuple(_simpler_numbers(value, np.dtype(kind), limit)) == simpler


def test_values_are_shown_with_enough_digits_to_differ() -> None:
    assert _distinct_texts(1.0, 2.5) == ("1", "2.5")
    assert _distinct_texts(1.0, 1.00000001) == ("1.0", "1.00000001")
    assert _show_elements(np.array([[1.0, 0.5], [2.0, 3.0]])) == "[[1, 0.5], [2, 3]]"
    assert _show_elements(np.array(1.5)) == "1.5"
    most = MAX_SHOWN_ELEMENTS
    assert _show_elements(np.zeros(most)).count("0") == most
    assert _show_elements(np.zeros(most + 1)) == f"{most + 1} elements"


def test_it_is_the_same_each_time() -> None:
    for rule in SOME[:1]:
        assert example(rule).lines() == example(rule).lines()


PRINTED = """
commute(x: f[n, n], y: f[n, n]): MatMul(x, y) => MatMul(y, x)
merge(x: f, v: f[o, *r], w: f[q, *r]):
    (Conv(x, v, **a), Conv(x, w, **a))
    => Split(Conv(x, Concat(v, w, axis=0), **a), axis=1, split=(o, q)) where o == q
scale(x: f): Relu(Mul(x, lit(c))) => Mul(Relu(x), lit(c))
bits(x: f): Sub(Add(x, 1), 1) => x ; float=E0
half(x: f): Cast(Cast(x, to=f16), to=f32) => x where dtype(x) == f32 ; float=E0
index(x: f[n, m], i: i64[k]): Gather(x, i, axis=0) => Gather(x, i, axis=1) where n == m, k == n
all-bool(x: bool, y: bool): Or(x, y) => And(x, y)
"""


@pytest.mark.ci
def test_rules_check_prints_it(
    tmp_path: Path, golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.rules").write_text(PRINTED, encoding="utf-8")
    verdicts = check_rules("my.rules")
    assert {v.decision for v in verdicts} == {"refuted"}
    golden("counterexamples.txt", rules_text.rule_verdicts(verdicts))
