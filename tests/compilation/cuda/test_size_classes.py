"""Programs for classes of sizes on a GPU: which sizes they admit, what they compute there, and what
they share."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.compilation.cuda import code_generator
from superopt.compilation.cuda.segments import CachedProgram, SymbolicGpuSegment
from superopt.compilation.model.compile_class import compile_size_class
from superopt.compilation.model.size_classes import SizeClass, bind_size_class
from superopt.errors import UsageError
from superopt.kernels.cuda import driver as cuda_driver
from superopt.kernels.cuda.driver import Cuda
from superopt.kernels.runtime import sized_program
from superopt.kernels.runtime.sized_program import (
    DeviceSizedProgram,
    InterpretedSizedProgram,
    load_sized_on_device,
)
from tests.support.compilation.models import F, model, reference
from tests.support.gpu import fake_cuda
from tests.support.gpu.compilation import near
from tests.support.gpu.device import REAL, choose
from tests.support.gpu.models import drawn, node

pytestmark = pytest.mark.gpu
WIDTH = 32


@pytest.fixture(autouse=True)
def _device(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch)


def mlp() -> onnx.ModelProto:
    """A product, a softmax and a product, whose intermediate results are in memory."""
    nodes = [
        node("MatMul", "x", "w", "a"), helper.make_node("Softmax", ["a"], ["b"], axis=-1),
        node("MatMul", "b", "v", "c"), node("Add", "c", "x", "y"),
    ]  # fmt: skip
    weights = {"w": drawn(WIDTH, 48), "v": drawn(48, WIDTH, of="v")}
    return model(nodes, {"x": (F, ["n", WIDTH])}, ["y"], weights)


def attention() -> onnx.ModelProto:
    """One head of attention, and a norm, over a sequence of any length."""
    nodes = [
        node("MatMul", "x", "w", "q"), node("MatMul", "x", "v", "k"),
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 2, 1]), node("MatMul", "q", "t", "s"),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1), node("MatMul", "p", "x", "m"),
        helper.make_node("LayerNormalization", ["m", "g"], ["y"], axis=-1),
    ]  # fmt: skip
    weights = {"w": drawn(WIDTH, 16), "v": drawn(WIDTH, 16, of="v"), "g": drawn(WIDTH, of="g")}
    return model(nodes, {"x": (F, ["b", "s", WIDTH])}, ["y"], weights)


def convolution() -> onnx.ModelProto:
    """Two convolutions and a mean of each image of a batch."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4, strides=[2, 2]),
        node("Relu", "a", "b"), helper.make_node("Conv", ["b", "v"], ["c"], pads=[1] * 4),
        helper.make_node("MaxPool", ["c"], ["d"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", "d", "y"),
    ]  # fmt: skip
    weights = {"w": drawn(16, 3, 3, 3, scale=0.3), "v": drawn(24, 16, 3, 3, scale=0.1)}
    return model(nodes, {"x": (F, ["n", 3, 12, 12])}, ["y"], weights)


Sizes = Mapping[str, int]


def feeds(m: onnx.ModelProto, sizes: Sizes) -> dict[str, np.ndarray]:
    out = {}
    for v in m.graph.input:
        shape = [d.dim_value or sizes[d.dim_param] for d in v.type.tensor_type.shape.dim]
        out[v.name] = drawn(*shape, of=v.name)
    return out


def check(exe: superopt.Executable, m: onnx.ModelProto, sizes: Sizes) -> None:
    given = feeds(m, sizes)
    near(exe.run(given), reference(m, given), "fp32")


def is_of_class(exe: superopt.Executable, sizes: Sizes) -> bool:
    return exe.variants[tuple(sorted(sizes.items()))].is_of_class


ROWS = tuple({"n": n} for n in (37, 9, 16, 17, 64))
LENGTHS = tuple({"b": b, "s": s} for b, s in ((2, 20), (3, 9), (4, 15), (1, 31)))
IMAGES = tuple({"n": n} for n in (3, 2, 4))


@pytest.mark.parametrize(
    ("make", "sizes"), [(mlp, ROWS), (attention, LENGTHS), (convolution, IMAGES)],
    ids=["rows", "lengths", "images"],
)  # fmt: skip
def test_one_class_computes_all_sizes_that_it_admits(
    make: Callable[[], onnx.ModelProto], sizes: Sequence[Sizes]
) -> None:
    m = make()
    exe = superopt.compile(m, target="cuda")
    for at in (*sizes, *sizes[:2]):
        check(exe, m, at)
        assert is_of_class(exe, at)
    assert len(exe.size_classes.classes) == 1


def test_a_call_compiles_a_class_for_other_sizes() -> None:
    m = mlp()
    exe = superopt.compile(m, target="cuda")
    for count, n in ((1, 20), (2, 1), (3, 3), (4, 7), (4, 50), (4, 2), (4, 8)):
        check(exe, m, {"n": n})
        assert len(exe.size_classes.classes) == count


def test_no_more_classes_than_eager_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    m = mlp()
    exe = superopt.compile(m, target="cuda")
    exe.shape_policy.eager_sizes = 1
    check(exe, m, {"n": 20})
    exe.shape_policy.compile_seconds = [1e9]  # it never pays
    check(exe, m, {"n": 1})
    assert len(exe.size_classes.classes) == 1
    assert (("n", 1),) not in exe.variants  # it ran in ONNX Runtime


def test_results_of_fp16() -> None:
    m = mlp()
    exe = superopt.compile(m, target="cuda", precision="fp16")
    for n in (37, 9, 64):
        given = feeds(m, {"n": n})
        near(exe.run(given), reference(m, given), "fp16")
        assert is_of_class(exe, {"n": n})


def test_eager_compiles_each_size() -> None:
    m = mlp()
    exe = superopt.compile(m, target="cuda", specialize="eager")
    for n in (20, 21):
        check(exe, m, {"n": n})
        assert not is_of_class(exe, {"n": n})
    assert exe.size_classes.classes == []


def test_another_process_finds_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    m = mlp()
    path = tmp_path / "m.onnx"
    path.write_bytes(m.SerializeToString())
    built = []
    build = code_generator.build_sized_image

    def count_build(*given: Any) -> Any:
        built.append(1)
        return build(*given)

    monkeypatch.setattr(code_generator, "build_sized_image", count_build)
    for count in (1, 1):
        exe = superopt.compile(path, target="cuda")
        for n in (20, 64, 33):
            check(exe, m, {"n": n})
            assert is_of_class(exe, {"n": n})
        assert len(built) == count


def compiled_class(m: onnx.ModelProto, sizes: Sizes) -> tuple[superopt.Executable, SizeClass]:
    exe = superopt.compile(m, target="cuda")
    made = compile_size_class(exe.compiler, sizes)
    assert made is not None
    return exe, made


def step_of(made: SizeClass) -> SymbolicGpuSegment:
    (step,) = made.load_steps() or ()
    assert isinstance(step, SymbolicGpuSegment)
    return step


def test_classes_share_constants() -> None:
    """Weights are held once, whatever the number of classes and sizes."""
    m = mlp()
    weights = sum(int(np.prod(x.dims)) * 4 for x in m.graph.initializer)
    _, first = compiled_class(m, {"n": 20})
    _, second = compiled_class(m, {"n": 100})
    blocks: dict[int, int] = {}
    for made, n in ((first, 20), (first, 30), (second, 100)):
        blocks |= step_of(made).at_sizes({"n": n}).memory_blocks()
    if not REAL:
        one, two = (step_of(x).loaded for x in (first, second))
        assert isinstance(one, InterpretedSizedProgram)
        assert isinstance(two, InterpretedSizedProgram)
        assert {id(x) for x in one.constants.arrays} == {id(x) for x in two.constants.arrays}
        assert sum(x.nbytes for x in one.constants.arrays) == weights
    assert weights <= sum(blocks.values()) < 2 * weights + 10 * 100 * (2 * WIDTH + 48) * 4


def test_the_memory_of_a_model_counts_constants_once() -> None:
    """Calls at several sizes, of several classes, share the weights, and those of a class its
    memory; explaining it loads nothing."""
    m = mlp()
    weights = sum(int(np.prod(x.dims)) * 4 for x in m.graph.initializer)
    exe = superopt.compile(m, target="cuda")
    for n in (20, 30, 100, 200):
        check(exe, m, {"n": n})
        if n == 100:
            bind_size_class(exe, (("n", 200),), compile_new=True)
    steps = [s for v in exe.variants.values() for s in v.kernel_steps]
    classes = {s.program_identity for s in steps}
    assert len(steps) == 4
    found = exe.memory()
    assert found.weight_bytes == weights
    assert len(found.programs) == len(classes) == len(exe.size_classes.classes)
    assert all(p.weight_bytes == weights for p in found.programs)
    blocks: dict[int, int] = {}
    for s in steps:
        blocks |= s.work_blocks()
    assert sum(p.memory_bytes for p in found.programs) == sum(blocks.values())
    assert found.total_bytes == weights + sum(blocks.values()) + found.model_bytes
    assert exe.memory() == found


@pytest.mark.skipif(REAL, reason="the driver is none")
def test_the_memory_on_a_device_is_what_was_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants are those of both programs; memory is that of all sizes of a program."""
    _, made = compiled_class(mlp(), {"n": 20})
    step = step_of(made)
    assert step.code is not None
    assert step.constants is not None
    device = fake_cuda.Device()
    driver = fake_cuda.driver(device)
    for module in (cuda_driver, sized_program):
        monkeypatch.setattr(module, "load_driver", lambda: driver)
    allocated: dict[int, int] = {}
    allocate = Cuda.allocate

    def record_allocation(cuda: Cuda, size: int) -> Any:
        out = allocate(cuda, size)
        allocated[out.handle] = size
        return out

    monkeypatch.setattr(Cuda, "allocate", record_allocation)
    loaded = [load_sized_on_device(step.loaded.image, step.code, step.constants) for _ in range(2)]
    bound = []
    for p, n in ((loaded[0], 20), (loaded[0], 64), (loaded[0], 30), (loaded[1], 20)):
        known = step.formulas.at_sizes({"n": n})
        bound.append(p.at_sizes(known.words, known.memory_bytes))
    weights = sum(x.nbytes for x in step.constants.arrays)
    constants: dict[int, int] = {}
    work: dict[int, int] = {}
    for each in (*loaded, *bound):
        constants |= each.constant_blocks()
        work |= each.work_blocks()
    assert sum(constants.values()) == weights
    assert sum(constants.values()) + sum(work.values()) == sum(allocated.values())
    assert [p.identity == id(loaded[0]) for p in bound] == [True, True, True, False]


@pytest.mark.skipif(REAL, reason="the driver is none")
def test_launches_become_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first calls at given sizes launch kernels on the caller's stream. Memory grows, after
    which graphs that use the old memory are captured again. Constants are copied once."""
    m = mlp()
    _, made = compiled_class(m, {"n": 20})
    step = step_of(made)
    assert step.code is not None
    assert step.constants is not None
    known = step.formulas.at_sizes({"n": 20})
    device = fake_cuda.Device(
        image=step.loaded.image.at_sizes(known.words, known.memory_bytes).image
    )
    driver = fake_cuda.driver(device)
    for module in (cuda_driver, sized_program):
        monkeypatch.setattr(module, "load_driver", lambda: driver)
    loaded = [load_sized_on_device(step.loaded.image, step.code, step.constants) for _ in range(2)]
    assert device.calls["cuMemcpyHtoDAsync_v2"] == len(step.constants.arrays)
    (program, _) = loaded
    assert isinstance(program, DeviceSizedProgram)
    programs: dict[int, Any] = {}

    def call(n: int) -> None:
        if n not in programs:
            known = step.formulas.at_sizes({"n": n})
            programs[n] = program.at_sizes(known.words, known.memory_bytes)
        device.image, device.launched = programs[n].made.image, 0
        given = feeds(m, {"n": n})
        (out,) = programs[n].run([given["x"]], False)
        near({"y": out}, reference(m, given), "fp32")

    graphs = []
    for n in (20, 20, 20, 20, 30, 64, 20, 20, 20, 30, 64):
        call(n)
        graphs.append((n, programs[n].graph is not None, device.calls.get("cuGraphLaunch", 0)))
    assert [g[1] for g in graphs[:4]] == [False, False, True, True]
    assert graphs[6] == (20, True, 3)  # its memory has grown, so that it was captured again
    assert device.calls["cuStreamEndCapture"] == 2
    assert program.memory is programs[20].memory is programs[64].memory


def test_a_closed_model_holds_nothing() -> None:
    m = mlp()
    with superopt.compile(m, target="cuda") as exe:
        check(exe, m, {"n": 20})
        held = weakref.ref(step_of(exe.size_classes.classes[0]).loaded)
    gc.collect()
    assert held() is None
    with pytest.raises(UsageError, match="closed"):
        exe.run(feeds(m, {"n": 20}))


def test_outputs_of_another_size_stay() -> None:
    m = mlp()
    exe = superopt.compile(m, target="cuda")
    held = []
    for n in (64, 20, 64, 30, 20):
        found = exe.run(feeds(m, {"n": n}))
        held.append((n, found, {name: x.copy() for name, x in found.items()}))
    for _, found, copies in held:
        assert all(np.array_equal(found[name], copies[name]) for name in found)
    steps = [v.only_step for v in exe.variants.values()]
    assert all(isinstance(s, CachedProgram) for s in steps)
