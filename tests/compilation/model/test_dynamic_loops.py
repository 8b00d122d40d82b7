"""Loops whose number of steps is known only in a call: their bodies are programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt import ort
from superopt.compilation.model.control_flow import bound_steps, dynamic_loop
from superopt.compilation.model.control_flow.bound_steps import Slices
from superopt.compilation.model.control_flow.dynamic_loop import DynamicLoop
from tests.support.compilation.classes import Feeds, near
from tests.support.compilation.loop_models import HIDDEN, INT, cell, cell_inputs, loop_body
from tests.support.compilation.sequence_models import FLOAT, Dim, draw, sequence_model

pytest.importorskip("onnxruntime")
node = helper.make_node


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        dynamic_loop, "TRIAL_CALLS", 1 << 30
    )  # all calls give the programs' results


def check(m: onnx.ModelProto, calls: Sequence[Feeds], threads: int = 1) -> superopt.Executable:
    session = ort.load_session(m.SerializeToString())
    exe = superopt.compile(m, threads=threads, specialize="never")
    for given in calls:
        for _ in range(2):
            near(exe.run(given), ort.run(session, given), str(given.keys()), 1e-4)
    return exe


def loop_of(exe: superopt.Executable) -> DynamicLoop:
    (whole,) = next(iter(exe.variants.values()))
    assert isinstance(whole, DynamicLoop)
    return whole


@pytest.mark.parametrize("threads", [1, 2])
def test_a_number_of_steps_that_is_an_input(threads: int) -> None:
    some = [cell_inputs(n, k) for n in (20, 3, 64, 70) for k in (4, 1, 0, 7)]
    exe = check(cell("steps"), some, threads)
    body = loop_of(exe).body
    assert body.size_classes.classes
    assert all(v.is_of_class for v in body.variants.values())


def test_a_number_of_steps_that_is_a_size() -> None:
    exe = check(cell("size"), [cell_inputs(n, 0) for n in (20, 3, 1, 41)])
    assert loop_of(exe).body.size_classes.classes


def test_a_condition_that_ends_the_loop() -> None:
    """The sum of the state exceeds a limit after some steps; at some inputs at the first one."""
    some = [cell_inputs(n, k) for n in (20, 5, 64) for k in (100, 2)]
    some += [x | {"x": np.zeros_like(x["x"])} for x in some]  # the condition is false at the start
    for count in ("steps", "many"):
        loop_of(check(cell(count, "some"), some))


def test_fixed_sizes() -> None:
    loop_of(check(cell("steps", rows=80), [cell_inputs(80, k) for k in (4, 0, 9)]))


def test_a_state_that_grows() -> None:
    """Each step appends a row; its size is another one in each step."""
    body = loop_body(
        [
            node("MatMul", ["s", "u"], ["a"]),
            node("ReduceMean", ["a"], ["b"], axes=[0], keepdims=1),
            node("Concat", ["s", "b"], ["s1"], axis=0),
            node("Identity", ["going"], ["goes"]),
        ],
        ["s"], ["s1"],
    )  # fmt: skip
    nodes = [
        node("Loop", ["steps", "", "x"], ["last"], body=body),
        node("Tanh", ["last"], ["y"]),
    ]
    m = sequence_model(
        nodes, {"x": (FLOAT, ("n", 200)), "steps": (INT, ())}, ["y"],
        {"u": draw(200, 200, scale=0.05)}, shapes={"y": (None, 200)},
    )  # fmt: skip
    some = [
        {"x": draw(n, 200, scale=1), "steps": np.array(k)} for n in (20, 3, 70) for k in (6, 0, 1)
    ]
    loop_of(check(m, some))


@pytest.fixture
def body_runs(monkeypatch: pytest.MonkeyPatch) -> list[Feeds]:
    """The inputs of the steps that are calls of a body, which reads a step's number."""
    out: list[Feeds] = []
    run = superopt.Executable.run

    def record(self: superopt.Executable, feeds: Feeds) -> Feeds:
        if "number" in feeds:
            out.append(feeds)
        return run(self, feeds)

    monkeypatch.setattr(superopt.Executable, "run", record)
    return out


def test_steps_of_equal_sizes_run_on_fixed_arrays(body_runs: list[Feeds]) -> None:
    """All but the first; the result for slices grows where the number of steps has no limit."""
    some = [cell_inputs(n, k) for n in (20, 40) for k in (30, 6)]
    exe = check(cell("steps"), some)
    assert len(body_runs) == 2 * len(some)
    loop_of(exe)
    session = ort.load_session(cell("many", "some").SerializeToString())
    exe = superopt.compile(cell("many", "some"), specialize="never")
    body_runs.clear()
    for n in (20, 40):
        near(exe.run(cell_inputs(n, 0)), ort.run(session, cell_inputs(n, 0)), str(n), 1e-4)
    assert len(body_runs) == 2


def test_a_loop_whose_steps_have_no_program_runs_in_onnxruntime(body_runs: list[Feeds]) -> None:
    """But for one step, whose time counts for the compilation of a program."""
    exe = check(cell("steps"), [cell_inputs(20, 6), cell_inputs(3, 6)])
    policy = loop_of(exe).body.shape_policy
    before = policy.fallback_seconds
    body_runs.clear()
    session = ort.load_session(cell("steps").SerializeToString())
    near(exe.run(cell_inputs(2, 9)), ort.run(session, cell_inputs(2, 9)), "", 1e-4)
    assert len(body_runs) == 1
    assert policy.fallback_seconds > before


def test_results_are_not_overwritten_by_later_calls() -> None:
    exe = check(cell("steps"), [cell_inputs(20, 9)])
    first = exe.run(cell_inputs(20, 9))
    before = {name: x.copy() for name, x in first.items()}
    exe.run({**cell_inputs(20, 9), "x": draw(20, HIDDEN, scale=2)})
    near(first, before, "first", 0)


def test_slices_grow_to_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound_steps, "MAX_CAPACITY_BYTES", 100)
    row = np.arange(6, dtype=np.float32)
    for count, limit in ((4, np.inf), (5, np.inf), (23, 2**40), (23, 23), (23, 30)):
        some = Slices.empty_like(row, limit)
        for k in range(count):
            some.append(row + k)
        found = some.result()
        np.testing.assert_array_equal(found, row + np.arange(count, dtype=np.float32)[:, None])
        assert found.base is None


def product_loop(states: Sequence[str], outputs: Sequence[str], size: Dim) -> onnx.ModelProto:
    """A loop over `a`, of shape [n, HIDDEN], and `b`, of `size` rows. outputs: new states, then
    slices."""
    nodes = [
        node("MatMul", ["a", "u"], ["p"]), node("MatMul", ["b", "u"], ["q"]),
        node("Tanh", ["p"], ["c"]), node("Add", ["c", "q"], ["d"]),
        node("Cast", ["number"], ["f"], to=FLOAT), node("Add", ["d", "f"], ["e"]),
        node("Identity", ["going"], ["goes"]),
    ]  # fmt: skip
    body = loop_body(nodes, states, outputs)
    results = [f"r{n}" for n in range(len(outputs))]
    inputs = {"x": (FLOAT, ("n", HIDDEN)), "z": (FLOAT, (size, HIDDEN)), "steps": (INT, ())}
    shapes: dict[str, Sequence[Dim]] = dict.fromkeys(results[:2], (None, HIDDEN))
    shapes |= dict.fromkeys(results[2:], (None, "n", HIDDEN))
    return sequence_model(
        [node("Loop", ["steps", "", "x", "z"], results, body=body)], inputs, results,
        {"u": draw(HIDDEN, HIDDEN, scale=0.1)}, shapes=shapes,
    )  # fmt: skip


@pytest.mark.parametrize("outputs", ["ce", "cecd", "ba", "cc", "ccc", "cb", "ec"])
@pytest.mark.parametrize("size", ["n", 1])
def test_states_that_are_swapped_kept_or_broadcast(outputs: str, size: Dim) -> None:
    """Also where a state is a slice, two states are the same value, or the second one gets the
    sizes of the first one."""
    if size == 1 and outputs == "ba":
        return  # ONNX Runtime's states keep their types
    some = [
        {"x": draw(n, HIDDEN), "z": draw(n if size == "n" else 1, HIDDEN), "steps": np.array(k)}
        for n in (20, 3) for k in (9, 2, 6)
    ]  # fmt: skip
    check(product_loop(["a", "b"], [*outputs], size), some)


@pytest.mark.parametrize("own_seconds", [1.0, 3.0])
def test_later_calls_run_what_took_less_time(
    own_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_loop, "TRIAL_CALLS", 3)
    exe = check(cell("steps"), [cell_inputs(70, 3)] * 2)
    whole = loop_of(exe)
    assert len(whole.trials) == 4
    exe.run(cell_inputs(70, 3))  # another trial: the number of this call is a power of 2
    assert len(whole.trials) == 5
    whole.trials[:] = [(100.0, 2.0), *[(own_seconds, 2.0)] * 3]  # the first call compiled
    calls = 0
    run = type(whole.body).run

    def count(self: superopt.Executable, feeds: Feeds) -> Feeds:
        nonlocal calls
        calls += self is whole.body
        return run(self, feeds)

    monkeypatch.setattr(type(whole.body), "run", count)
    exe.run(cell_inputs(70, 3))
    assert calls == (3 if own_seconds < 2 else 0)


def test_a_step_with_little_work_stays_in_onnxruntime() -> None:
    body = loop_body(
        [node("Add", ["s", "s"], ["s1"]), node("Identity", ["going"], ["goes"])], ["s"], ["s1"]
    )
    nodes = [node("Loop", ["steps", "", "x"], ["y"], body=body)]
    m = sequence_model(
        nodes, {"x": (FLOAT, (4,)), "steps": (INT, ())}, ["y"], {}, shapes={"y": (4,)}
    )
    exe = check(m, [{"x": draw(4), "steps": np.array(k)} for k in (3, 0)])
    assert not any(isinstance(s, DynamicLoop) for v in exe.variants.values() for s in v)
