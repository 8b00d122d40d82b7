"""`optimize` for a GPU: without one, costs are predicted, and what comes out says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import superopt
from superopt.compilation.cuda import graph_timing
from superopt.errors import UsageError
from superopt.loading.request import CompiledTimers
from superopt.optimization import check_variants
from tests.support.optimization.models import FIRE_MODULE, data


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_timing, "_measured_device", lambda precision: None)


def optimize_fire_module(folder: Path, **more: Any) -> superopt.Optimized:
    given = {"target": "cuda", "precision": "fp16", "budget": 20.0, "store": folder / "store.db"}
    return superopt.optimize(data(FIRE_MODULE), **{**given, **more})


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> superopt.Optimized:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_timing, "_measured_device", lambda precision: None)
        return optimize_fire_module(tmp_path_factory.mktemp("fire"))


@pytest.mark.ci
def test_branches_become_one_kernel_and_the_gain_is_only_predicted(
    found: superopt.Optimized,
) -> None:
    assert found.changed
    assert any(s.rule.startswith("conv-enlarge-merge") for s in found.report.steps)
    r = found.report
    assert r.cost_after_us < r.cost_before_us / check_variants.MIN_PREDICTED_SPEEDUP
    assert r.cost_source == (
        "predicted for the kernels of an NVIDIA H100 in fp16: not measured here"
    )
    assert (r.latency_before, r.latency_after, r.speedup) == (None, None, None)
    assert r.check is not None
    assert r.check.passed
    text = str(found)
    assert "x as fast, not measured here" in text
    assert "predicted for the kernels of an NVIDIA H100 in fp16" in text
    assert any("not measured here" in note for note in r.notes)
    assert found.certificate is not None
    assert [n.op_type for n in found.model.graph.node].count("Conv") == 1


@pytest.mark.ci
@pytest.mark.usefixtures("no_gpu")
def test_a_graph_with_a_small_predicted_gain_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_variants, "MIN_PREDICTED_SPEEDUP", 10.0)
    found = optimize_fire_module(tmp_path)
    assert not found.changed
    assert found.report.cost_after_us == found.report.cost_before_us
    assert "unchanged" in str(found)


@pytest.mark.ci
@pytest.mark.usefixtures("no_gpu")
def test_decisions_for_a_gpu_are_replayed(found: superopt.Optimized, tmp_path: Path) -> None:
    again = optimize_fire_module(tmp_path, replay=found.decisions)
    assert again.report.optimized_sha256 == found.report.optimized_sha256


@pytest.mark.ci
def test_what_is_measured_decides_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that finds the rewritten model slower: it is not used."""
    asked, own = list[str](), graph_timing.gpu_timers

    def make_clock(path: Path, feeds: Any, **how: Any) -> Callable[[], float]:
        asked.append(path.name)
        us = 150.0 if "candidate" in path.parent.name else 100.0
        return lambda: us

    def timers(precision: str, *, may_measure: bool) -> CompiledTimers:
        made = own(precision, may_measure=False)
        return CompiledTimers(
            made.kind, make_clock, made.make_planner, made.decisions, device="a GPU"
        )

    monkeypatch.setattr("superopt.compilation.cuda.graph_timing.gpu_timers", timers)
    found = optimize_fire_module(tmp_path)
    assert asked
    assert not found.changed


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"target": "cuda", "precision": "fp8"}, "precisions are"),
        ({"target": "cpu", "precision": "fp16"}, "rewrites are priced in float32"),
        ({"target": "rocm"}, "the targets are onnxruntime, cpu, cuda"),
    ],
)
def test_what_a_gpu_target_does_not_know(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        superopt.optimize(data(FIRE_MODULE), budget=5, **given)
