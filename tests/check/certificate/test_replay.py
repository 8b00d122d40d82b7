"""The replay on small graphs: every rule of the library on an instance of itself, and applications
that are none."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, islice

import pytest

from superopt.check.certificate.replay import apply_round
from superopt.check.graph_identity import CertificateRefused
from superopt.ir import graph as ir_graph
from superopt.ir.value_numbers import number_values
from superopt.optimization.certificate_rounds import certificate_rounds
from superopt.report.data.certificate import Application
from superopt.rules.lang.rule import Rule
from superopt.rules.library.load import load_library
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.matcher import matches
from superopt.rules.match.rewrite import Refusal, rewrite
from superopt.rules.trial.instances import instances
from superopt.search.move import Step
from tests.support.rules.places import graph, lines, rule

FILES = sorted({r.source.rpartition(":")[0] for r in load_library()})


def step_of(r: Rule, given: ir_graph.Graph, number: int = 0) -> Step | None:
    """The step that one match of a rule makes."""
    ctx = graph_context(given)
    for m in islice(matches(r, ctx), number, None):
        change = rewrite(m, ctx)
        if not isinstance(change, Refusal):
            return Step(r.name, None, change, 0.0, given, ir_graph.replace(given, change))
    return None


def told(r: Rule, given: ir_graph.Graph, number: int = 0) -> Application:
    """One match of a rule as a certificate says it."""
    step = step_of(r, given, number)
    assert step is not None
    _, ((found,),) = certificate_rounds(given, [step], {r.name: r})
    return found


def after(given: ir_graph.Graph, r: Rule, *some: Application) -> str:
    """The lines of the graph after a round."""
    state = number_values(given)
    apply_round(state, some, {r.name: r})
    return lines(state.graph)


@pytest.mark.one_in(17)
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("file", FILES)
def test_every_rule_is_replayed(file: str, every: int) -> None:
    book = {r.name: r for r in load_library()}
    untried: list[str] = []
    for r in [r for r in book.values() if r.source.rpartition(":")[0] == file][::every]:
        soon = instances(r, 0, constants=True, rounds=1, max_tries=60)
        for one in islice(chain(soon, instances(r, 0, constants=True)), 6):
            step = step_of(r, ir_graph.Graph(one.inputs, one.lhs))
            if step is None:
                continue
            state, made = certificate_rounds(step.before, [step], book)
            again = number_values(step.before)
            apply_round(again, made[0], book)
            assert again.graph == state.graph == step.after, r.name
            break
        else:
            untried.append(r.name)
    assert not untried


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("r(x: f): Add(x, Relu(x)) => Relu(x)", ("x: f32[4]", "%0 = Relu(x)", "%1 = Add(%0, x)")),
        ("r(x: f): Mul(x, 2) => Add(x, x)", ("x: f32[4]", "c = const f32[1] [2.0]",
         "%0 = Mul(c, x)")),
        ("r(x: f, y: f): Concat(Relu(x), Relu(y), axis=k) => Relu(Concat(x, y, axis=k))",
         ("x: f32[4]", "%0 = Relu(x)", "%1 = Tanh(x)", "%2 = Relu(%1)",
          "%3 = Concat(%1, %0, %2, axis=0)")),
        ("r(x: f, y: f): Relu(Max(x, y)) => Max(Relu(x), Relu(y))",
         ("x: f32[4]", "%0 = Tanh(x)", "%1 = Exp(x)", "%2 = Max(x, %0, %1)", "%3 = Relu(%2)")),
        ("r(x: f): LeakyRelu(x, alpha=a) => LeakyRelu(x, alpha=a / 1)",
         ("x: f32[4]", "%0 = LeakyRelu(x, alpha=0.01)")),
        ("r(x: f[*s, n]): Relu(x) => Relu(Identity(x)) where m == n // 2, m > 1",
         ("x: f32[2, batch, 8]", "%0 = Relu(x)")),
    ],
)  # fmt: skip
def test_what_the_matcher_finds_is_replayed(text: str, body: tuple[str, ...]) -> None:
    r = rule(text)
    last = body[-1].partition(" ")[0]
    given = graph(*body, last)
    found = [step_of(r, given, k) for k in range(sum(1 for _ in matches(r, graph_context(given))))]
    assert found
    for step in found:
        assert step is not None
        state, _ = certificate_rounds(given, [step], {r.name: r})
        assert state.graph == step.after


GROW = rule(
    "grow(x: f[n]): Softmax(x, axis=k) => Relu(Softmax(x, axis=k)) where n > 2, rank(x) == 1"
)
VECTOR = graph("x: f32[3]", "%0 = Softmax(x, axis=0)", "%0")


def test_a_condition_that_does_not_hold() -> None:
    good = told(GROW, VECTOR)
    short = graph("x: f32[2]", "%0 = Softmax(x, axis=0)", "%0")
    bound = tuple((n, *(t.replace("[3]", "[2]") if "[" in t else t.replace("3", "2") for t in some))
                  for n, *some in good.bound)  # fmt: skip
    where = ("2 > 2", "rank(x) == 1")
    with pytest.raises(CertificateRefused, match="its condition 2 > 2 does not hold"):
        after(short, GROW, replace(good, bound=bound, where=where))
    lied = tuple((n, *(["4"] if n == "n" else some)) for n, *some in good.bound)
    with pytest.raises(CertificateRefused, match="x: f"):
        after(VECTOR, GROW, replace(good, bound=lied))


def test_an_attribute_is_bound_as_the_graph_has_it() -> None:
    """axis -1 is axis 0 here, but what a rule computes of -1 would be something else."""
    good = told(GROW, VECTOR)
    bound = tuple((n, *(["-1"] if n == "k" else some)) for n, *some in good.bound)
    with pytest.raises(CertificateRefused, match="k is 0 there, not -1"):
        after(VECTOR, GROW, replace(good, bound=bound))


def test_a_number_is_bound_as_the_graph_has_it() -> None:
    r = rule("r(x: f): Mul(x, lit(c)) => Mul(x, lit(c / 1))")
    given = graph("x: f32[3]", "c = const f32[] 0.1", "%0 = Mul(x, c)", "%0")
    good = told(r, given)
    after(given, r, good)
    bound = tuple((n, *(["0.1"] if n == "c" else some)) for n, *some in good.bound)
    assert bound != good.bound
    with pytest.raises(CertificateRefused, match=r"c is 0\.1000000"):
        after(given, r, replace(good, bound=bound))
    with pytest.raises(CertificateRefused, match="no constant is given"):
        after(given, r, replace(good, constants=()))


def test_only_parts_of_nary_operators_are_values() -> None:
    r = rule("r(x: f, w: f): Conv(x, w, **a) => Conv(x, w, **a)")
    given = graph("x: f32[1, 2, 8]", "w: f32[3, 2, 1]", "b: f32[3]", "%0 = Conv(x, w, b)",
                  "%1 = Conv(x, w)", "%0, %1")  # fmt: skip
    good = told(r, given)
    assert good.at == ("v4",)
    with pytest.raises(CertificateRefused, match="does not have these operands"):
        after(given, r, replace(good, at=("v3[0:2]",)))


PAIR = rule(
    "pair(x: f[n], y: f[n]): (Relu(x), Relu(y))"
    " => Split(Relu(Concat(x, y, axis=0)), axis=0, split=(n, n))"
)


def test_an_operand_that_needs_a_result_is_refused() -> None:
    chain = graph("x: f32[2]", "%0 = Relu(x)", "%1 = Neg(%0)", "%2 = Relu(%1)", "%2")
    # x v0, %0 v1, %1 v2, %2 v3
    a = Application("pair", ("v1", "v3"),
                    (("x", "v0: f32[2]"), ("y", "v2: f32[2]"), ("n", "2")), (), ())  # fmt: skip
    with pytest.raises(CertificateRefused, match="a cycle"):
        after(chain, PAIR, a)


def test_applications_that_need_each_other_are_refused() -> None:
    crossed = graph(
        "x: f32[2]", "y: f32[2]", "%0 = Relu(x)", "%1 = Relu(y)", "%2 = Neg(%1)", "%3 = Neg(%0)",
        "%4 = Relu(%2)", "%5 = Relu(%3)", "%4, %5",
    )  # fmt: skip
    state = number_values(crossed)
    relus = [n for n in ir_graph.nodes(crossed) if n.op.name == "Relu"]
    inner = [n for n in relus if isinstance(n.inputs[0], ir_graph.Input)]
    outer = [n for n in relus if n not in inner]
    made = []
    for one in inner:  # with what is computed of the other
        (far,) = [n for n in outer if not ir_graph.depends_on([n], [one])]
        bound = [
            (name, f"{state.name(n.inputs[0])}: f32[2]")  # type: ignore[arg-type]
            for name, n in (("x", one), ("y", far))
        ]
        at = (state.name(one), state.name(far))
        made.append(Application("pair", at, (*bound, ("n", "2")), (), ()))
    for alone in made:
        apply_round(number_values(crossed), [alone], {"pair": PAIR})
    with pytest.raises(CertificateRefused, match="depend on each other"):
        apply_round(number_values(crossed), made, {"pair": PAIR})


def test_two_applications_at_one_place_are_refused() -> None:
    a = told(GROW, VECTOR)
    with pytest.raises(CertificateRefused, match="another application replaces the same value"):
        after(VECTOR, GROW, a, a)


def test_single_use() -> None:
    r = rule("r(x: f): Relu(Neg(x)) => Relu(Identity(Neg(x))) where single_use(Neg(x))")
    once = graph("x: f32[2]", "%0 = Neg(x)", "%1 = Relu(%0)", "%1")
    good = told(r, once)
    twice = graph("x: f32[2]", "%0 = Neg(x)", "%1 = Relu(%0)", "%1, %0")
    with pytest.raises(CertificateRefused, match="single_use"):
        after(twice, r, good)
