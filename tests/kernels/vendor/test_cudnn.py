"""Convolutions by the vendor's library: in Triton's interpreter torch computes the same on the
processor; on the GPU itself, by cuDNN, where the environment has SUPEROPT_TEST_GPU=1."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import superopt
from superopt.compilation.cuda import load_compiler, tune_kernels
from superopt.compilation.cuda.device import DOT_PRECISIONS
from superopt.cost import tuning_records
from superopt.cost.gpu_features import problem_numbers
from superopt.cost.store import Store
from superopt.kernels.algorithms import space
from superopt.kernels.algorithms.gpu.vendor_convolution import match_convolution
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime import loaded_image
from superopt.kernels.runtime.gpu_device import device_name
from superopt.kernels.triton.module import VendorFunction, vendor_name
from superopt.kernels.vendor.cudnn import parse_convolution
from superopt.onnx_io.read.source import read_model
from tests.support.compilation.cache import written
from tests.support.compilation.models import F, model, reference
from tests.support.gpu import fake_cuda
from tests.support.gpu.cache import by_driver
from tests.support.gpu.compilation import UNITS, feeds, near
from tests.support.gpu.device import REAL, cached_programs
from tests.support.gpu.models import conv, drawn, gemms, node
from tests.support.gpu.vendor import libraries, taken

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


def of_rank(*extents: int, window: int = 3, **how: Any) -> onnx.ModelProto:
    w = drawn(24, 16, *[window] * len(extents), scale=(16 * window ** len(extents)) ** -0.5)
    nodes = [node("Conv", "x", "w", "y", pads=[1] * 2 * len(extents), **how)]
    return model(nodes, {"x": (F, [2, 16, *extents])}, ["y"], {"w": w})


def behind(*ops: str, residual: bool = False) -> onnx.ModelProto:
    """A convolution with a bias, and what comes after it; another one reads that."""
    steps = (["Add"] if residual else []) + list(ops)
    nodes = [node("Conv", "x", "w", "b", "t0", pads=[1] * 4)]
    for n, op in enumerate(steps):
        more = ["x"] if op == "Add" else ["low", "high"] if op == "Clip" else []
        nodes.append(node(op, f"t{n}", *more, f"t{n + 1}"))
    nodes.append(node("Conv", f"t{len(steps)}", "v", "y"))
    known = {
        "w": drawn(16, 16, 3, 3, scale=0.1), "b": drawn(16), "v": drawn(16, 16, 2, 2, scale=0.1),
        "low": drawn(1)[0] * 0, "high": drawn(1)[0] * 0 + 6,
    }  # fmt: skip
    used = {i for n in nodes for i in n.input}
    return model(
        nodes, {"x": (F, [2, 16, 7, 9])}, ["y"], {k: v for k, v in known.items() if k in used}
    )


def innermost() -> onnx.ModelProto:
    """Pictures that are given with channels as their last dimension, as between others, and by
    shapes that say so."""
    nodes = [
        node("Transpose", "x", "t", perm=[0, 3, 1, 2]), node("Conv", "t", "w", "c", pads=[1] * 4),
        node("Transpose", "c", "y", perm=[0, 2, 3, 1]),
    ]  # fmt: skip
    m = model(nodes, {"x": (F, [2, 8, 9, 16])}, ["y"], {"w": drawn(24, 8, 3, 3, scale=0.1)})
    m.graph.node[1].attribute.append(onnx.helper.make_attribute("group", 2))
    return m


def alone() -> onnx.ModelProto:
    """Nothing is made of the first one's sums, so that they are written where they belong."""
    nodes = [node("Conv", "x", "w", "a", pads=[1] * 4), node("Conv", "a", "v", "y", pads=[1] * 4)]
    known = {"w": drawn(24, 16, 3, 3, scale=0.1), "v": drawn(16, 24, 3, 3, scale=0.1)}
    return model(nodes, {"x": (F, [1, 16, 8, 8])}, ["y"], known)


def one_picture() -> onnx.ModelProto:
    """Which picture it is nobody says, where a side that is a projection is added to."""
    nodes = [
        node("Conv", "x", "w", "a", pads=[1] * 4, strides=[2, 2]), node("Relu", "a", "r"),
        node("Conv", "r", "u", "c", pads=[1] * 4), node("Conv", "x", "v", "d", strides=[2, 2]),
        node("Add", "c", "d", "e"), node("Relu", "e", "y"),
    ]  # fmt: skip
    known = {"w": drawn(24, 16, 3, 3, scale=0.1), "u": drawn(24, 24, 3, 3, scale=0.1),
             "v": drawn(24, 16, 1, 1, scale=0.2)}  # fmt: skip
    return model(nodes, {"x": (F, [1, 16, 8, 8])}, ["y"], known)


# What is asked for, by what of Convolution; and how many steps the library computes.
OFFERED: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, Any], int]] = {
    "plain": (lambda: conv(16, 24, 9, 3, pads=[1] * 4), {"pad": (1, 1)}, 1),
    "unpadded": (lambda: conv(16, 24, 9, 3), {"pad": (0, 0), "output_shape": (24, 7, 7)}, 1),
    "a step of two": (
        lambda: conv(16, 24, 9, 3, pads=[1] * 4, strides=[2, 2]), {"stride": (2, 2)}, 1
    ),
    "steps and pads by sides": (
        lambda: conv(16, 24, 12, 3, pads=[1, 0, 1, 0], strides=[2, 3]),
        {"stride": (2, 3), "pad": (1, 0)}, 1,
    ),
    "zeros at the end that nobody reads": (
        lambda: conv(16, 24, 12, 3, pads=[1, 1, 0, 0], strides=[2, 2]), {"pad": (1, 1)}, 1
    ),
    "dilated": (
        lambda: conv(32, 16, 12, 3, pads=[2] * 4, dilations=[2, 2]), {"dilation": (2, 2)}, 1
    ),
    "an even window": (lambda: conv(16, 24, 9, 2), {"window": (2, 2)}, 1),
    "in groups": (lambda: conv(24, 36, 8, 3, group=3), {"groups": 3}, 1),
    "in many groups": (lambda: conv(24, 48, 8, 3, group=12, pads=[1] * 4), {"groups": 12}, 1),
    "depthwise": (lambda: conv(24, 24, 9, 3, group=24, pads=[1] * 4), {"groups": 24}, 1),
    "depthwise, of two each": (lambda: conv(12, 24, 9, 3, group=12), {"groups": 12}, 1),
    "of few channels": (  # whose copy has the zeros
        lambda: conv(3, 20, 13, 5, strides=[2, 2], pads=[2] * 4),
        {"pad": (0, 0), "input_shape": (1, 3, 17, 17)}, 1,
    ),
    "pointwise by steps": (lambda: conv(16, 24, 9, 1, strides=[2, 2]), {"window": (1, 1)}, 1),
    "of rows": (lambda: of_rank(50), {"window": (3,), "input_shape": (2, 16, 50)}, 1),
    "of volumes": (lambda: of_rank(5, 6, 7), {"window": (3, 3, 3)}, 1),
    "relu": (lambda: behind("Relu"), {}, 2),
    "a residual": (lambda: behind("Relu", residual=True), {}, 2),
    "clipped": (lambda: behind("Clip"), {}, 2),
    "a sigmoid": (lambda: behind("Sigmoid"), {}, 2),
    "alone": (alone, {}, 2),
    "channels last": (innermost, {"input_shape": (2, 16, 8, 9), "groups": 2}, 1),
    "of one picture that is added to": (one_picture, {"stride": (2, 2)}, 3),
}  # fmt: skip


@pytest.mark.round_robin(4)
@pytest.mark.parametrize("precision", DOT_PRECISIONS)
@pytest.mark.parametrize("name", OFFERED)
def test_the_library_computes_the_same(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if REAL:  # where sums may be formed as Winograd's are, which are rounded more often
        monkeypatch.setitem(UNITS, "fp32", 1e-5)
    make, asked, count = OFFERED[name]
    m = make()
    taken(monkeypatch)
    exe = load_compiler.compile_model(read_model(m), precision)
    near(exe.run(feeds(m)), reference(m, feeds(m)), precision)
    found = list(map(parse_convolution, libraries(exe)))
    assert len(found) == count
    assert {k: getattr(found[0], k) for k in asked} == asked


REFUSED: dict[str, Callable[[], onnx.ModelProto]] = {
    "more zeros at the end": lambda: conv(16, 24, 12, 3, pads=[0, 0, 1, 1], strides=[2, 2]),
    "more zeros at the beginning": lambda: conv(16, 24, 9, 3, pads=[2, 2, 1, 1]),
    "weights that are no constant": lambda: model(
        [node("Conv", "x", "w", "y")], {"x": (F, [1, 16, 9, 9]), "w": (F, [24, 16, 3, 3])}, ["y"],
        {},
    ),
    "some of the channels": lambda: model(
        [node("Slice", "x", "b", "e", "c", "a"), node("Conv", "a", "w", "y")],
        {"x": (F, [1, 32, 9, 9])}, ["y"],
        {"w": drawn(24, 16, 3, 3), "b": np.array([0]), "e": np.array([16]), "c": np.array([1])},
    ),
    "pooled": lambda: model(
        [node("AveragePool", "x", "y", kernel_shape=[2, 2])], {"x": (F, [1, 16, 9, 9])}, ["y"], {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_library_has_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    m = REFUSED[name]()
    taken(monkeypatch)
    exe = load_compiler.compile_model(read_model(m), "fp16")
    near(exe.run(feeds(m)), reference(m, feeds(m)), "fp16")
    assert not libraries(exe)


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_each_way_of_the_librarys(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own search among its ways is another option, which is written down as others are."""
    m = OFFERED["plain"][0]()
    (p,) = (
        p for p in load_compiler.compile_model(read_model(m), precision).variant({}).program
        .problems.values()
        if match_convolution(p) is not None
    )  # fmt: skip
    some = list(space.options(p, "cuda"))
    assert list(map(str, some[1:3])) == ["vendor", "vendor autotuned=1"]
    assert some[0].algorithm == "gemm"
    assert not any(o.algorithm == "vendor" for o in space.options(p, "cuda", vendor=False))
    assert not any(o.algorithm == "vendor" for o in space.options(p, "cuda", forms=False))
    for o in some[1:3]:
        assert space.choose(p, Option.parse(str(o)), target="cuda").option == o
        assert space.choose(p, o, vendor=False, target="cuda").option == some[0]
    taken(monkeypatch, tried=True)
    exe = load_compiler.compile_model(read_model(m), precision)
    near(exe.run(feeds(m)), reference(m, feeds(m)), precision)
    assert [parse_convolution(x).autotune for x in libraries(exe)] == [True]


def test_they_are_measured_where_ours_are_ranked() -> None:
    """What was learned of our kernels says nothing of the library's, which are measured first."""
    p = next(
        p for p in load_compiler.compile_model(read_model(conv(16, 24, 9, 3)), "fp16").variant({})
        .program.problems.values() if match_convolution(p) is not None
    )  # fmt: skip
    ranking: Any = SimpleNamespace(order=lambda numbers, some: some[::-1])
    plain, ranked = (
        tune_kernels._ordered_options(p, partial(space.options, target="cuda"), x, 12)
        for x in (None, ranking)
    )
    assert ranked[:3] == plain[:3]
    assert ranked[1].algorithm == "vendor"
    assert ranked[3:] != plain[3:]


def test_sums_stay_sums_where_they_are_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN may compute them as Winograd does, which float class E1 has not; cuBLAS does not."""
    taken(monkeypatch)
    for m, count in ((behind("Relu"), 0), (gemms(), 2)):
        exe = load_compiler.compile_model(read_model(m), "fp32", "E1")
        assert len(libraries(exe)) == count


def test_a_profile_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    taken(monkeypatch)
    for m, wanted in ((behind("Relu"), "cuDNN"), (gemms(), "cuBLAS")):
        exe = load_compiler.compile_model(read_model(m), "fp32")
        parts = exe.profile(feeds(m), seconds=0.01).parts
        some = [p.how for p in parts if wanted in p.how]
        assert set(some) == {f"vendor: {wanted}, its first step", f"vendor: {wanted}"}
        assert len(some) == len(libraries(exe)) == 2
        assert all(p.operations for p in parts if wanted in p.how)
        assert "vendor" in {p.how for p in parts}  # what is made of the sums is ours


def test_it_is_saved(tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    m = behind("Relu", residual=True)
    with monkeypatch.context() as patch:
        taken(patch)
        exe = superopt.compile(m, target="cuda", precision="fp16")
        wanted = exe.run(feeds(m))
    exe.save(tmp_path / "m.superopt")
    again = superopt.load(tmp_path / "m.superopt")
    got = again.run(feeds(m))
    assert libraries(again) == libraries(exe) != []
    assert all(np.array_equal(got[k], wanted[k]) for k in wanted)


def test_the_store_says_it(tmp_path: Path, empty_cache: Path) -> None:
    """What was found to be the fastest is taken by who compiles next; unless it may not be: the
    fastest of what may."""
    m = behind("Relu")
    made = superopt.compile(m, target="cuda", precision="fp16")
    ours: dict[str, Option] = {}
    with Store.open(tmp_path / "s") as store:
        on = tuning_records.gpu_target(
            device_name(made.device.torch_device), made.device.dot_precision
        )
        for key, p in made.variant({}).program.problems.items():
            if match_convolution(p) is not None:
                *_, ours[key] = (o for o in space.options(p, "cuda") if o.algorithm != "vendor")
                times = {Option.make("vendor"): (1e-6, 1e-6, 1e-6, 1)}
                tuning_records.store_times(store, on, key, problem_numbers(p), times)
                tuning_records.store_times(
                    store, on, key, problem_numbers(p), {ours[key]: (2e-6, 2e-6, 2e-6, 1)}
                )
    for may, count in ((True, 2), (False, 0)):
        exe = superopt.compile(m, target="cuda", precision="fp16", vendor=may, store=tmp_path / "s")
        near(exe.run(feeds(m)), reference(m, feeds(m)), "fp16")
        assert len(libraries(exe)) == count
    sums = superopt.compile(
        m, target="cuda", precision="fp16", float_class="E1", store=tmp_path / "s"
    )  # where cuDNN may not compute them
    for made in (exe, sums):
        assert ours.items() <= made.variant({}).program.options.items()


def test_it_is_found_again(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file that was compiled before the image has it, too."""
    taken(monkeypatch)
    m = behind("Relu")
    path = written(tmp_path / "m.onnx", m)
    found = [superopt.compile(path, target="cuda", precision="bf16") for _ in range(2)]
    for _ in range(2):
        np.testing.assert_array_equal(*(exe.run(feeds(m))["y"] for exe in found))
    (ready,) = cached_programs(found[1])
    assert sum(f.name.startswith("conv ") for f in ready.loaded.image.functions) == 2


@pytest.mark.skipif(REAL, reason="in place of the driver that there is")
@pytest.mark.parametrize("rank", [1, 2])
def test_by_the_driver(
    rank: int, tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library runs on the stream that is the program's, and what it takes of torch's memory
    while it is recorded stays the program's."""
    import torch

    taken(monkeypatch)
    m = behind("Relu") if rank == 2 else of_rank(50)
    path = written(tmp_path / "m.onnx", m)
    wanted = superopt.compile(path, target="cuda", precision="fp16").run(feeds(m))
    device, pools, streams = fake_cuda.Device(), [object()], [0]
    run = VendorFunction.run

    def asked(self: VendorFunction, *given: Any, **how: Any) -> None:
        assert (len(pools) == 2) == (device.recording is not None)
        assert streams[-1] in device.live
        device.asked(partial(run, self, *given))

    def tensor(arena: Any, at: int, size: int, kind: str) -> Any:
        part, offset = arena.find(at)
        held = (ctypes.c_uint8 * size).from_address(part.handle + offset)
        return torch.frombuffer(held, dtype=getattr(torch, kind))

    @contextmanager
    def among(some: list[Any], x: Any) -> Iterator[None]:
        some.append(x)
        yield
        some.pop()

    monkeypatch.setattr(VendorFunction, "run", asked)
    monkeypatch.setattr(loaded_image, "_tensor", tensor)
    monkeypatch.setattr(torch.cuda, "MemPool", lambda: pools[0])
    monkeypatch.setattr(torch.cuda, "use_mem_pool", partial(among, pools))
    monkeypatch.setattr(torch.cuda, "ExternalStream", int)
    monkeypatch.setattr(torch.cuda, "stream", partial(among, streams))
    exe = by_driver(path, monkeypatch, device)
    for _ in range(2):
        np.testing.assert_array_equal(exe.run(feeds(m))["y"], wanted["y"])
    (ready,) = cached_programs(exe)
    assert pools[0] in ready.loaded.owners
    ready = None
    exe.variants.clear()
    exe.last_call = None
    gc.collect()
    assert not device.live


def test_its_text() -> None:
    text = "conv 16x64x56x56 128x28x28 3x3 2x2 1x1 1x1 1 0"
    assert str(parse_convolution(text)) == text
    assert parse_convolution(text).input_shape == (16, 64, 56, 56)
    assert vendor_name(text) == "cuDNN"
    for wrong in ("mm 3 4 5", "conv 1 2 3", text + " 0"):
        with pytest.raises(ValueError, match="is not a convolution, such as conv"):
            parse_convolution(wrong)
