"""Ifs in models of symbolic sizes: their branches are programs for classes of sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import superopt
from superopt import ort
from superopt.compilation.model.control_flow.dynamic_if import DynamicIf
from tests.support.compilation.branch_models import (
    RATES,
    detector_inputs,
    gate_inputs,
    gated_model,
    voice_detector,
)
from tests.support.compilation.classes import check_classes, near
from tests.support.compilation.dynamic_graphs import dynamic_model, feeds
from tests.support.compilation.dynamic_layers import add_if, add_recurrent
from tests.support.compilation.sequence_models import draw

pytest.importorskip("onnxruntime")
RANDOM_MODELS, MANY_RANDOM_MODELS = 4, 60


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


def classes_of_branches(exe: superopt.Executable) -> list[int]:
    """Return the number of classes of each program of an If; all of its variants belong to one."""
    ((whole,), *_) = exe.variants.values()
    assert isinstance(whole, DynamicIf)
    assert all(v.is_of_class for e in whole.branches.values() for v in e.variants.values())
    return [len(e.size_classes.classes) for e in whole.branches.values()]


@pytest.mark.ci
@pytest.mark.one_in(2)
@pytest.mark.parametrize("threads", [2, 1])
def test_a_voice_detector_at_many_sizes(threads: int) -> None:
    m = voice_detector()
    session = ort.load_session(m.SerializeToString())
    exe = superopt.compile(m, threads=threads, specialize="never")
    for length in (640, 512, 700, 900, 1024, 1500, 641):
        for batch, rate in ((1, True), (3, False), (2, True), (5, True)):
            given = detector_inputs(batch, length, RATES[rate])
            near(exe.run(given), ort.run(session, given), f"{batch}, {length}, {rate}", 2e-5)
    assert classes_of_branches(exe) == [1, 1]


def test_states_flow_from_call_to_call() -> None:
    m = voice_detector()
    session = ort.load_session(m.SerializeToString())
    exe = superopt.compile(m, threads=1, specialize="never")
    state = theirs = draw(2, 1, 64)
    for k in range(20):
        given = detector_inputs(1, 512 + k, RATES[k % 2 == 0])
        found = exe.run(given | {"state": state})
        wanted = ort.run(session, given | {"state": theirs})
        near(found, wanted, f"call {k}", 1e-4)
        state, theirs = found["next_state"], wanted["next_state"]


@pytest.mark.parametrize("condition", ["many", "positive", "flag"])
def test_conditions_from_sizes_values_and_inputs(condition: str) -> None:
    m = gated_model(condition)
    session = ort.load_session(m.SerializeToString())
    exe = superopt.compile(m, threads=1, specialize="never")
    for n in (3, 5, 4, 70, 1, 130):
        for flag in (True, False):
            for sign in (1.0, -1.0):
                given = gate_inputs(n, flag, sign)
                near(exe.run(given), ort.run(session, given), f"{n}, {flag}, {sign}", 2e-5)


def test_a_constant_condition_is_folded_for_all_sizes() -> None:
    (made,) = check_classes(
        gated_model("always"),
        lambda sizes: gate_inputs(sizes["n"], True),
        [{"n": n} for n in (100, 64, 65, 300)],
    )
    assert made.formulas.admits({"n": 1000})


def test_an_if_behind_a_constant_condition() -> None:
    m = gated_model("never")
    session = ort.load_session(m.SerializeToString())
    exe = superopt.compile(m, threads=1, specialize="never")
    for n in (20, 17, 40):
        for flag in (True, False):
            given = gate_inputs(n, flag)
            near(exe.run(given), ort.run(session, given), f"{n}, {flag}", 2e-5)
    assert classes_of_branches(exe) == [1, 1]


def test_sizes_that_contradict_each_other_are_an_error() -> None:
    m = voice_detector()
    exe = superopt.compile(m, threads=1, specialize="never")
    given = detector_inputs(2, 600, RATES[True])
    for _ in range(2):
        exe.run(given)
        with pytest.raises(superopt.UsageError, match="batch"):
            exe.run(given | {"state": draw(2, 3, 64)})


def test_background_compilation_of_branches() -> None:
    m = gated_model("flag")
    session = ort.load_session(m.SerializeToString())
    exe = superopt.compile(m, threads=1)
    for n in (100, 3, 100, 30, 7, 200):
        for flag in (True, False):
            given = gate_inputs(n, flag)
            near(exe.run(given), ort.run(session, given), f"{n}, {flag}", 2e-5)
    assert exe.wait(60)


def check_random_model(seed: int) -> int:
    """Check calls at random sizes; return the number of classes."""
    m, inputs = dynamic_model(seed, (add_recurrent, add_if))
    session = ort.load_session(m.SerializeToString())
    exe = superopt.compile(m, threads=1 + seed % 2, specialize="never")
    names = sorted({d for shape in inputs.values() for d in shape if isinstance(d, str)})
    rng = np.random.default_rng(seed)
    for _ in range(8):
        at = {name: int(rng.choice([1, 2, 3, 7, 16, 33, 65])) for name in names}
        given = feeds(inputs, at, seed)
        try:
            wanted = ort.run(session, given)
        except superopt.SuperoptError:  # the model has no result at these sizes
            continue
        near(exe.run(given), wanted, f"seed {seed}, {at}", 1e-4)
    wholes = [s for v in exe.variants.values() for s in v if isinstance(s, DynamicIf)]
    branches = wholes[0].branches.values() if wholes else ()
    return len(exe.size_classes.classes) + sum(len(e.size_classes.classes) for e in branches)


@pytest.mark.ci
def test_random_models() -> None:
    assert sum(check_random_model(seed) > 0 for seed in range(RANDOM_MODELS)) > RANDOM_MODELS // 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(RANDOM_MODELS, MANY_RANDOM_MODELS))
def test_many_random_models(seed: int) -> None:
    check_random_model(seed)
