"""The first calls of a model with an If or Loop in a file: ONNX Runtime runs the whole model while
a child process compiles the parts that a call needs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.compilation.fallback.fallback_cache import FallbackCache
from superopt.compilation.model import specialize
from superopt.compilation.model.compiler import Compiler
from superopt.compilation.model.control_flow.part_calls import PartNotCompiled
from superopt.compilation.model.executable import Executable
from superopt.compilation.runtime import child_process
from superopt.errors import ModelError
from tests.support.compilation.branch_models import (
    branch,
    detector_inputs,
    gate_inputs,
    gated_model,
    voice_detector,
)
from tests.support.compilation.cache import record_compilations
from tests.support.compilation.models import near
from tests.support.compilation.sequence_models import FLOAT, draw, gated_loop, sequence_model

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(
    not child_process.CAN_RUN_CHILDREN, reason="no child processes on this platform"
)
Feeds = dict[str, np.ndarray]
# the taken branch is the product, the one of the inner If, the other one of that
TAKEN = ((True, 1.0), (True, -1.0), (False, -1.0))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(specialize, "_measure_pair", lambda *_: (1.0, 2.0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    out = tmp_path / "m.onnx"
    onnx.save(gated_model("positive"), out)
    return out


@pytest.fixture
def compiled_here(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """The sizes for which this process compiles."""
    return record_compilations(monkeypatch)


class Checked:
    """A compiled model whose results are compared with ONNX Runtime's."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.exe: Executable = superopt.compile(path, threads=1, **options)
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def __call__(self, feeds: Feeds) -> Feeds:
        found = self.exe.run(feeds)
        near(found, dict(zip(found, self.session.run(None, feeds), strict=True)))
        return found

    @property
    def parts(self) -> list[Executable]:
        _, *parts = self.exe.executables()
        return parts


def test_no_call_compiles(path: Path, compiled_here: list[dict[str, int]]) -> None:
    net = Checked(path)
    feeds = gate_inputs(20, True)
    first = net(feeds)["y"]
    assert np.array_equal(first, net.session.run(None, feeds)[0])
    assert net.exe.wait(120)
    for n in (20, 17, 20):
        for flag, sign in TAKEN:  # the other branches were compiled beside the calls
            net(gate_inputs(n, flag, sign))
    assert net.exe.shape_policy.fallback_seconds == 0
    assert not compiled_here
    assert not any(e.has_compiler for e in net.exe.executables())


def test_programs_in_the_cache_need_no_child(
    path: Path, compiled_here: list[dict[str, int]]
) -> None:
    net = Checked(path)
    net(gate_inputs(20, True))
    assert net.exe.wait(120)
    again = Checked(path)
    assert again.exe.waiting_child is None
    for flag, sign in TAKEN:
        again(gate_inputs(21, flag, sign))
    assert again.exe.shape_policy.fallback is None
    assert not compiled_here


def test_onnxruntime_runs_the_model_where_a_part_has_no_program(
    path: Path, compiled_here: list[dict[str, int]]
) -> None:
    net = Checked(path)
    net(gate_inputs(20, True))
    assert net.exe.wait(120)
    net(gate_inputs(20, True))
    for part in net.parts:
        part.drop_variants()
        part.find_cached = lambda key: None
    with pytest.raises(PartNotCompiled):
        net.parts[0].run({"x": gate_inputs(20, True)["x"]})
    for n in (20, 30, 20):
        for flag, sign in TAKEN:
            net(gate_inputs(n, flag, sign))
    assert net.exe.shape_policy.fallback_seconds > 0
    assert not compiled_here


@pytest.mark.ci
def test_sizes_of_other_classes_are_compiled_beside_the_calls(
    path: Path, compiled_here: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("superopt.compilation.model.shape_policy.CLASS_WAIT", 0.0)
    net = Checked(path)
    net(gate_inputs(20, True))
    assert net.exe.wait(120)
    for n in (1, 2, 300):
        net(gate_inputs(n, True))
        assert net.exe.wait(120)
        before = net.exe.shape_policy.fallback_seconds
        for flag, sign in TAKEN:
            net(gate_inputs(n, flag, sign))
        assert net.exe.shape_policy.fallback_seconds == before
    assert not compiled_here


def test_what_onnxruntime_does_not_run_is_compiled_in_the_call(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Checked(path)
    net(gate_inputs(20, True))
    assert net.exe.wait(120)

    def refuses(*_: object) -> None:
        raise ModelError("onnxruntime does not load the model", "it is odd", "compile it")

    monkeypatch.setattr(FallbackCache, "find_session", lambda self: None)
    monkeypatch.setattr(Compiler, "fallback_variant", refuses)
    again = Checked(path)
    for n in (20, 300):
        for flag, sign in TAKEN:
            again(gate_inputs(n, flag, sign))
    assert again.exe.shape_policy.fallback is None


def test_a_call_compiles_if_asked(path: Path, compiled_here: list[dict[str, int]]) -> None:
    net = Checked(path, shapes=[])
    assert net.exe.waiting_child is None
    net(gate_inputs(20, True))
    assert compiled_here
    assert net.exe.shape_policy.fallback is None


@pytest.mark.parametrize("states", ["n", 8])
def test_a_loop_is_compiled_beside_the_calls(
    states: str | int, tmp_path: Path, compiled_here: list[dict[str, int]]
) -> None:
    onnx.save(gated_loop(64, "n"), tmp_path / "loop.onnx")
    net = Checked(tmp_path / "loop.onnx")
    rows = 8 if states == "n" else states
    for n in (3, 1, 9, 0):
        net({"x": draw(rows, 64, scale=1), "steps": np.array(n)})
    assert net.exe.wait(120)
    loop = net.exe.size_classes.any_control_flow
    assert loop is not None
    for n in (3, 1, 9, 0, 5):
        net({"x": draw(rows, 64, scale=1), "steps": np.array(n)})
    assert loop.run_programs({"x": draw(rows, 64, scale=1), "steps": np.array(7)}) is not None
    assert not compiled_here


def test_a_constant_condition_leaves_classes(tmp_path: Path) -> None:
    onnx.save(gated_model("always"), tmp_path / "m.onnx")
    net = Checked(tmp_path / "m.onnx")
    net(gate_inputs(20, True))
    assert net.exe.wait(120)
    for n in (20, 30):
        net(gate_inputs(n, True))
    assert net.exe.size_classes.any_sizes is None
    assert net.exe.size_classes.admits({"n": 30})


def counter_model() -> onnx.ModelProto:
    """A sum that an If adds to or subtracts from, and a product of it."""
    node = helper.make_node
    arms = {
        f"{name}_branch": branch([node(op, ["past", "x"], [name])], [name])
        for name, op in (("then", "Add"), ("else", "Sub"))
    }
    nodes = [
        node("If", ["up"], ["present"], **arms),
        node("MatMul", ["present", "w"], ["y"]),
    ]
    inputs = {
        "x": (FLOAT, ("n", 24)), "past": (FLOAT, ("n", 24)), "up": (TensorProto.BOOL, ()),
    }  # fmt: skip
    shapes = {"y": ("n", 24), "present": ("n", 24)}
    return sequence_model(nodes, inputs, [*shapes], {"w": draw(24, 24)}, shapes=shapes)


def test_states_are_kept_when_programs_take_over(
    tmp_path: Path, compiled_here: list[dict[str, int]]
) -> None:
    m = counter_model()
    onnx.save(m, tmp_path / "m.onnx")
    w = onnx.numpy_helper.to_array(m.graph.initializer[0])
    exe = superopt.compile(tmp_path / "m.onnx", threads=1)
    call = exe.bind_state({"present": "past"})
    total = np.zeros((20, 24), np.float32)
    for k in range(30):
        x, up = draw(20, 24, scale=1), k % 3 != 0
        total = total + x if up else total - x
        near(call.run({"x": x, "up": np.array(up)}), {"y": total @ w})
        np.testing.assert_allclose(call.state["past"], total, rtol=1e-5, atol=1e-5)
        if k == 10:
            assert exe.size_classes.any_sizes is None or exe.variants
            assert exe.wait(120)
            before = exe.shape_policy.fallback_seconds
    assert exe.size_classes.any_sizes is not None
    assert exe.shape_policy.fallback_seconds == before == 0
    assert not compiled_here


@pytest.mark.ci
def test_threads_while_programs_take_over(path: Path, compiled_here: list[dict[str, int]]) -> None:
    net = Checked(path)
    failed: list[BaseException] = []
    stop = threading.Event()

    def calls(seed: int) -> None:
        try:
            rng = np.random.default_rng(seed)
            while not stop.is_set():
                flag, sign = TAKEN[rng.integers(3)]
                net(gate_inputs(int(rng.integers(1, 80)), flag, sign))
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=calls, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    while net.exe.size_classes.any_sizes is None and not failed:
        net.exe.wait(1)
    stop.set()
    for t in threads:
        t.join(60)
    assert not failed
    assert net.exe.wait(120)
    for n in (1, 5, 64):
        for flag, sign in TAKEN:
            net(gate_inputs(n, flag, sign))
    assert net.exe.wait(120)
    assert not compiled_here
    for _ in range(2):
        for flag, sign in TAKEN:
            net(gate_inputs(0, flag, sign))
        assert net.exe.wait(120)


def test_a_bound_call_waits_for_its_programs(path: Path) -> None:
    net = Checked(path)
    feeds = gate_inputs(20, True)
    call = net.exe.bind(inputs=feeds)
    for sign in (1.0, -1.0):
        feeds["x"][...] = gate_inputs(20, True, sign)["x"]
        near(call(), dict(zip(call(), net.session.run(None, feeds), strict=True)))
    assert net.exe.size_classes.any_sizes is not None


def test_close_ends_the_child_that_compiles(path: Path) -> None:
    net = Checked(path)
    child = net.exe.waiting_child
    assert child is not None
    net(gate_inputs(20, True))
    net.exe.close()
    assert net.exe.wait(60)
    assert not child.is_running


def test_sizes_of_0_do_not_run_in_onnxruntime(tmp_path: Path) -> None:
    """It ends the process for an LSTM of an empty batch."""
    onnx.save(voice_detector(), tmp_path / "m.onnx")
    exe = superopt.compile(tmp_path / "m.onnx", threads=1)
    for _ in range(2):
        for rate in (16000, 8000):
            out = exe.run(detector_inputs(0, 600, rate))
            assert [x.shape for x in out.values()] == [(0, 1), (2, 0, 64)]
    assert not exe.shape_policy.fallback_times


@pytest.mark.parametrize("steps", [0, -1])
def test_a_loop_without_steps(steps: int, tmp_path: Path) -> None:
    onnx.save(gated_loop(64, "n"), tmp_path / "loop.onnx")
    net = Checked(tmp_path / "loop.onnx", shapes=[])
    for n in (3, steps, steps):
        net({"x": draw(1, 64, scale=1), "steps": np.array(n)})
