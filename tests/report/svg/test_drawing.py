"""Drawings of rules in text and SVG: some in full, those of the whole library by what must hold."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.api import functions
from superopt.cli import terminal
from superopt.errors import ExitCode
from superopt.optimization.report.rule_diagram import rule_diagram
from superopt.report.data.diagram import Box, Diagram, Link, RuleDiagram
from superopt.report.formatting.rule_facts import rule_facts
from superopt.report.formatting.wrap import display_width, wrap_items, wrap_text
from superopt.report.svg import rule_svg
from superopt.report.svg.drawing import Drawing, lay_out_diagram
from superopt.report.text import rule_tree
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.lang.term import AllResults, App, MapTerms, Pick, Term
from superopt.rules.library.load import load_library
from tests.support.report.sample_rules import DIAGRAM

Run = Callable[..., SimpleNamespace]
LIBRARY: dict[str, list[Rule]] = {}
for rule in load_library():
    LIBRARY.setdefault(rule.source.partition(":")[0], []).append(rule)

SAMPLES = """
one-root(x: f[*s, n], c: f[]): Mul(Relu(x), c) <=> Relu(Mul(x, c)) where value(c) >= 0 ; float=E0

several-roots(x: f[*s, n, k], a: f[*t, k, m], b: f[*t, k, p]):
    (MatMul(x, a), MatMul(x, b))
    => Split(MatMul(x, Concat(a, b, axis=-1)), axis=-1, split=(m, p))
    where const(a), const(b) ; origin=generated

picks(x: any):
    (Split(x, axis=k, split=p)[0], *Split(Split(x, axis=k, split=p)[1], axis=k, split=q))
    => Split(x, axis=k, split=p[:1] + q) where len(p) == 2 ; float=E0

constants(x: f[n, k], v: f[k], *, e: likely(0.1, 2.0)):
    Div(x, Sqrt(Add(Mul(v, 2), lit(e))))
    => Mul(Add(x, zeros((n, k))), Div(1, Sqrt(Add(Mul(v, 2), lit(e)))))
    where const(v), e > 0, rank(x) == 2, n != k or k == 1 ; float=E2
    ; caveat=the sum with zeros is there to be drawn

run(*xs: f): Relu(Concat(*xs, axis=k)) => Concat(*[Relu(x) for x in xs], axis=k) ; float=E0

each(x: any): (*Split(x, axis=k, split=p),)
    => [Slice(x, starts=(sum(p[:i]),), ends=(sum(p[:i + 1]),), axes=(k,)) for i in range(len(p))]
    ; float=E0
"""
SAMPLE = {r.name: rule_diagram(r, "C") for r in parse_rules(SAMPLES, "sample.rules")}


@pytest.mark.parametrize("name", [n for n in SAMPLE if not n.endswith("~")])
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    wide, narrow = (
        rule_tree.rule_tree_page(SAMPLE[name], 100),
        rule_tree.rule_tree_page(SAMPLE[name], 44),
    )
    golden(f"drawing-{name}.txt", f"{wide}{'-' * 44}\n{narrow}")


def test_the_other_direction_is_drawn_the_other_way() -> None:
    there, back = SAMPLE["one-root"], SAMPLE["one-root~"]
    assert (there.left.boxes[-2].label, there.right.boxes[-2].label) == ("Mul", "Relu")
    assert (back.left, back.right) == (there.right, there.left)


def test_links_name_the_result_they_take() -> None:
    left, right = SAMPLE["picks"].left, SAMPLE["picks"].right
    assert [b.label for b in left.boxes] == ["x", "Split", "Split", "result", "results"]
    assert [b.inputs for b in left.boxes[2:]] == [
        (Link(1, "[1]"),),
        (Link(1, "[0]"),),
        (Link(2, "all"),),
    ]
    assert right.boxes[-1] == Box("result", "results", (), (Link(1, "all"),))
    results = SAMPLE["several-roots"].right.boxes[-2:]
    assert [b.inputs[0].which for b in results] == ["[0]", "[1]"]
    (xs, x, relu, each, concat, _) = SAMPLE["run"].right.boxes
    assert (xs.label, x.inputs, relu.inputs) == ("*xs", (Link(0),), (Link(1),))
    assert (each.details, concat.inputs) == (("for x in xs",), (Link(3),))


def test_ascii() -> None:
    text = rule_tree.rule_tree_page(SAMPLE["several-roots"], 100, ascii_only=True)
    assert text.isascii()
    assert "|- x" in text
    assert "`- MatMul" in text


# --- the whole library ----------------------------------------------------------------------------


def operators(side: tuple[Term, ...]) -> Counter[str]:
    """How often each operator is there when equal terms are one; not those in formulas."""

    def applications(t: object) -> Iterator[App]:
        match t:
            case App(_, operands):
                yield t
                for operand in operands:
                    yield from applications(operand)
            case Pick(inner) | AllResults(inner):
                yield from applications(inner)
            case MapTerms(body, _, over):
                yield from (*applications(body), *applications(over))

    return Counter(app.op.name for app in {a for t in side for a in applications(t)})


# "above)" may be on a line of its own
NODE = re.compile(r"(?:[├└]─ |=>  |^  )(?:\S+ of )?([A-Z]\w*)( #\d+ \(see)?", re.MULTILINE)


@pytest.mark.one_in(17)
@pytest.mark.parametrize("file", LIBRARY)
def test_every_rule_in_text(file: str) -> None:
    for rule in LIBRARY[file]:
        drawn = rule_diagram(rule, "C")
        wanted = operators(rule.lhs) + operators(rule.rhs)
        for width in (60, 100, 160):
            text = rule_tree.rule_tree_page(drawn, width)
            assert width < 100 or max(map(display_width, text.splitlines())) <= width, rule.name
            said = " ".join(text.split())
            parts = (rule.name, *drawn.conditions, *drawn.trial, rule.caveat, rule.source)
            assert all(part in said for part in parts), rule.name
            head, parameters, sides, _ = text.split("\n\n")
            assert head == rule.name
            rows = [line.split("  ", 3)[1] for line in parameters.splitlines()]
            assert rows == [p.name for p in drawn.parameters]
            assert all(p.kind in parameters for p in drawn.parameters)
            assert all(re.search(rf"(?<!\w){re.escape(n)}(?!\w)", sides) for n in rows), rule.name
            shown = Counter(name for name, again in NODE.findall(sides) if not again)
            del shown["None"]  # an operand that is not given
            assert shown == wanted, rule.name


@pytest.mark.one_in(8)
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("file", LIBRARY)
def test_every_rule_in_svg(file: str, every: int) -> None:
    for rule in LIBRARY[file][::every]:
        drawn = rule_diagram(rule, "C")
        check_page(rule_svg.rule_page(drawn), drawn)
        for side, given_, side_terms in (
            ("left", drawn.left, rule.lhs),
            ("right", drawn.right, rule.rhs),
        ):
            check_layout(lay_out_diagram(given_), given_)
            labels = Counter(b.label for b in given_.boxes if b.kind == "operator")
            assert labels == operators(side_terms), (rule.name, side)


NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
NS = "{http://www.w3.org/2000/svg}"


def check_page(text: str, rule: RuleDiagram) -> None:
    """Well-formed, self-contained, complete, and inside its own bounds."""
    root = ElementTree.fromstring(text)
    width, height = (float(v) for v in root.attrib["viewBox"].split()[2:])
    tags = {e.tag.removeprefix(NS) for e in root.iter()}
    assert tags <= {"svg", "title", "desc", "style", "g", "rect", "path", "text"}
    assert not {a for e in root.iter() for a in e.attrib if a.startswith("on") or "href" in a}
    style = root.findtext(f"{NS}style") or ""
    assert "prefers-color-scheme: dark" in style
    assert "url(" not in style
    assert "@import" not in style
    for e in root.iter():
        a = e.attrib
        match e.tag.removeprefix(NS):
            case "rect":
                right = float(a.get("x", "0")) + float(a["width"])
                bottom = float(a.get("y", "0")) + float(a["height"])
                assert 0 <= float(a.get("x", "0")) <= right <= width
                assert 0 <= float(a.get("y", "0")) <= bottom <= height
            case "text":
                letters = display_width(e.text or "") * 0.602 * (17 if a["class"] == "name" else 13)
                middle = a["class"] in ("label", "detail", "port")
                start = float(a["x"]) - (letters / 2 if middle else 0)
                assert start >= 0, e.text
                # A word that is longer than a line is not broken.
                assert start + letters <= width or " " not in (e.text or ""), (rule.name, e.text)
                assert 13 <= float(a["y"]) <= height - 4
    for label, side in (("left", rule.left), ("right", rule.right)):
        (panel,) = (g for g in root.iter(f"{NS}g") if g.attrib["id"] == label)
        frame = next(panel.iter(f"{NS}rect")).attrib
        x, y, w, h = (float(frame[k]) for k in ("x", "y", "width", "height"))
        for path in panel.iter(f"{NS}path"):
            for command, numbers in re.findall(r"([A-Z])([^A-Z]*)", path.attrib["d"]):
                found = [float(n) for n in NUMBER.findall(numbers)]
                if command == "V":
                    assert y <= found[0] <= y + h
                else:
                    assert all(x <= v <= x + w for v in found[::2]), rule.name
                    assert all(y <= v <= y + h for v in found[1::2]), rule.name
        said = [t.text or "" for t in panel.iter(f"{NS}text")]
        assert len(list(panel.iter(f"{NS}rect"))) == len(side.boxes) + 1
        assert len(list(panel.iter(f"{NS}path"))) == sum(len(b.inputs) for b in side.boxes)
        joined = " ".join(said)
        for box in side.boxes:
            assert all(part in joined for part in (box.label, *box.details)), rule.name
    all_of = " ".join(t.text or "" for t in root.iter(f"{NS}text"))
    parts = (*(p.name for p in rule.parameters), *rule.conditions, *rule.trial, rule.caveat)
    assert all(part in all_of for part in parts), rule.name


def check_layout(placed: Drawing, given_: Diagram) -> None:
    """Boxes apart, users below what they use, and no line through a box."""
    assert [p.box for p in placed.boxes] == list(given_.boxes)
    for p in placed.boxes:
        assert -0.01 <= p.x <= p.x + p.width <= placed.width + 0.01
        assert -0.01 <= p.y <= p.y + p.height <= placed.height + 0.01
        assert p.width >= max(map(display_width, p.lines)) * 0.602 * 13 + 8
    for a, b in combinations(placed.boxes, 2):
        beside = a.x + a.width + 5 <= b.x or b.x + b.width + 5 <= a.x
        assert beside or a.y + a.height + 5 <= b.y or b.y + b.height + 5 <= a.y
    wanted = [(k.source, n) for n, b in enumerate(given_.boxes) for k in b.inputs]
    assert [(line.source, line.target) for line in placed.lines] == wanted
    for line in placed.lines:
        above, below = placed.boxes[line.source], placed.boxes[line.target]
        (x, y), (end_x, end_y) = line.points[0], line.points[-1]
        assert above.x < x < above.x + above.width
        assert below.x < end_x < below.x + below.width
        assert y == pytest.approx(above.y + above.height)
        assert end_y == pytest.approx(below.y)
        for (ax, ay), (bx, by) in pairwise(line.points):
            assert ay <= by + 0.01
            for p in placed.boxes:
                left_or_right = max(ax, bx) <= p.x or min(ax, bx) >= p.x + p.width
                over_or_under = by <= p.y + 0.01 or ay >= p.y + p.height - 0.01
                assert left_or_right or over_or_under


@st.composite
def graphs(draw: st.DrawFn) -> Diagram:
    """Any graph of a few boxes, those that nothing uses made results."""
    boxes: list[Box] = []
    words = st.text("aAbB _漢", min_size=1, max_size=30)
    for n in range(draw(st.integers(1, 12))):
        which = st.sampled_from(["", "[0]", "[1]", "all"])
        links = st.builds(Link, st.integers(0, max(n - 1, 0)), which)
        inputs = tuple(draw(st.lists(links, max_size=4))) if n else ()
        kind = (
            draw(st.sampled_from(["operator", "each"]))
            if inputs
            else draw(st.sampled_from(["parameter", "constant", "operator"]))
        )
        details = tuple(draw(st.lists(words, max_size=3)))
        boxes.append(Box(kind, draw(words), details, inputs))  # type: ignore[arg-type]
    used = {k.source for b in boxes for k in b.inputs}
    free = [n for n in range(len(boxes)) if n not in used]
    return Diagram((*boxes, *(Box("result", f"result {n}", (), (Link(n),)) for n in free)))


@given(graphs())
def test_any_graph_is_laid_out(given_: Diagram) -> None:
    check_layout(lay_out_diagram(given_), given_)


ROTARY = """rotary(x: f[b, n, d], c: f[n, m], s: f[n, m]):
    Add(Mul(x, Unsqueeze(Concat(c, c, axis=1), axes=(0,))),
        Mul(Concat(Neg(Slice(x, starts=(m,), ends=(d,), axes=(2,))),
                   Slice(x, starts=(0,), ends=(m,), axes=(2,)), axis=2),
            Unsqueeze(Concat(s, s, axis=1), axes=(0,))))
    => x"""


def test_lines_do_not_cross_where_they_need_not() -> None:
    (rule,) = parse_rules(ROTARY)
    lines = lay_out_diagram(rule_diagram(rule, "C").left).lines
    steps = {step for line in lines for step in pairwise(line.points)}
    crossing = [
        (a, b)
        for a, b in combinations(steps, 2)
        if (a[0][1], a[1][1]) == (b[0][1], b[1][1])
        and (a[0][0] - b[0][0]) * (a[1][0] - b[1][0]) < 0
    ]
    assert len(crossing) == 1  # four with operands in the order in which they are written


def test_results_keep_their_order() -> None:
    a, b = Box("parameter", "a"), Box("parameter", "b")
    uses = (("F", (Link(0), Link(1))), ("G", (Link(1),)), ("H", (Link(0),)))
    operators = [Box("operator", name, (), inputs) for name, inputs in uses]
    results = [Box("result", f"result {n}", (), (Link(n + 2),)) for n in range(3)]
    placed = lay_out_diagram(Diagram((a, b, *operators, *results))).boxes
    assert placed[-3].x < placed[-2].x < placed[-1].x


HOSTILE = """odd(x: f): Pad(x, pads=p, mode="<b>&]]>") => x ; caveat=</text><script>漢\x1b[31m"""


def test_names_are_escaped() -> None:
    (rule,) = parse_rules(HOSTILE, "a <&> file")
    drawn = rule_diagram(rule, "C")
    page = rule_svg.rule_page(drawn)
    assert page.isascii()
    check_page(page, replace(drawn, caveat=r"</text><script>漢\x1b[31m"))
    text = rule_tree.rule_tree_page(drawn, 100)
    assert "\x1b" not in text
    assert r"caveat  </text><script>漢\x1b[31m" in text


# --- the command ----------------------------------------------------------------------------------


def test_show_draws(superopt: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    done = superopt("rules", "show", "relu-concat")
    assert (done.code, done.out) == (0, rule_tree.rule_tree_page(DIAGRAM, 100))
    assert "  Relu  =>  x\n  └─ x\n" in done.out
    monkeypatch.setattr(terminal, "can_encode", lambda text: False)
    assert "  `- x\n" in superopt("rules", "show", "relu-concat").out


def test_show_writes_svg(superopt: Run, tmp_path: Path) -> None:
    file = tmp_path / "rule.svg"
    done = superopt("rules", "show", "relu-concat", "--svg", file)
    assert file.read_text() == rule_svg.rule_page(DIAGRAM)
    assert done.out.endswith(f"wrote {file} ({file.stat().st_size / 1000:.2f} kB)\n")
    file.unlink()
    shown = superopt("rules", "show", "relu-concat", "--svg", file, "--json").out
    assert json.loads(shown)["left"]["boxes"][1]["inputs"] == [{"source": 0, "which": ""}]
    assert file.exists()
    assert superopt("rules", "show", "relu-concat", "--svg", "-").out == rule_svg.rule_page(DIAGRAM)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("relu-concat", "--svg", "-", "--json"), "--svg - and --json exclude each other"),
        (("relu-concat", "--svg", "no/rule.svg"), "--svg cannot be written to no/rule.svg"),
        (("relu-concat", "--rules", "my.rules", "--svg", "my.rules"), "--svg would overwrite"),
        (("relu-conca", "--svg", "rule.svg"), "unknown rule 'relu-conca'"),
    ],
)
def test_show_refuses(
    arguments: tuple[str, ...],
    what: str,
    superopt: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.rules").write_text("# none")
    done = superopt("rules", "show", *arguments)
    assert done.code == ExitCode.USAGE
    assert done.err.startswith(f"error: {what}")
    assert [p.name for p in tmp_path.iterdir()] == ["my.rules"]
    assert Path("my.rules").read_text() == "# none"


def test_a_rule_of_ones_own_goes_before_the_librarys(tmp_path: Path) -> None:
    own = tmp_path / "my.rules"
    own.write_text("relu-relu(y: f): Relu(Relu(y)) => Relu(y)")
    found = functions.rule_diagram("relu-relu", [own])
    assert found is not None
    assert (found.source, found.parameters[0].name) == (f"{own}:1", "y")
    assert found.tier == ""
    assert "not checked" in " ".join(line for _, line in rule_facts(found, 60))
    assert functions.rule_diagram("nothing") is None


# --- wrapping -------------------------------------------------------------------------------------


def test_wrapping() -> None:
    assert wrap_text("a bb ccc dddd", 4) == ["a bb", "ccc", "dddd"]
    assert wrap_text("aa bb cc dd", 5, 2) == ["aa bb", "cc", "dd"]
    assert wrap_text("", 5) == [""]
    assert wrap_items(["a == b", "c == d", "long and longer"], 9) == [
        "a == b,",
        "c == d,",
        "long and",
        "longer",
    ]
    assert display_width("a漢") == 3
