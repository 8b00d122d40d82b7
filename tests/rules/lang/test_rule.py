"""The text of rules: reading, printing, and what is refused."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.errors import ExitCode, UsageError
from superopt.ops import OPS
from superopt.rules.lang.printer import show
from superopt.rules.lang.rule import Rule, has_one_shape, has_one_size, parse_rules
from superopt.rules.lang.syntax import AttrParam, Param, parse_formula
from superopt.rules.lang.term import (
    App,
    Binary,
    Call,
    Compare,
    Comprehension,
    Formula,
    If,
    Lit,
    Logic,
    Name,
    Seq,
    Slice,
    Spread,
    Subscript,
    TermValue,
    Unary,
    Var,
    free_names,
    rename,
)
from superopt.rules.library.load import load_library
from superopt.te.expr.dtype import F32
from tests.support.breadth import examples


def one(text: str) -> Rule:
    (rule,) = parse_rules(text)
    return rule


MERGE = """
# two products
merge(x: f[*s, n, k], a: f[k, m], b: f[k, p], *, i: axis(x)):   # of one input
    (MatMul(x, a), MatMul(x, b))
    => Split(MatMul(x, Concat(a, b, axis=1)),
# a comment in between
             axis=-1, split=(m, p))
    where const(a), const(b) ; float=E2 ; origin=generated
"""


def test_a_rule_over_several_lines() -> None:
    rule = one(MERGE)
    assert str(rule) == (
        "merge(x: f[*s, n, k], a: f[k, m], b: f[k, p], *, i: axis(x)): "
        "(MatMul(x, a), MatMul(x, b)) => "
        "Split(MatMul(x, Concat(a, b, axis=1)), axis=-1, split=(m, p)) "
        "where const(a), const(b) ; float=E2 ; origin=generated"
    )
    assert rule.source == "<text>:3"
    assert rule.text.startswith("merge(x: f[*s, n, k]")
    assert rule.lhs[0] == App(OPS["MatMul"], (Var("x"), Var("a")))
    assert rule.params[0] == Param("x", "f", (Spread(Name("s")), Name("n"), Name("k")))
    assert rule.params[3] == AttrParam("i", Call("axis", (Name("x"),)))


# Rules as they print.
TEXTS = (
    "a(x: f): Relu(Relu(x)) => Relu(x) ; float=E0 ; origin=hand",
    "b(x: any): Transpose(Transpose(x, perm=p), perm=q) => Transpose(x, perm=compose(p, q))"
    " ; float=E0 ; origin=hand",
    "c(*xs: f): Relu(Concat(*xs, axis=k)) => Concat(*[Relu(x) for x in xs], axis=k)"
    " ; float=E0 ; origin=hand",
    "d(x: any): Concat(*Split(x, axis=k, split=s), axis=k) => x ; float=E0 ; origin=hand",
    "e(x: f): Split(Relu(x), axis=k, split=s) => [Relu(y) for y in Split(x, axis=k, split=s)]"
    " ; float=E0 ; origin=hand",
    "f(x: f, w: f[o, 1, 3, 3]): Conv(x, w, **a, group=g) => Conv(x, w, **a, group=g)"
    " where g == o or not known(g) ; float=E0 ; origin=hand",
    "g(x: f32[n, 4], c: f32[]): Mul(x, c) =>"
    " Add(Mul(x, lit(value(c) / 2)), Mul(x, lit(value(c) / 2)))"
    " where const(c), value(c) != -0.5 ; float=E2 ; origin=hand",
    "h(x: num): Sub(x, x) => zeros(shape(x)) ; float=E3 ; origin=hand",
    "i(x: f[n, k]): MatMul(x, eye(k)) => x ; float=E1 ; origin=hand",
    "j(x: f): Split(Relu(x), axis=0, split=(1, 2))[1] => x"
    " where 1 < rank(x) <= 4 ; float=E3 ; origin=hand",
    "k(x: f): Add(MatMul(x, x), 1) => Add(1, MatMul(x, x)) where single_use(MatMul(x, x)),"
    " size(MatMul(x, x), -1) == 4 ; float=E0 ; origin=hand",
    'l(x: f): Gelu(x, approximate="tanh") => Gelu(x)'
    " where shape(x)[:-1] == (), shape(x)[0] % 2 == 0"
    " ; float=E1 ; origin=hand",
    "m(x: f, *xs: f, k: axis(x)): Sum(x, *xs) => Sum(*xs, x) where len(xs) > 2"
    " ; float=E1 ; origin=hand",
    "n(x: any, *, k): Cast(x, to=f32) => x where dtype(x) == f32, k == rank(x)"
    " ; float=E0 ; origin=hand",
    "o(x: f): Clip(x, None, inf) => Clip(x, -inf) ; float=E1 ; origin=hand",
    "p(*xs: any): Split(Concat(*xs, axis=k), axis=k, split=p) => (*xs,)"
    " where p == tuple(size(x, k) for x in xs if rank(x) > 0) ; float=E0 ; origin=hand",
)


@pytest.mark.parametrize("text", TEXTS, ids=lambda t: t[0])
def test_what_is_printed_is_what_was_read(text: str) -> None:
    rule = one(text)
    assert str(rule) == text
    assert one(str(rule)) == rule


def test_the_library_prints_and_parses() -> None:
    for rule in load_library():
        assert one(str(rule)) == rule


def test_both_directions_are_two_rules() -> None:
    there, back = parse_rules("t(x: f): Neg(Abs(x)) <=> Abs(x) where rank(x) > 0 ; float=E1")
    assert (there.name, back.name) == ("t", "t~")
    assert there.lhs == back.rhs
    assert there.rhs == back.lhs
    assert there.where == back.where
    assert one(str(back)) == back


def test_clauses_have_defaults_and_text_is_no_part_of_a_rule() -> None:
    rule = one("a(x): Relu(x) => x")
    assert (rule.float_class, rule.origin, rule.caveat) == ("E1", "hand", "")
    said = one("a(x): Relu(x) => x ; caveat=zero is lost, and more")
    assert said.caveat == "zero is lost, and more"
    assert one(str(said)) == said
    assert rule.params == (Param("x", "any"),)
    other = one("# more\n\na( x ):   Relu( x )  =>  x ; float=E1")
    assert rule == other
    assert hash(rule) == hash(other)
    assert rule.text != other.text
    assert rule != one("a(x: f): Relu(x) => x")


def test_marks_inside_strings_and_brackets_are_none() -> None:
    rule = one('a(x: f): Gelu(x, approximate="=> where ; # (") => x')
    assert rule.lhs[0] == App(OPS["Gelu"], (Var("x"),), (("approximate", Lit("=> where ; # (")),))


REFUSED = [
    ("Relu(x) => x", "is not followed by `:`"),
    ("=> x", "a rule starts with its name"),
    ("a(x): Relu(x)", "expected left => right"),
    ("a(x): Relu(x) => x => x", "clauses are"),
    ("a(x): Relu(x) => x where rank(x) > 0 where rank(x) > 1", "expected left => right"),
    ("a(x): Relu(x) => x ; float=E9", "the classes are E0, E1, E2, E3"),
    ("a(x): Relu(x) => x ; speed=9", "clauses are"),
    ("a(x): Relu(x) => x ; caveat", "clauses are"),
    ("a(x): Relu(x) => x => float=E1", "clauses are"),
    ("a(x: h): Relu(x) => x", "h is not a tensor kind"),
    ("a(x: f[*s, *t]): Relu(x) => x", "at most one *name"),
    ("a(x=1): Relu(x) => x", "only names with kinds"),
    ("a(f32): Relu(f32) => f32", "f32 is the name of an element type"),
    ("a(x, x): Add(x, x) => x", "a parameter is declared twice"),
    ("a(x): Relu(y) => x", "y is not among the parameters"),
    ("a(x, y): Relu(x) => x", "y is not on the left side"),
    ("a(x): Relu(x) => y", "y is not among the parameters"),
    ("a(x): x => Relu(x)", "the left side x is not an operator"),
    ("a(x): 1 => Relu(x)", "the left side 1 is not an operator"),
    ("a(x): Rleu(x) => x", "there is no operator Rleu"),
    ("a(x): TopK(x, x) => x", "TopK"),
    ("a(x): Relu(x, x) => x", "Relu takes 1 to 1 operands, not 2"),
    ("a(x): Add(x) => x", "Add takes 2 to 2 operands, not 1"),
    ("a(*xs): Add(*xs) => 1", "Add takes no run"),
    ("a(*xs, y: f): Sum(y, *xs) => y", "y stands after *, so it is an attribute"),
    ("a(*xs): Sum(xs) => 1", "xs is a run of operands: *xs"),
    ("a(x): Relu(x, slope=1) => x", "Relu has no attribute slope"),
    ("a(x): Concat(x, x) => x", "Concat needs the attribute axis"),
    ("a(x): Concat(x, axis=k, **b, **c) => x", "one name may follow **"),
    ("a(x): Relu(x) => Transpose(x, perm=p)", "p has no value"),
    ("a(x): Transpose(x, perm=inverse(p)) => x", "p has no value"),
    ("a(x): Relu(x) => x where n > 1", "n has no value"),
    (
        "a(x): Reshape(Relu(x), shape=shape(Transpose(x, perm=p))) => Transpose(x, perm=p)",
        "p has no",
    ),
    ("a(x): Relu(x) => x where m == n", "has no value"),
    ("a(x): Relu(x) => x where single_use(Abs(x))", "Abs(x) is not part of the left side"),
    ("a(x): Relu(x) => x where foo(x)", "there is no function or operator foo"),
    ("a(x): Relu(x) => x where rank()", "rank takes 1 arguments, not 0"),
    ("a(x): Relu(x) => x where rank(x, 1)", "rank takes 1 arguments, not 2"),
    ("a(x): Relu(x) => x where ", "no conditions after where"),
    ("a(x): Relu(x) => Relu(x", "is not an expression"),
    ("a(x): (Relu(x), Abs(x), Neg(x)) => (x, x)", "3 results become 2"),
    ("a(xs): Concat(*[Relu(x) for x in xs], axis=0) => 1", "cannot be matched on a left side"),
    ("a(x): Relu(x) => x\na(x): Abs(x) => x", "a is already a rule at <text>:1"),
    ("a(x): Conv(x, zeros(1, 2, 3)) => x", "zeros takes 1 or 2 arguments"),
    ("a(x): Add(x, eye(2, 3)) => x", "eye: 3 is not an element type"),
    ("a(x): Add(x, table(())) => x", "a row is empty"),
    (
        "a(x): Add(x, table(((1, 2), (3,)))) => x",
        "the rows of ((1, 2), (3,)) differ in length",
    ),
    ('a(x): Add(x, table((("a",),))) => x', "'a' is not a number"),
    ("a(x, w: f[o, w]): Conv(x, w) => Conv(x, Neg(w))", "w is both an operand and a size"),
]


@pytest.mark.parametrize(("text", "complaint"), REFUSED, ids=[c for _, c in REFUSED])
def test_what_is_refused_names_the_place(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rules("# first\n\n" + text.replace("\n", "\n\n"), "mine.rules")
    line = 5 if "\n" in text else 3
    assert caught.value.what.startswith(f"mine.rules:{line}: ")
    assert complaint.replace("<text>:1", "mine.rules:3") in caught.value.what
    assert caught.value.code == ExitCode.USAGE
    assert len(str(caught.value).splitlines()) == 3


ESCAPES = [
    "__import__('os')",
    "x.__class__",
    "(lambda: 1)()",
    "[c for c in ().__class__.__bases__]",
    "f'{x}'",
    "open('/etc/passwd')",
    "(y := 1)",
    "{1: 2}",
    "{1}",
    "await x",
    "x if x else yield_",
    "rank(x, key=1)",
    "rank(*x, **x)",
    "b'bytes'",
    "1j",
    "~x",
    "x @ x",
    "x is x",
    "[a for a in x for b in x]",
    "[a async for a in x]",
]


@pytest.mark.parametrize("text", ESCAPES)
def test_nothing_but_the_language_is_let_through(text: str) -> None:
    with pytest.raises(UsageError):
        parse_rules(f"a(x): Relu(x) => x where {text}")


# --- formulas -------------------------------------------------------------------------------------

leaves = (
    st.sampled_from(["x", "n", "s", "k"]).map(Name)
    | (st.integers() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=4)).map(Lit)
    | st.sampled_from([Lit(None), Lit(F32), TermValue(App(OPS["Relu"], (Var("x"),)))])
)


def larger(f: st.SearchStrategy[Formula]) -> st.SearchStrategy[Formula]:
    few = st.lists(f, min_size=2, max_size=3).map(tuple)
    return st.one_of(
        st.lists(f | f.map(Spread), max_size=3).map(lambda i: Seq(tuple(i))),
        st.builds(Binary, st.sampled_from(["+", "-", "*", "/", "//", "%", "**"]), f, f),
        st.builds(
            Compare,
            f,
            st.lists(
                st.tuples(st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in", "not in"]), f),
                min_size=1,
                max_size=2,
            ).map(tuple),
        ),
        st.builds(Logic, st.sampled_from(["and", "or"]), few),
        f.map(lambda g: Unary("not", g)),
        f.filter(lambda g: not _is_number(g)).map(lambda g: Unary("-", g)),
        st.builds(Subscript, f, f).filter(lambda s: not _is_result(s)),
        st.builds(Slice, f, st.none() | f, st.none() | f, st.none() | f),
        st.builds(If, f, f, f),
        f.map(lambda g: Call("rank", (g,))),
        st.builds(lambda a, b: Call("max", (a, b)), f, f),
        st.builds(Comprehension, f, st.sampled_from([("i",), ("i", "j")]), f, st.none() | f),
    )


def _is_result(f: Subscript) -> bool:
    """What reads as a result of an operator, `Split(x)[0]`, not as an element of its value."""
    return isinstance(f.value, TermValue) and isinstance(f.index, Lit)


def _is_number(f: Formula) -> bool:
    return isinstance(f, Lit) and type(f.value) in (int, float)


@examples(150)
@given(st.recursive(leaves, larger, max_leaves=12))
def test_formulas_print_and_parse(f: Formula) -> None:
    text = show(f)
    again = parse_formula(ast.parse(text, mode="eval").body, OPS)
    assert repr(again) == repr(f)  # 1, 1.0 and True are equal in Python


def test_free_names_and_renaming() -> None:
    rule = one("a(xs: f, y: f): Sum(y, *xs) => Sum(*[Mul(x, y) for x in xs])")
    assert free_names(rule.rhs[0]) == {"xs", "y"}
    to = {"y": "z", "xs": "ys"}
    assert show(rename(rule.rhs[0], to)) == "Sum(*[Mul(x, z) for x in ys])"


@pytest.mark.parametrize(
    ("params", "one_shape", "one_size"),
    [
        ("x: f[2, 3], y: f[]", True, False),
        ("x: f[n, 3], y: f[n]", False, True),
        ("x: f[n, 3], y: f[3]", False, True),
        ("x: f[n, m], y: f[n]", False, False),
        ("x: f[n, 3], y: f[2 * n]", False, False),
        ("x: f[n], y: f", False, False),
        ("y: f[n], *x: f[n]", False, False),
        ("x: f[*s], y: f", False, False),
    ],
)
def test_rules_of_one_shape_or_one_size(params: str, one_shape: bool, one_size: bool) -> None:
    left = "Sum(y, *x)" if "*x" in params else "Add(x, y)"
    (rule,) = parse_rules(f"r({params}): {left} => y")
    assert (has_one_shape(rule), has_one_size(rule)) == (one_shape, one_size)


def test_readings_of_one_law_have_different_hashes() -> None:
    """They share their name, and caches hold many of them."""
    one, other = (parse_rules(f"r(x: f): {s}(Neg(x)) => x")[0] for s in ("Neg", "Abs"))
    (again,) = parse_rules("r(x: f): Neg(Neg(x)) => x")
    assert hash(one) != hash(other)
    assert hash(one) == hash(again)
    assert hash(one.lhs[0]) == hash(again.lhs[0])
    assert "_hash" not in repr(one) + repr(one.lhs[0])
