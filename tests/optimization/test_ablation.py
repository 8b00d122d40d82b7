"""The result of `optimize` without each of its parts, and the stages of its waterfall."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import superopt
from superopt import ort
from superopt.cost.machine_load import NO_LOAD
from superopt.loading.request import Request
from superopt.optimization import ablation_timing
from superopt.optimization.ablation_timing import NO_TIME, time_beside
from superopt.optimization.interleaved import TimedModel, TimedRounds
from superopt.optimization.step_groups import FOLDING_TITLE, group_by_rule
from superopt.report.data.codec import from_json, to_json
from superopt.report.text.ablation_text import MAX_LINES, ablation_text
from superopt.search.move import Step
from superopt.verification.ort_session import OrtSession
from tests.support.optimization.models import FIRE_MODULE, PLAIN, data
from tests.support.optimization.running import trace


def steps(*about: tuple[str, float]) -> list[Step]:
    made, _ = trace([1] * len(about))
    return [
        Step(rule, None, s.change, us, s.before, s.after)
        for (rule, us), s in zip(about, made, strict=True)
    ]


def test_steps_are_grouped_by_rule_in_the_order_of_their_first_steps() -> None:
    some = steps(("b", -2.0), ("a", -1.0), ("b", -3.0), ("free", 0.0))
    groups = group_by_rule(some, {"free"})
    assert [(g.name, g.kind, sorted(g.numbers), g.saves_us) for g in groups] == [
        (FOLDING_TITLE, "folding", [3], 0.0), ("b", "rule", [0, 2], 5.0), ("a", "rule", [1], 1.0),
    ]  # fmt: skip


def test_the_rules_that_save_least_are_one_group() -> None:
    some = steps(("a", -1.0), ("b", -9.0), ("c", -2.0), ("d", -8.0), ("a", -0.5))
    groups = group_by_rule(some, (), max_groups=3)
    assert [(g.name, sorted(g.numbers), g.saves_us) for g in groups] == [
        ("b", [1], 9.0), ("d", [3], 8.0), ("2 other rules", [0, 2, 4], 3.5)
    ]  # fmt: skip


Clock = Callable[..., TimedRounds | ort.Failure]


def fake_clock(us: dict[str, float], seen: list[list[str]], run_seconds: float = 0.0) -> Clock:
    """Models take so many microseconds, by the names of their files; one without fails."""

    def time_models(models: Sequence[TimedModel], *about: object) -> TimedRounds | ort.Failure:
        names = [m.session.path.name for m in models if m.session.path is not None]
        seen.append(names)
        if not us.keys() >= {*names}:
            return ort.Failure("error", "it does not run")
        return TimedRounds(tuple((us[n] + 1e6 * run_seconds,) * 9 for n in names), NO_LOAD)

    return time_models


def model(name: str) -> TimedModel:
    return TimedModel(OrtSession(Path(name), 1))


def beside(names: str, size: int = 1, seconds: float = 60.0) -> ablation_timing.TimedRatios:
    feed: Any = None
    return time_beside(
        model("result"), [model(n) for n in names], size, feed, Request(), seconds, lambda _: None
    )


def test_models_are_timed_in_groups_that_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    us = {"result": 100.0, "a": 150.0, "b": 100.0, "c": 90.0}
    monkeypatch.setattr(ablation_timing, "time_models", fake_clock(us, seen))
    found = beside("abc", size=ablation_timing.MAX_RESIDENT_BYTES // 3)
    mids = [r.mid for r in found.ratios if not isinstance(r, str)]
    assert mids == pytest.approx([1.5, 1.0, 0.9])
    assert all(not isinstance(r, str) and r.low < r.mid < r.high for r in found.ratios)
    assert {tuple(names) for names in seen[1:]} == {("result", "a", "b"), ("result", "c")}
    assert (found.rounds, found.sessions) == (27, 3)


def test_a_model_that_does_not_run_spoils_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    us = {"result": 100.0, "a": 150.0, "c": 90.0, "d": 80.0}
    monkeypatch.setattr(ablation_timing, "time_models", fake_clock(us, []))
    ratios = beside("abcd").ratios
    assert ratios[1] == "not timed: it does not run"
    assert [r.mid for r in ratios if not isinstance(r, str)] == pytest.approx([1.5, 0.9, 0.8])


def test_the_first_models_count_most_if_time_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    us = {"result": 1e6, "a": 1e6, "b": 1e6, "c": 1e6}
    monkeypatch.setattr(ablation_timing, "time_models", fake_clock(us, []))
    ratios = beside("abc", seconds=30.0).ratios  # a model is expected to need 10.5 s
    assert [isinstance(r, str) for r in ratios] == [False, False, True]
    assert ratios[2] == NO_TIME


OWN_RULES = """
one-product(x: f[n, k], y: f[k, m], z: f[m, p]):
    MatMul(MatMul(x, y), z) => MatMul(x, MatMul(y, z)) ; float=E2
relu-relu(x: f): Relu(Relu(x)) => Relu(x) ; float=E0
"""
SIZE = 320


WASTEFUL = f"""
<ir_version: 8, opset_import: ["" : 17]>
wasteful (float[{SIZE}, {SIZE}] x) => (float[{SIZE}, {SIZE}] y)
<float[{SIZE}, {SIZE}] w, float[{SIZE}, {SIZE}] z>
{{
  a = MatMul(x, w)
  b = MatMul(a, z)
  c = Relu(b)
  d = Relu(c)
  y = Relu(d)
}}
"""  # two products with weights, which one replaces, and Relu applied three times


def optimize_wasteful(folder: Path, **more: Any) -> superopt.Optimized:
    path = folder / "own.rules"
    path.write_text(OWN_RULES)
    given = {"budget": 15.0, "store": folder / "store", "library": False, "rules": [path]}
    return superopt.optimize(data(WASTEFUL), **{**given, **more})


def test_each_rule_is_left_out_and_its_stage_is_timed(tmp_path: Path) -> None:
    found = optimize_wasteful(tmp_path, ablate=True)
    r = found.report
    assert {s.rule for s in r.steps} == {"one-product", "relu-relu"}
    assert r.ablation is not None
    parts = {p.name: p for p in r.ablation.parts}
    assert parts.keys() == {"one-product", "relu-relu", "constant folding"}
    for p in parts.values():
        assert p.ratio is not None
        assert 0 < p.ratio[0] <= p.ratio[1] <= p.ratio[2]
        assert p.steps == sum(s.rule == p.name for s in r.steps)
    # Without `one-product` there are two products instead of one.
    assert parts["one-product"].ratio is not None
    assert parts["one-product"].ratio[1] > 1.3
    assert r.ablation.parts[0].name == "one-product"
    assert r.ablation.sessions > 0
    first, *middle, last = r.waterfall
    assert (first.kind, last.kind) == ("original", "result")
    assert [w.name for w in middle] == [FOLDING_TITLE, *dict.fromkeys(s.rule for s in r.steps)]
    assert all(w.is_measured for w in r.waterfall)
    assert r.latency_after is not None
    assert last.us == middle[-1].us == r.latency_after.us_median
    assert first.us > 1.3 * last.us
    assert sum(w.steps for w in middle) == len(r.steps)
    assert from_json(to_json(r)) == r
    assert len(ablation_text(r.ablation).splitlines()) <= MAX_LINES
    assert "without 1x one-product" in ablation_text(r.ablation)


def test_without_ablation_stages_are_predicted(tmp_path: Path) -> None:
    r = optimize_wasteful(tmp_path).report
    assert r.ablation is None
    assert r.latency_before is not None
    assert [w.is_measured for w in r.waterfall] == [
        w.kind in ("original", "result") for w in r.waterfall
    ]
    assert r.waterfall[0].us == r.latency_before.us_median
    assert {w.name for w in r.waterfall} >= {"one-product", "relu-relu"}


def test_what_is_not_timed_is_predicted_and_says_so(tmp_path: Path) -> None:
    r = optimize_wasteful(tmp_path, ablate=True, cost="roofline").report
    assert r.ablation is not None
    parts = {p.name: p for p in r.ablation.parts}
    assert all(p.ratio is None for p in parts.values())
    one = parts["one-product"].predicted
    assert one is not None
    assert one > 1.3
    assert "predicted by the costs of the plan" in ablation_text(r.ablation)
    assert not any(w.is_measured for w in r.waterfall)


def test_a_model_that_did_not_change_has_nothing_to_leave_out(tmp_path: Path) -> None:
    found = superopt.optimize(
        data(PLAIN), budget=5.0, library=False, ablate=True, store=tmp_path, cost="roofline"
    )
    assert not found.changed
    assert found.report.ablation is None
    assert found.report.waterfall == ()
    assert any("there is nothing to leave out" in note for note in found.report.notes)


def test_kernel_decisions_of_a_compiled_model_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ablation_timing, "MAX_SESSIONS", 1)
    monkeypatch.setattr(ablation_timing, "TIMED_PART", 100.0)  # all models, however slow
    r = superopt.optimize(
        data(FIRE_MODULE), target="cpu", budget=10.0, ablate=True, store=tmp_path
    ).report
    titles = ["simplification by the compiler's own rules", "fusion of operators into kernels",
              "image layouts", "Winograd and Strassen", "tuned schedules"]  # fmt: skip
    assert r.ablation is not None
    decisions = [p for p in r.ablation.parts if p.kind == "decision"]
    assert {p.name for p in decisions} == {*titles}
    assert all(p.ratio is not None for p in decisions)
    assert [w.name for w in r.waterfall if w.kind == "decision"] == titles
    assert r.waterfall[0].name == "kernels alone"
    assert all(w.is_measured for w in r.waterfall)


def test_variants_compute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each model that is timed computes what the original does."""
    made: list[bytes] = []

    def time_models(models: Sequence[TimedModel], *about: object) -> TimedRounds:
        made.extend(m.session.path.read_bytes() for m in models if m.session.path is not None)
        return TimedRounds(((1.0,) * 9,) * len(models), NO_LOAD)

    monkeypatch.setattr(ablation_timing, "time_models", time_models)
    assert optimize_wasteful(tmp_path, ablate=True).changed
    x = {"x": np.random.default_rng(1).standard_normal((SIZE, SIZE)).astype(np.float32)}
    wanted = onnxruntime.InferenceSession(data(WASTEFUL)).run(None, x)[0]
    assert len({*made}) >= 4
    for each in {*made}:
        found = onnxruntime.InferenceSession(each).run(None, x)[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
