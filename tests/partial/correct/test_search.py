"""Corrected mutants are rules of the library: they are proved, searched with, and reported."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import onnx
import pytest

from scripts.fuzz_partial import subgraph, usable, wrong
from superopt.api.functions import optimize
from superopt.ir.substitute import replace_all
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.optimization.report.applied_sizes import rule_sizes_at
from superopt.optimization.report.partial_rule_page import describe_partial_equality
from superopt.partial.correct.partial_rules import load_pairs
from superopt.report.data.codec import from_json, to_json
from superopt.report.html.report_page import report_page
from superopt.report.text import partial_rule as texts
from superopt.report.text.report_text import report_summary
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.library.load import load_library
from superopt.rules.library.records import tier
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.matcher import matches
from superopt.rules.match.rewrite import Refusal, rewrite
from superopt.search.move import Step
from superopt.search.rule_set import rule_set
from tests.support.compilation.forms import weights
from tests.support.compilation.models import F, model

MADE = {r.name: r for r in load_library() if r.is_from_pair}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", MADE)
def test_every_one_is_proved_and_says_where_it_is_right(name: str) -> None:
    assert tier(MADE[name]) == "A"
    found = describe_partial_equality(MADE[name], {})
    assert found is not None
    assert 0 < found.share <= 1
    assert (found.share == 1) == (not found.wrong)
    assert bool(found.wrong) == (found.how in ("recomputed", "widened"))
    assert found.rule == name


def test_most_pairs_have_one() -> None:
    names = {p.name for p in load_pairs()}
    assert len(MADE) >= 30
    assert {r.rpartition("-")[0] for r in MADE} | MADE.keys() >= {"stacked", "dilated-as-a-batch"}
    assert all(n in names or n.rpartition("-")[0] in names for n in MADE)


def test_what_is_said(golden: Callable[[str, str], None]) -> None:
    some = [
        describe_partial_equality(MADE[n], {})
        for n in ("side-by-side-recomputed", "dilated-as-a-batch")
    ]
    golden(
        "in_parts.txt",
        "\n".join(line for p in some if p for line in texts.partial_use_lines(p)) + "\n",
    )


def siamese() -> onnx.ModelProto:
    nodes = [
        onnx.helper.make_node("Conv", ["x", "k"], ["a"], pads=[1, 1, 1, 1]),
        onnx.helper.make_node("Conv", ["y", "k"], ["b"], pads=[1, 1, 1, 1]),
        onnx.helper.make_node("Concat", ["a", "b"], ["z"], axis=3),
    ]
    shape = (F, [1, 16, 7, 7])
    return model(nodes, {"x": shape, "y": shape}, ["z"], weights(k=(16, 16, 3, 3)))


def applied(h: int | str, v: int) -> tuple[Step, Rule]:
    """The first step by which two images of two widths become one."""
    rule = MADE["side-by-side-of-two-widths-recomputed"]
    net = siamese()
    for i, w in zip(net.graph.input, (15, v), strict=True):
        i.type.tensor_type.shape.CopyFrom(
            onnx.helper.make_tensor_type_proto(F, [1, 16, h, w]).tensor_type.shape
        )
    del net.graph.output[0].type.tensor_type.shape.dim[:]
    graph = import_model(read_model(net.SerializeToString())).graph
    (m, *_) = matches(rule, graph_context(graph))
    change = rewrite(m, graph_context(graph))
    assert not isinstance(change, Refusal)
    return Step(rule.name, None, change, 0.0, graph, replace_all(graph, change)), rule


@pytest.mark.parametrize("h", [14, "H"])
def test_the_drawing_has_the_model_s_sizes(h: int | str) -> None:
    step, rule = applied(h, 9)
    sizes = rule_sizes_at(rule, step, {"H": 14})
    assert sizes == {"c": 16, "h": 14, "w": 15, "v": 9, "o": 16}
    shown = describe_partial_equality(rule, {}, lambda: sizes)
    assert shown is not None
    assert dict(shown.sizes) == sizes
    assert shown.picture == ("." * 14 + "##" + "." * 8,) * 14
    assert shown.share == 22 / 24
    assert "at c = 16, h = 14, w = 15, v = 9, o = 16" in "".join(texts.partial_use_lines(shown))


def test_elsewhere_it_is_at_small_ones() -> None:
    step, rule = applied(14, 9)
    assert rule_sizes_at(rule, replace(step, change={}), {}) == {}
    shown = describe_partial_equality(rule, {}, dict)
    assert shown == describe_partial_equality(rule, {})


@pytest.mark.parametrize("partial", [True, False])
def test_the_search_takes_them(partial: bool) -> None:
    found = optimize(siamese(), budget=10, cost="roofline", partial=partial).report
    tried = {r.rule for r in found.rejected} | {s.rule for s in found.steps}
    assert bool(tried & MADE.keys()) == partial


def test_reports() -> None:
    """The picture is in the text, the page and the document."""
    found = optimize(siamese(), budget=10, cost="roofline").report
    shown = describe_partial_equality(MADE["side-by-side-recomputed"], {})
    assert shown is not None
    report = replace(found, partial=(shown,))
    assert all(line in report_summary(report) for line in shown.picture)
    assert all(line in report_page(report) for line in shown.picture)
    assert from_json(to_json(report)) == report


@pytest.mark.ci
def test_random_subgraphs() -> None:
    rules = usable()
    partial, every = rule_set(r for r in rules if r.is_from_pair), rule_set(rules)
    rng = random.Random(7)
    said = []
    while len(said) < 12:
        graph = subgraph(rng)
        one = None if graph is None else wrong(graph, partial, every, rng, not said)
        if one is not None:
            said.append(one)
    assert said == [""] * 12


WRONG = """
side-by-side-uncorrected(x: f[1,c,h,w], y: f[1,c,h,w], k: f[o,c,3,3]):
    Concat(Conv(x, k, pads=(1,1,1,1)), Conv(y, k, pads=(1,1,1,1)), axis=3)
    => Conv(Concat(x, y, axis=3), k, pads=(1,1,1,1))
"""


def test_a_mutant_that_is_not_corrected_is_found_out() -> None:
    (bad,) = parse_rules(WRONG)
    assert isinstance(bad, Rule)
    rng, some = random.Random(0), rule_set([bad])
    said = None
    while said is None:
        graph = subgraph(rng)
        said = None if graph is None else wrong(graph, some, some, rng, run=False)
    assert "off by" in said
