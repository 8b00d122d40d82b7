"""`superopt.compile`: what it computes."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import superopt
from superopt import ort
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.cost import machine
from superopt.errors import ModelError, UsageError
from superopt.onnx_io.read.weightless import draw_weights
from superopt.plan.program.call_context import ALIGNMENT_BYTES, MIN_HUGE_PAGE_BYTES, aligned_zeros
from tests.support.compilation.models import (
    F,
    I,
    Model,
    in_parts,
    matmul,
    model,
    near,
    net,
    picture,
    reference,
)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_it_computes_the_model_at_any_size(threads: int) -> None:
    exe = superopt.compile(net("s"), threads=threads, specialize="eager")
    for n, size in ((1, 9), (2, 14), (1, 9), (3, 5)):
        x = picture(n, size)
        near(exe(x=x), reference(net("s"), {"x": x}))
    assert len(exe.variants) == 3  # one is used again
    assert all(isinstance(s, NativeSegment) for v in exe.variants.values() for s in v)


def halves() -> Model:
    """A picture beside what its halves give: of one size where that is even, which only numbers
    tell."""
    node = helper.make_node
    return model(
        [
            node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2], strides=[2, 2]),
            node("Resize", ["a", "", "s"], ["b"], mode="nearest"),
            node("Concat", ["b", "x"], ["c"], axis=1),
            node("Softmax", ["c"], ["y"], axis=1),
        ],
        {"x": (F, ["n", 3, "h", "h"])},
        ["y", "a"],
        {"s": np.array([1, 1, 2, 2], np.float32)},
    )


def test_sizes_that_fit_only_as_numbers_have_kernels(tmp_path: Path) -> None:
    exe = superopt.compile(halves(), specialize="eager")
    for n, size in ((1, 8), (2, 14), (1, 8)):
        x = picture(n, size)
        near(exe(x=x), reference(halves(), {"x": x}))
    assert len(exe.variants) == 2
    assert all(isinstance(s, NativeSegment) for v in exe.variants.values() for s in v)
    assert not exe.fallback_nodes({"n": 1, "h": 8})
    assert "y" in str(exe.profile({"x": picture(2, 14)}, seconds=0.01))
    exe.save(tmp_path / "model.superopt")
    again = superopt.load(tmp_path / "model.superopt")
    np.testing.assert_array_equal(again(x=x)["y"], exe(x=x)["y"])
    assert again.variants.keys() == exe.variants.keys()
    exe.export(tmp_path / "c", shapes={"n": 1, "h": 8})


def test_sizes_may_stay_symbolic() -> None:
    """An input that is an output, too, and is said to have any size there."""
    m = model([helper.make_node("NonZero", ["x"], ["y"])], {"x": (F, [2, 3]), "z": (I, [5])}, ["y"])
    m.graph.output.append(helper.make_tensor_value_info("z", I, ["a"]))
    x, z = np.ones((2, 3), np.float32), np.arange(5)
    exe = superopt.compile(m)
    assert exe(x=x, z=z)["y"].shape == (2, 6)
    assert exe.executable_for({"a": 5}) is exe


def test_results_stay_the_same_and_are_the_caller_s() -> None:
    """Borders and memory that is used again hold nothing of an earlier call."""
    exe = superopt.compile(net(9))
    first = exe(x=picture(1, 9))
    kept = {k: v.copy() for k, v in first.items()}
    exe(x=np.full((1, 3, 9, 9), np.nan, np.float32))
    again = exe(x=picture(1, 9))
    for name, a in kept.items():
        np.testing.assert_array_equal(again[name], a)
        np.testing.assert_array_equal(first[name], a)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_borders_are_zeros_in_memory_that_was_another_s(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[int] = []
    for least in (1 << 60, 0):
        monkeypatch.setattr("superopt.plan.program.buffer_assignment.MIN_CLEARED_BYTES", least)
        monkeypatch.setattr("superopt.plan.program.buffer_assignment.MIN_CLEAR_SAVING", 0)
        exe = superopt.compile(net(19), threads=threads, specialize="eager")
        wanted = reference(net(19), {"x": picture(1, 19)})
        near(exe(x=picture(1, 19)), wanted)
        exe(x=np.full((1, 3, 19, 19), np.nan, np.float32))
        near(exe(x=picture(1, 19)), wanted)
        (steps,) = exe.variants.values()
        kinds.append(len(steps[0].code.program.calls))  # type: ignore[union-attr]
    assert kinds[0] < kinds[1]


def test_several_threads_may_call_it() -> None:
    exe = superopt.compile(net(9), threads=2)
    wanted = exe(x=picture(1, 9))["y"]
    wrong: list[np.ndarray] = []

    def call() -> None:
        for _ in range(20):
            got = exe(x=picture(1, 9))["y"]
            if not np.array_equal(got, wanted):
                wrong.append(got)

    some = [threading.Thread(target=call) for _ in range(4)]
    for t in some:
        t.start()
    for t in some:
        t.join(60)
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_has_threads_of_its_own() -> None:
    exe = superopt.compile(net(9), threads=2)
    wanted = exe(x=picture(1, 9))["y"]
    child = os.fork()
    if not child:
        same = np.array_equal(exe(x=picture(1, 9))["y"], wanted)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(exe(x=picture(1, 9))["y"], wanted)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("made", [lambda: net(9), in_parts], ids=["whole", "in parts"])
def test_a_fork_waits_for_no_thread_that_is_not_in_it(made: Callable[[], Model]) -> None:
    exe = superopt.compile(made())
    for _ in range(2):
        wanted = exe(x=picture(1, 9))["y"]
    begun, end = threading.Event(), threading.Event()

    def call() -> None:
        with exe.lock:
            begun.set()
            end.wait(60)

    other = threading.Thread(target=call)
    other.start()
    begun.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(20)
        same = np.array_equal(exe(x=picture(1, 9))["y"], wanted)
        os._exit(0 if same else 1)
    end.set()
    other.join(60)
    assert os.waitpid(child, 0)[1] == 0


def test_sizes_that_take_much_memory_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    exe = superopt.compile(matmul(), specialize="eager")
    x = np.ones((9, 4), np.float32)
    for n in (1, 2, 3, 1):
        exe(x=x[:n])
    assert [dict(k)["n"] for k in exe.variants] == [2, 3, 1]
    monkeypatch.setattr(machine, "memory_bytes", lambda: 1)
    for n in (4, 2, 1):
        np.testing.assert_array_equal(exe(x=x[:n])["y"], np.tile([12, 16], (n, 1)))
        assert [dict(k)["n"] for k in exe.variants] == [n]


@pytest.mark.parametrize("size", [1, 100, MIN_HUGE_PAGE_BYTES, 3 * MIN_HUGE_PAGE_BYTES + 5])
def test_memory_is_zeros_and_a_process_s_own(size: int) -> None:
    held = aligned_zeros(size)
    assert held.shape == (size,)
    assert not held.any()
    assert held.ctypes.data % ALIGNMENT_BYTES == 0
    child = os.fork()
    if not child:
        held[:] = 1
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not held.any()


def test_no_copies_of_machine_code() -> None:
    exe = superopt.compile(matmul())
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(UsageError, match="use save and superopt"):
            copied(exe)  # type: ignore[operator]


def test_constants_and_inputs_may_be_outputs() -> None:
    m = model(
        [helper.make_node("Identity", ["w"], ["y"]), helper.make_node("Identity", ["x"], ["z"])],
        {"x": (F, [2, 3])},
        ["y", "z"],
        {"w": np.arange(3, dtype=np.float32)},
    )
    x = np.ones((2, 3), np.float32)
    got = superopt.compile(m)(x=x)
    np.testing.assert_array_equal(got["y"], [0, 1, 2])
    np.testing.assert_array_equal(got["z"], x)
    assert not np.shares_memory(got["z"], x)


def test_other_targets_and_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="target tpu is unknown"):
        superopt.compile(matmul(), target="tpu")
    for threads in (0, 1025, 1.5, "2", True):
        with pytest.raises(UsageError, match=f"threads {threads!r}"):
            superopt.compile(matmul(), threads=threads)  # type: ignore[arg-type]
    for feeds in (None, [1]):
        with pytest.raises(UsageError, match="inputs are given by name"):
            superopt.compile(matmul()).run(feeds)  # type: ignore[arg-type]
    with pytest.raises(ModelError):
        superopt.compile(tmp_path / "none.onnx")


SMALL = ("squeezenet1_1", "nasrnn", "two_tower", "mobilenet_v2", "llama_block", "resnet18_dynamic")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SMALL)
def test_real_models(name: str, weightless_models: dict[str, Path]) -> None:
    made = draw_weights(weightless_models[name])
    rng = np.random.default_rng(0)
    session = ort.load_session(made.SerializeToString())
    feeds = {}
    for port in session.inputs:
        shape = [d if isinstance(d, int) else 2 for d in port.shape]
        whole = "int64" in port.type
        feeds[port.name] = (
            rng.integers(0, 2, shape) if whole else rng.standard_normal(shape).astype(np.float32)
        )
    exe = superopt.compile(made)
    near(exe.run(feeds), ort.run(session, feeds))
    assert all(isinstance(s, NativeSegment) for v in exe.variants.values() for s in v)


def test_without_tiles_and_folded_weights_where_floats_must_not_change_so_much() -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((64, 64, 3, 3)).astype(np.float32) / 24,
        **{n: np.abs(rng.standard_normal(64)).astype(np.float32) + 0.5 for n in "sbmv"},
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["y"]),
    ]
    m = model(nodes, {"x": (F, [1, 64, 16, 16])}, ["y"], weights)
    x = rng.standard_normal((1, 64, 16, 16)).astype(np.float32)
    found = {}
    for float_class in ("E1", "E2"):
        exe = superopt.compile(m, float_class=float_class)
        near(exe(x=x), reference(m, {"x": x}))
        (step,) = exe.variants[()]
        assert isinstance(step, NativeSegment)
        found[float_class] = {o.algorithm for o in step.code.program.options.values()}
    assert "winograd" in found["E2"] - found["E1"]
    with pytest.raises(UsageError, match="float_class"):
        superopt.compile(m, float_class="E0")


def test_a_window_that_is_larger_than_what_it_goes_over() -> None:
    nodes = [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[9], strides=[3])]
    m = model(nodes, {"x": (F, [1, 1, "n"])}, ["y"], {})
    exe = superopt.compile(m, specialize="eager")
    assert exe.run({"x": np.ones((1, 1, 9), np.float32)})["y"].shape == (1, 1, 1)
    with pytest.raises(ModelError, match=r"y has shape \[1, 1, -1\]"):
        exe.run({"x": np.ones((1, 1, 4), np.float32)})


def test_sizes_for_which_there_is_no_memory() -> None:
    exe = superopt.compile(net("s"))
    with pytest.raises(ModelError, match=r"out of memory at .*s=3000000"):
        exe.variant({"n": 1, "s": 3_000_000})


def test_what_python_shows_of_it() -> None:
    exe = superopt.compile(net("s"))
    assert repr(exe) == "<Executable (x: f32[n, 3, s, s]) => (y, d), threads=1>"
