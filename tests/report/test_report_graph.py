"""The graph before and after: which nodes a step touched, the drawing, and the page."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import superopt
from superopt.ir import graph as ir_graph
from superopt.ir.constant_folding import fold_constants
from superopt.loading.value_names import ValueNames
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.optimization import candidate
from superopt.optimization.candidate import Candidate
from superopt.optimization.report.graph_change import Trace, describe_graph_change, trace_steps
from superopt.report.data.graph_change import GraphChange, GraphNode, StepNodes
from superopt.report.html.report_page import report_page
from superopt.report.svg import model_svg
from superopt.report.svg.model_svg import draw_graph_change
from superopt.rules.lang.rule import parse_rules
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.matcher import matches
from superopt.rules.match.rewrite import Refusal, rewrite
from superopt.search.move import Step
from tests.support.report.page import Page
from tests.support.report.sample_report import ALL, FASTER, GRAPH

STYLES = Path(superopt.__file__).parent / "report"


RULES = parse_rules("""
merge(x: f[*s, n, k], a: f[k, m], b: f[k, p]):
    (MatMul(x, a), MatMul(x, b))
    => Split(MatMul(x, Concat(a, b, axis=-1)), axis=-1, split=(m, p)) ; float=E1

negate(x: f, y: f): Sub(x, y) => Add(x, Neg(y)) ; float=E0
""")


@dataclass(frozen=True)
class Written:
    """A rewritten model: the trace of its steps, and both graphs."""

    steps: tuple[Step, ...]
    trace: Trace
    change: GraphChange


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A model with two products of x, which are merged, a difference, which is replaced, and 60
    unchanged nodes below."""
    rng = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(rng.normal(size=(64, 64)).astype(np.float32), name)
        for name in ("v", "w")
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"], name="first"),
        helper.make_node("MatMul", ["x", "w"], ["b"], name="second"),
        helper.make_node("Sub", ["a", "b"], ["c0"], name="difference"),
    ]
    for n in range(60):
        nodes.append(helper.make_node(("Tanh", "Sin")[n % 2], [f"c{n}"], [f"c{n + 1}"]))
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (32, 64))
        for name in ("x", "c60")
    ]
    proto = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    model = import_model(read_model(helper.make_model(proto, opset_imports=opsets, ir_version=8)))
    steps: list[Step] = []
    before = model.graph
    for rule in RULES:
        context = graph_context(before)
        change = rewrite(next(iter(matches(rule, context))), context)
        assert not isinstance(change, Refusal)
        after = ir_graph.replace(before, change)
        steps.append(Step(rule.name, None, change, 0.0, before, after))
        before = after
    path = tmp_path_factory.mktemp("graph") / "two.onnx"
    folded = fold_constants(before).graph
    names = candidate.write_graph(model, folded, path)
    winner = SimpleNamespace(
        path=path,
        source=read_model(path),
        variant=SimpleNamespace(steps=tuple(steps)),
        node_names=candidate.find_node_names(before, folded, names),
    )
    trace = trace_steps(model, steps)
    found = describe_graph_change(model, cast(Candidate, winner), trace)
    assert found is not None
    return Written(tuple(steps), trace, found)


def test_each_step_has_its_nodes(written: Written) -> None:
    change = written.change
    assert (change.inputs, change.outputs) == (("x",), ("c60",))
    named = [{change.before[n].name for n in step.before} for step in change.steps]
    assert named == [{"first", "second"}, {"difference"}]
    made = [sorted(change.after[n].operator for n in step.after) for step in change.steps]
    assert made == [["MatMul", "Split"], ["Add", "Neg"]]  # the Concat of weights is folded


def test_all_other_nodes_are_in_both_graphs(written: Written) -> None:
    change = written.change
    kept = [(change.before[b].outputs, change.after[a].outputs) for b, a in change.kept]
    assert kept == [((f"c{n + 1}",), (f"c{n + 1}",)) for n in range(60)]
    touched = {n for step in change.steps for n in step.after}
    assert touched.isdisjoint(after for _, after in change.kept)


def test_values_have_the_names_of_the_model(written: Written) -> None:
    """Of a value that replaces one of the model's, and of one that only the search made."""
    names = ValueNames(written.trace.names)
    first, second = written.steps
    assert [names[v] for v in first.change] == ["a", "b"]
    assert [names[v] for v in first.change.values()] == ["a", "b"]
    assert [names[v] for v in second.change] == ["c0"]
    (total,) = second.change.values()
    assert names[total] == "c0"
    assert [names[v] for v in ir_graph.operands(total)] == ["a", "new Neg after b"]


def test_unchanged_nodes_are_one_box(written: Written) -> None:
    before, after = draw_graph_change(written.change)
    assert before.nodes == 63
    assert before.boxes < 10
    assert len(set(before.anchors[10:])) == 1
    for drawn in (before, after):
        assert drawn.svg.count("<g ") == drawn.boxes
        assert '"node stretch"' in drawn.svg
    assert "Tanh c11" in before.svg  # the nodes of a stretch are listed, and found by the search


@st.composite
def graph_changes(draw: st.DrawFn) -> GraphChange:
    """Draw a graph that is before and after, in which some nodes are touched."""
    count = draw(st.integers(1, 25))
    nodes = []
    for n in range(count):
        operands = draw(st.lists(st.integers(-1, n - 1), min_size=1, max_size=3))
        nodes.append(GraphNode("", "Op", tuple(f"v{m}" for m in operands), (f"v{n}",), ""))
    touched = draw(st.sets(st.integers(0, count - 1)))
    return GraphChange(
        ("v-1",), (f"v{count - 1}",), tuple(nodes), tuple(nodes),
        tuple((n, n) for n in range(count) if n not in touched),
        tuple(StepNodes((n,), (n,)) for n in sorted(touched)),
    )  # fmt: skip


@given(graph_changes())
def test_boxes_are_in_the_order_of_their_operands(change: GraphChange) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_svg, "MAX_WHOLE_NODES", 0)
        before, after = draw_graph_change(change)
        side = model_svg._Side("b", "", "replaced", change.before, dict(change.kept), {})
        groups = model_svg._group_nodes(side)
    place = {n: k for k, group in enumerate(groups) for n in group.members}
    assert sorted(place) == list(range(len(change.before)))
    of = {v: n for n, node in enumerate(change.before) for v in node.outputs}
    for n, node in enumerate(change.before):
        assert all(place[of[v]] <= place[n] for v in node.inputs if v in of)
    touched = [n for step in change.steps for n in step.before]
    assert all(len(groups[place[n]].members) == 1 for n in touched)
    assert before.svg.count("data-steps") == after.svg.count("data-steps") == len(touched)


def test_a_large_drawing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_svg, "MAX_BOXES", 4)
    assert [drawn.svg for drawn in draw_graph_change(GRAPH)] == ["", ""]
    said = " ".join(Page(report_page(FASTER)).text.split())
    assert "Not drawn: the steps touch so many nodes" in said


def test_steps_and_nodes_link_to_each_other() -> None:
    source = report_page(FASTER)
    links = re.findall(r'<a href="#(\w+)" data-step="(\d+)">(before|after)</a>', source)
    assert links == [
        ("b1", "1", "before"), ("a1", "1", "after"),
        ("b1", "2", "before"), ("a2", "2", "after"),
        ("b2", "3", "before"), ("a1", "3", "after"),
        ("a3", "4", "after"),
    ]  # fmt: skip
    for anchor, step, _ in links:
        steps = re.search(rf'id="{anchor}" class="node \w+" data-steps="([\d ]+)"', source)
        assert steps is not None
        assert step in steps[1].split()
        assert f'id="step-{step}"' in source
    assert '<a href="#step-1"><g id="b1" class="node replaced"' in source
    assert '<g id="a3" class="node kept" data-steps="4" data-twin="b3">' in source
    assert 'data-twin="a4"' in source
    assert 'data-twin="b4"' in source


def test_every_step_has_an_anchor_though_places_are_cut() -> None:
    count = 50
    steps = tuple(replace(FASTER.steps[0], where=(f"v{n}",)) for n in range(count))
    graph = replace(GRAPH, steps=tuple(StepNodes((1,), (1,)) for _ in range(count)))
    source = report_page(replace(FASTER, steps=steps, graph=graph))
    ids = set(re.findall(r'id="step-(\d+)"', source))
    assert ids == {str(n) for n in range(1, count + 1)}


def test_a_report_without_a_graph_has_no_drawing() -> None:
    assert 'class="view"' not in report_page(ALL["unchanged"])
    assert 'class="view"' in report_page(FASTER)


# --- colors ---------------------------------------------------------------------------------------


def _schemes() -> list[dict[str, str]]:
    text = (STYLES / "page.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", text, re.DOTALL)[:2]
    return [dict(re.findall(r"--(\w+): (#\w{6})", part)) for part in (light, dark)]


def _luminance(color: str) -> float:
    parts = [int(color[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_known_colors() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


TEXT_ON = [
    (ink, paper)
    for ink in ("ink", "quiet")
    for paper in ("page", "card", "code", "operator", "each")
]
TEXT_ON += [("after", "page"), ("after", "card"), ("costs", "page")]
SHAPE_ON = [("after", "card"), ("costs", "card"), ("before", "card"), ("quiet", "card")]
SHAPE_ON += [("mark", "operator"), ("mark", "each")]


@pytest.mark.parametrize("scheme", _schemes(), ids=("light", "dark"))
def test_colors_are_told_apart(scheme: dict[str, str]) -> None:
    low = {pair: contrast(scheme[pair[0]], scheme[pair[1]]) for pair in TEXT_ON}
    assert {pair: c for pair, c in low.items() if c < 4.5} == {}
    low = {pair: contrast(scheme[pair[0]], scheme[pair[1]]) for pair in SHAPE_ON}
    assert {pair: c for pair, c in low.items() if c < 3.0} == {}
