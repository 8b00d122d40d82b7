"""`optimize(mutants=True)`: mutants of a model's own windows among the rules."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime import InferenceSession

from superopt.api.functions import generate_mutants, optimize, verify
from superopt.api.rule_library import read_pairs, read_rules
from superopt.compilation.cache.entries import package_content_digest
from superopt.cost.graph_cost import NodeCostModel
from superopt.cost.machine import this_machine
from superopt.cost.roofline import roofline_us
from superopt.cost.signature import Signature
from superopt.cost.store import Store
from superopt.errors import UsageError
from superopt.generate.engine.journal import Journal
from superopt.loading.request import Deadline, Request
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.optimization import optimize as pipeline
from superopt.optimization.admit_rules import prove_user_rule
from superopt.optimization.report.partial_rule_page import describe_partial_equality
from superopt.report.data.mutation import MutantCount
from superopt.report.text.report_text import explanation_text
from superopt.rulegen import model_mutants, subprogram_mutants
from superopt.rulegen.model_mutants import add_mutant_rules
from superopt.rulegen.window_mutants import find_windows, mutate_window
from superopt.rules.lang.rule import parse_rules
from superopt.rules.library.records import tier
from tests.support.compilation.forms import weights
from tests.support.compilation.models import F, model
from tests.support.partial.windows import kept, net
from tests.support.report.sample_report import FASTER

# Seconds; mutants, which need 5 of CPU time, may take half: 30 were too few on a busy machine.
BUDGET = 600.0
Generated = tuple[Path, MutantCount]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(net(), tmp_path / "my net (1).onnx")
    return tmp_path / "my net (1).onnx"


@pytest.fixture
def any_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_mutants, "_faster_mutants", kept)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    """What `rules generate --partial --model` writes, at any price, and what it counts."""
    folder = tmp_path_factory.mktemp("generated")
    onnx.save(net(), folder / "my net (1).onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_mutants, "_faster_mutants", kept)
        (made,) = generate_mutants(
            folder, model=folder / "my net (1).onnx", store=folder / "costs.db"
        ).families
    return folder, made


def asked(path: Path, **given: object) -> tuple[Request, tuple[str, ...]]:
    request = Request(budget=BUDGET, cost="roofline", store=path.parent / "costs.db", **given)  # type: ignore[arg-type]
    with Store.open(request.store) as store:
        model = import_model(read_model(path))
        found, deadline, told = add_mutant_rules(
            model, request, Deadline.for_request(request), store, this_machine()
        )
    assert found.budget == deadline.seconds <= BUDGET
    return found, told


@pytest.mark.one_in(0)
def test_they_are_rules_that_are_proved(path: Path, any_price: None) -> None:
    begin = time.process_time()
    found, told = asked(path)
    first = time.process_time() - begin
    names = [r.name for r in found.rules]
    assert len(names) >= 3
    assert len(set(names)) == len(names)
    assert found.untried_rules == set(names) == found.partial_pairs.keys()
    assert told == (f"{len(names)} rules of the model's own mutants, of 4 of 4 subprograms",)
    for rule in found.rules:
        assert not prove_user_rule(rule)
        assert tier(rule) == "A"
        shown = describe_partial_equality(rule, found.partial_pairs)
        assert shown is not None
        assert (shown.how == "equal") == (shown.share == 1)
    begin = time.process_time()
    again, _ = asked(path)
    assert [str(r) for r in again.rules] == [str(r) for r in found.rules]
    assert time.process_time() - begin < max(0.5 * first, 1.0)


@pytest.mark.one_in(0)
def test_any_number_of_images(path: Path, any_price: None) -> None:
    """Rules of what moves to the batch, not from it, which are for all numbers of pictures."""
    onnx.save(net("n"), path)
    found, _ = asked(path, shapes={"n": 4})
    assert len(found.rules) >= 3
    for rule in found.rules:
        assert "f[n, c, 8, 8]" in str(rule)
        assert "of-n" not in rule.name
        assert not prove_user_rule(rule)
        assert tier(rule) == "A"
    some = {
        w.priced_batch for w in find_windows(import_model(read_model(path)).graph, {"n": 4}) if w
    }
    assert some == {4}


@pytest.mark.one_in(0)
def test_rules_of_a_model_of_any_name_can_be_read(generated: Generated) -> None:
    out, made = generated
    found = parse_rules((out / "my net (1).corrected.rules").read_text())
    assert len(found) == made.proved >= 3
    assert all(r.name.startswith("my_net_1_-") for r in found)


def test_what_is_found_is_said_by_the_boxes_of_any_channels(generated: Generated) -> None:
    out, _ = generated
    for line in json.loads((out / "my net (1).regions.json").read_text()):
        for box in (*line["equal"], *line["different"]):
            assert box.split(", ")[1] == ":"  # channels


def test_reports_of_files_say_where_they_are_right(generated: Generated) -> None:
    out, _ = generated
    rules = out / "my net (1).corrected.rules"
    pairs = read_pairs([rules, out / "other.rules"])
    found = parse_rules(rules.read_text())
    assert all(describe_partial_equality(r, pairs) for r in found)
    assert describe_partial_equality(found[0], {}) is None
    shown = describe_partial_equality(found[0], pairs)
    assert shown is not None
    step = replace(FASTER.steps[0], rule=found[0].name)
    text = explanation_text("x", [step], [], partial=[shown])
    assert all(line in text for line in shown.picture)
    assert "equal in parts" in text


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "pair",
    [  # right up to 30 only; of another program; of which nothing is known; of any rank
        "(x: f[n, h]): Relu(Relu(x)) => Relu(Pad(Slice(x, axes=(1,), starts=(0,), ends=(30,)),"
        " pads=(0, 0, 0, max(0, h - 30))))",
        "(x: f[n, h]): Relu(x) => Relu(x)",
        "(x: f[n, h]): Relu(Relu(x)) => MatMul(x, x)",
        "(x: f[*r]): Relu(Relu(x)) => Neg(x)",
    ],
)
def test_a_pair_that_is_not_the_rules_shows_nothing(pair: str) -> None:
    (rule,) = parse_rules("own-recomputed(x: f[n, h]): Relu(Relu(x)) => Relu(x)")
    true, false = (
        parse_rules(f"own{text}")[0] for text in ("(x: f[n, h]): Relu(Relu(x)) => Relu(x)", pair)
    )
    assert describe_partial_equality(rule, {"own": true}) is not None
    assert describe_partial_equality(rule, {"own": false}) is None


@pytest.mark.parametrize(("asked", "why"), [({"max_ops": 3}, "max_ops 3"), ({"seed": 1}, "seed 1")])
def test_what_means_nothing_for_a_model_is_refused(
    path: Path, tmp_path: Path, asked: dict[str, int], why: str
) -> None:
    with pytest.raises(UsageError, match=f"{why} with a model"):
        generate_mutants(tmp_path / "out", model=path, **asked)  # type: ignore[arg-type]


def test_pairs_that_cannot_be_read_end_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.pairs").write_text("no pair at all\n")
    assert read_pairs([tmp_path / "mine.corrected.rules"]) == {}


def test_two_rules_of_one_name_are_refused(tmp_path: Path) -> None:
    a, b = (tmp_path / f"{n}.rules" for n in "ab")
    a.write_text("own(x: f[n, h]): Relu(Relu(x)) => Relu(x)\n")
    b.write_text("own(x: f[n, h]): Neg(Neg(x)) => x\n")
    with pytest.raises(UsageError, match="two rules have the name 'own'"):
        read_rules([a, b])
    assert len(read_rules([a, a])) == 1


@pytest.mark.one_in(0)
def test_a_window_goes_on_where_it_was(path: Path) -> None:
    """Not only one after the other: what is known of some of a window's mutants is kept."""
    whole = Journal()
    (window,) = {
        w for w in find_windows(import_model(read_model(path)).graph) if w and w.channels == (4, 8)
    }
    wanted = mutate_window(window, whole, lambda: False)
    assert wanted
    journal, asked_ = Journal(), count()
    times = 0
    while (found := mutate_window(window, journal, lambda: next(asked_) % 4 == 3)) is None:
        times += 1
    assert found == wanted
    assert times > 1


def test_a_wide_drawing_has_several_elements_in_a_character() -> None:
    (pair,) = parse_rules(
        "wide(x: f[1, c, h, 90], y: f[1, c, h, 90], k: f[o, c, 3, 3]):"
        " Concat(Conv(x, k, pads=(1, 1, 1, 1)), Conv(y, k, pads=(1, 1, 1, 1)), axis=3)"
        " => Conv(Concat(x, y, axis=3), k, pads=(1, 1, 1, 1))"
    )
    shown = describe_partial_equality(pair, {"wide": pair})
    assert shown is not None
    *lines, told = shown.picture
    assert {len(x) for x in lines} == {60}
    assert all(x.count("#") == 2 for x in lines)
    assert told == "(a character is 1 x 3 elements)"


def test_there_is_no_time(path: Path) -> None:
    found, told = asked(path, stop=lambda: True)
    assert not found.rules
    assert told[0].endswith("of 0 of 4 subprograms: out of time, the next call continues")


def test_another_process_has_the_folder(path: Path, any_price: None) -> None:
    folder = path.parent / "mutants" / package_content_digest()[:16]
    folder.mkdir(parents=True)
    with (folder / model_mutants.JOURNAL_FILE).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        found, _ = asked(path)
    assert found.rules
    assert not (folder / model_mutants.JOURNAL_FILE).read_text()


def test_a_model_is_optimized_with_them(path: Path, any_price: None) -> None:
    found = optimize(
        path, budget=BUDGET, target="cpu", cost="roofline", library=False, mutants=True,
        store=path.parent / "costs.db",
    ).report  # fmt: skip
    assert any("of the model's own mutants" in n for n in found.notes)
    assert not any("was not used" in n for n in found.notes)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["equal", "recomputed"])
@pytest.mark.parametrize("batch", [1, "n"])
def test_a_corrected_model_is_certified(
    path: Path, how: str, batch: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where convolutions of whole pictures, or dilated ones, are dear: its outputs are those of the
    original, and its certificate is replayed; for any number of pictures where it does not say."""
    onnx.save(net(batch), path)

    def dear(n: Signature) -> bool:
        if n.op.name != "Conv" or n.operands[0] is None:
            return False
        whole = n.operands[0].type.shape[2:] == (8, 8)
        return whole if how == "recomputed" else dict(n.attrs)["dilations"] != (1, 1)

    def priced(threads: int) -> NodeCostModel:
        return lambda some: [roofline_us(n, threads) * (1000 if dear(n) else 1) for n in some]

    def some(found: list, costs: object) -> Iterator[dict]:
        of = [(w, [x for x in own if (x["share"] == 1) == (how == "equal")]) for w, own in found]
        return kept(of, costs)

    monkeypatch.setattr(model_mutants, "_faster_mutants", some)
    monkeypatch.setattr(pipeline, "roofline_cost_model", priced)
    out = path.parent / "out.onnx"
    found = optimize(
        path, budget=BUDGET, cost="roofline", library=False, mutants=True,
        store=path.parent / "costs.db",
    )  # fmt: skip
    assert not any("out of time" in n for n in found.report.notes)
    assert {p.how for p in found.report.partial} == {how}
    found.save(out)
    for n in (1, 3) if batch == "n" else (1,):
        feeds = {"x": np.random.default_rng(0).standard_normal((n, 4, 8, 8), np.float32)}
        wanted, got = (InferenceSession(p).run(None, feeds)[0] for p in (path, out))
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    verdict = verify(path, out, certificate=out.with_suffix(".superopt.json"))
    assert verdict.decision == "certified"


def two() -> onnx.ModelProto:
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        onnx.helper.make_node("Conv", ["x", "v"], ["b"]),
        onnx.helper.make_node("Relu", ["a"], ["y"]),
        onnx.helper.make_node("Relu", ["b"], ["z"]),
    ]
    known = weights(w=(8, 4, 3, 3), v=(8, 4, 1, 1))
    return model(nodes, {"x": (F, [1, 4, 8, 8])}, ["y", "z"], known)


@pytest.mark.slow
def test_two_windows_through_one_kernel_are_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a convolution is dear, whatever its size."""

    def priced(threads: int) -> NodeCostModel:
        return lambda some: [1000.0 if n.op.name == "Conv" else 1.0 for n in some]

    monkeypatch.setattr(model_mutants, "_faster_mutants", kept)
    monkeypatch.setattr(subprogram_mutants, "MAX_PRICE_RATIO", 4.0)
    monkeypatch.setattr(pipeline, "roofline_cost_model", priced)
    path, out = tmp_path / "two.onnx", tmp_path / "out.onnx"
    onnx.save(two(), path)
    found = optimize(
        path, budget=BUDGET, cost="roofline", library=False, mutants=True,
        store=tmp_path / "costs.db",
    )  # fmt: skip
    assert [s.rule for s in found.report.steps if "join" in s.rule]
    found.save(out)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 4, 8, 8), np.float32)}
    for wanted, got in zip(
        *(InferenceSession(p).run(None, feeds) for p in (path, out)), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    verdict = verify(path, out, certificate=out.with_suffix(".superopt.json"))
    assert verdict.decision == "certified"
