"""Formulas of sizes as text: they have the values of the expressions, and survive JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.plan.program.formula_text import formula_text
from superopt.plan.program.size_formulas import SizeFormulas, compile_formulas
from superopt.te.expr import index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Axis, Expr, Size
from superopt.te.expr.symbolic_int import extent, symbolic_sizes

NAMES = ("batch", "past + 1", "s0")
SIZES = st.fixed_dictionaries({name: st.integers(1, 60) for name in NAMES})


def _grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    fns = st.sampled_from(["add", "sub", "mul", "min", "max"])
    joined = st.builds(lambda fn, a, b: index.apply(fn, (a, b), INDEX), fns, inner, inner)
    divided = st.builds(
        lambda fn, a, b: index.apply(fn, (a, index.as_index(b)), INDEX),
        st.sampled_from(["floordiv", "mod"]),
        inner,
        st.one_of(st.integers(1, 70), st.sampled_from([Size(name) for name in NAMES])),
    )
    return st.one_of(joined, divided)


EXPRESSIONS = st.recursive(
    st.one_of(
        st.sampled_from([Size(name) for name in NAMES]), st.integers(-9, 70).map(index.as_index)
    ),
    _grow,
    max_leaves=8,
)


@given(st.lists(EXPRESSIONS, max_size=4), SIZES)
def test_formulas_have_the_values_of_expressions(es: list[Expr], sizes: dict[str, int]) -> None:
    of = compile_formulas([formula_text(e, NAMES) for e in es], len(NAMES))
    assert of(*(sizes[name] for name in NAMES)) == tuple(index.evaluate(e, sizes) for e in es)


@given(EXPRESSIONS, EXPRESSIONS, SIZES, st.lists(SIZES, min_size=3, max_size=3))
def test_guards_admit_the_sizes_with_the_same_decisions(
    a: Expr, b: Expr, hints: dict[str, int], others: list[dict[str, int]]
) -> None:
    with symbolic_sizes(hints) as environment:
        less, equal = extent(a) < extent(b), extent(a) == extent(b)
    guards = tuple(
        ("" if holds else "not ") + formula_text(g, NAMES)
        for g, holds in environment.guards.items()
    )
    made = SizeFormulas(NAMES, guards, (), "0", "0", ())
    assert made.admits(hints)
    for sizes in others:
        x, y = index.evaluate(a, sizes), index.evaluate(b, sizes)
        assert made.admits(sizes) == ((x < y, x == y) == (less, equal))


@given(st.lists(EXPRESSIONS, min_size=2, max_size=4), EXPRESSIONS, SIZES, SIZES)
def test_values_are_found_where_the_guards_hold(
    es: list[Expr], a: Expr, hints: dict[str, int], sizes: dict[str, int]
) -> None:
    with symbolic_sizes(hints) as environment:
        assert (extent(a) < 9) in (True, False)
    guards = tuple(
        ("" if holds else "not ") + formula_text(g, NAMES)
        for g, holds in environment.guards.items()
    )
    texts = tuple(formula_text(e, NAMES) for e in es)
    made = SizeFormulas(NAMES, guards, (*texts, "t0"), "t0", "t1", (texts,), texts[:2])
    found = made.find(sizes)
    assert (found is not None) == made.admits(sizes)
    values = tuple(index.evaluate(e, sizes) for e in es)
    if found is not None:
        assert found == made.at_sizes(sizes)
        assert found.words == (*values, values[0])
        assert (found.memory_bytes, found.workspace_bytes) == values[:2]
        assert found.output_shapes == (values,)
    assert made.find({**sizes, "other": 1}) is None
    assert made.find({NAMES[0]: 1, NAMES[1]: 2, "other": 3}) is None


FORMULAS = SizeFormulas(
    ("n", "m"),
    ("(4 <= s0)", "not (s1 == 7)"),
    ("s0", "s1", "((s0 * s1) // 8)"),
    "(s0 * 64)",
    "max(s0, 128)",
    (("s0", "3"), (), ("(s0 + s1)",)),
)


def test_values_at_sizes() -> None:
    found = FORMULAS.at_sizes({"m": 3, "n": 10})
    assert (found.memory_bytes, found.workspace_bytes) == (640, 128)
    assert found.words == (10, 3, 3)
    assert found.output_shapes == ((10, 3), (), (13,))


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ({"n": 4, "m": 3}, True),
        ({"n": 3, "m": 3}, False),
        ({"n": 4, "m": 7}, False),
        ({"n": 4}, False),
        ({"n": 4, "m": 3, "k": 1}, False),
        ({"n": 4, "m": 0}, True),  # the guards say which sizes may be 0
    ],
)
def test_sizes_are_admitted_by_all_guards_together(sizes: dict[str, int], wanted: bool) -> None:
    assert FORMULAS.admits(sizes) is wanted


def test_a_quotient_by_zero_in_a_guard_admits_nothing() -> None:
    made = SizeFormulas(("n",), ("((8 // (s0 + -2)) == 2)",), (), "0", "0", ())
    assert [made.admits({"n": n}) for n in (2, 6)] == [False, True]


def test_formulas_survive_json() -> None:
    assert SizeFormulas.from_json(json.loads(json.dumps(FORMULAS.as_json()))) == FORMULAS


def test_what_is_no_formula_of_sizes_raises() -> None:
    with pytest.raises(NotImplementedError, match="formula"):
        formula_text(Axis("i", 4), ())
