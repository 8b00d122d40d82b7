"""Packed constants: each once, whatever reads it."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.loops.option import Option
from superopt.plan.lowering.derived_constants import derive_constant
from superopt.plan.program.constant_pool import CONSTANT_POOL, PackedConstants
from superopt.plan.selection.choose_kernels import Solution, Variant, fill_budget
from superopt.plan.selection.transformed_constants import TransformedConstants
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import Tensor
from tests.support.compilation.models import F, model, near

SIZE = 256
W = (np.random.default_rng(0).standard_normal((SIZE, SIZE)) / 16).astype(np.float32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def products(count: int, names: int = 1) -> onnx.ModelProto:
    """So many products with one weight, under so many names."""
    nodes, x = [], "x"
    for n in range(count):
        nodes.append(helper.make_node("MatMul", [x, f"w{n % names}"], [f"m{n}"]))
        nodes.append(helper.make_node("Tanh", [f"m{n}"], [f"t{n}"]))
        x = f"t{n}"
    return model(nodes, {"x": (F, ["n", SIZE])}, [x], {f"w{n}": W for n in range(names)})


def wanted(count: int, x: np.ndarray) -> np.ndarray:
    for _ in range(count):
        x = np.tanh(x @ W)
    return x


def constants(exe: superopt.Executable) -> list[PackedConstants]:
    return [s.code.constants for (s,) in exe.variants.values()]  # type: ignore[union-attr]


def unique_bytes(exe: superopt.Executable) -> int:
    every = (pair for c in constants(exe) for pair in zip(c.digests, c.arrays, strict=True))
    return sum(map(len, dict(every).values()))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("names", [1, 3])
@pytest.mark.parametrize("n", [3, 24, 25, 60, 128])  # whole, and by Strassen's parts
def test_one_weight_of_several_products_is_packed_once(n: int, names: int) -> None:
    one, many = (superopt.compile(products(k, names)) for k in (1, 6))
    x = np.random.default_rng(1).standard_normal((n, SIZE)).astype(np.float32)
    near(one(x=x), {"t0": wanted(1, x)})
    near(many(x=x), {"t5": wanted(6, x)})
    sizes = []
    for exe in (one, many):
        ((step,),) = exe.variants.values()
        sizes.append(step.code.program.constant_bytes)  # type: ignore[union-attr]
    assert sizes[0] == sizes[1]


def test_programs_for_several_sizes_share_arrays() -> None:
    exe = superopt.compile(products(4), specialize="eager")
    for n in (3, 5, 7, 24, 26):
        x = np.random.default_rng(n).standard_normal((n, SIZE)).astype(np.float32)
        near(exe(x=x), {"t3": wanted(4, x)})
    arrays: dict[str, set[int]] = {}
    for c in constants(exe):
        for digest, a in zip(c.digests, c.arrays, strict=True):
            arrays.setdefault(digest, set()).add(a.ctypes.data)
    assert all(len(places) == 1 for places in arrays.values())
    assert len(arrays) < sum(len(c.arrays) for c in constants(exe))


@pytest.mark.ci
def test_models_share_arrays_and_the_last_one_frees_them() -> None:
    first, second = (superopt.compile(products(k), shapes={"n": 4}) for k in (1, 2))
    ((a,), (b,)) = ([c.arrays[0] for c in constants(exe)] for exe in (first, second))
    assert a.ctypes.data == b.ctypes.data
    digest = constants(first)[0].digests[0]
    del a, b, first
    gc.collect()
    assert CONSTANT_POOL.get(digest) is not None
    del second
    gc.collect()
    assert CONSTANT_POOL.get(digest) is None


def test_one_file_on_disk_for_all_sizes(tmp_path: Path, own_cache: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(products(6), path)
    exe = superopt.compile(path, specialize="eager")
    for n in (3, 5, 7, 9):
        exe(x=np.ones((n, SIZE), np.float32))
    held = [f.stat().st_size for f in own_cache.glob("constants/*")]
    assert sum(held) == unique_bytes(exe)
    assert len(held) < 4


def test_a_second_process_maps_them(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(products(2), path)
    x = np.random.default_rng(1).standard_normal((4, SIZE)).astype(np.float32)
    superopt.compile(path, shapes={"n": 4})
    CONSTANT_POOL.arrays.clear()
    again = superopt.compile(path, shapes={"n": 4})
    near(again(x=x), {"t1": wanted(2, x)})
    (held,) = constants(again)
    assert not any(a.flags.writeable for a in held.arrays if len(a) >= W.nbytes)


def test_saved(tmp_path: Path) -> None:
    exe = superopt.compile(products(3), shapes={"n": 24})
    exe.save(tmp_path / "m.so")
    x = np.random.default_rng(1).standard_normal((24, SIZE)).astype(np.float32)
    near(superopt.load(tmp_path / "m.so")(x=x), {"t2": wanted(3, x)})


def choice(source: Tensor, times: int, name: str = "some") -> Choice:
    made = Tensor("made", F32, (times, *source.shape))
    return Choice(Option(name, ()), made, {}, (), derived_constants={made: (source, lambda a: a)})


def test_transformed_constants_have_a_budget() -> None:
    source = Tensor("w", F32, (1024, 4096))  # 16 MiB: 32 MiB more are allowed
    t = TransformedConstants({source: lambda: np.zeros((1024, 4096), np.float32)})
    assert t.fits("a", choice(source, 3))
    assert not t.fits("a", choice(source, 4))
    t.add("a", choice(source, 2))
    assert not t.fits("b", choice(source, 3))
    assert t.fits("b", choice(source, 2))
    t.add("b", choice(source, 2))
    assert not t.fits("c", choice(source, 2))
    again = choice(source, 2)
    assert t.fits("a", again)  # it is there
    t.add("a", again)
    loads = [t.constants[x] for x in again.derived_constants]
    assert loads[0] in t.transformed.values()
    assert len(t.transformed) == 2


def test_a_large_result_enlarges_the_budget() -> None:
    source = Tensor("w", F32, (1024, 4096))
    constants = {source: lambda: np.zeros((1024, 4096), np.float32)}
    t = TransformedConstants(constants, largest_result_bytes=48 << 20)
    assert t.fits("a", choice(source, 4))
    assert not t.fits("a", choice(source, 5))


def test_the_budget_goes_to_what_saves_most_for_each_byte() -> None:
    """The first problem saves little with much; the second is better off in between."""
    source = Tensor("w", F32, (2, 2))

    def variants(*some: tuple[float, int]) -> list[Variant]:
        problem = Problem(source, {}, (), 64)
        return [
            Variant(Solution(problem, "k", choice(source, growth + 1)), time, growth)
            for time, growth in some
        ]

    first, second = variants((100, 0), (90, 50)), variants((100, 0), (60, 10), (40, 60))
    for most, wanted in (
        (5, (0, 0)), (10, (0, 1)), (55, (0, 1)), (60, (0, 2)), (109, (0, 2)), (110, (1, 2)),
    ):  # fmt: skip
        found = fill_budget([first, second], most)
        assert found == [first[wanted[0]].solution, second[wanted[1]].solution], most


def test_convolutions_beyond_the_budget_have_smaller_tiles() -> None:
    """All of them in tiles of 4 x 4 need 4 times the bytes: some have tiles of 2 x 2, but none is
    direct, since smaller tiles fit."""
    count, channels = 4, 320
    rng = np.random.default_rng(0)
    held = {
        f"w{n}": rng.standard_normal((channels, channels, 3, 3)).astype(np.float32) / 50
        for n in range(count)
    }
    nodes = [
        helper.make_node("Conv", [f"t{n}", f"w{n}"], [f"t{n + 1}"], pads=[1] * 4)
        for n in range(count)
    ]
    m = model(nodes, {"t0": (F, [6, channels, 12, 12])}, [f"t{count}"], held)
    exe = superopt.compile(m)
    options = [k.how for k in exe.profile(seconds=0.05).parts if "winograd" in k.how]
    sides = [o.split("m=")[1][0] for o in options if ":" not in o]
    assert len(sides) == count
    assert {*sides} == {"2", "4"}


def test_the_budget_is_that_of_all_sizes() -> None:
    """Programs for further sizes add to what those before made; what is equal counts once."""
    source = Tensor("w", F32, (1024, 4096))  # 16 MiB: 32 MiB more are allowed

    def load() -> np.ndarray:
        return np.zeros((1024, 4096), np.float32)

    first = TransformedConstants({source: load})
    first.add("n=3", choice(source, 3))
    second = TransformedConstants({source: load})
    assert second.added_bytes == 32 << 20
    assert second.fits("n=4", choice(source, 3))  # by the same option
    assert not second.fits("n=4", choice(source, 2, "other"))
    assert TransformedConstants({source: lambda: load()}).fits("n=4", choice(source, 2, "other"))


def test_derived_constants_are_shared_while_they_are_held() -> None:
    def load() -> np.ndarray:
        return np.arange(6).reshape(2, 3)

    held = derive_constant(load, "turned", np.transpose)
    assert derive_constant(load, "turned", np.transpose) is held
    assert derive_constant(load, "negative", np.negative) is not held
    np.testing.assert_array_equal(held(), [[0, 3], [1, 4], [2, 5]])
    gone = weakref.ref(held)
    del held
    assert gone() is None
