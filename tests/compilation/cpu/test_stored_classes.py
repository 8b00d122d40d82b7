"""Classes of sizes with several steps, in the disk cache."""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.api import open_model
from superopt.compilation.fallback.session_segment import OrtSegment
from superopt.compilation.model.classes.runtime_sizes import RuntimeSizedSegment
from superopt.compilation.model.compiler import Compiler
from superopt.compilation.model.control_flow import dynamic_loop
from superopt.compilation.model.steps import KernelStep
from superopt.errors import ModelError
from superopt.plan.graph import partition
from superopt.plan.program.constant_pool import CONSTANT_POOL
from tests.support.compilation.branch_models import (
    RATES,
    detector_inputs,
    gate_inputs,
    gated_model,
    voice_detector,
)
from tests.support.compilation.cache import at_rest, written
from tests.support.compilation.loop_models import cell, cell_inputs
from tests.support.compilation.models import F, model
from tests.support.compilation.size_patterns import (
    pattern_feeds,
    pattern_model,
    read_patterns,
    size_names,
)

pytest.importorskip("onnxruntime")
SIZES = (1, 2, 3, 5, 8, 16, 31, 64, 65, 130)
CALLS = 8
GATES = ("many", "positive", "flag")
Feeds = dict[str, np.ndarray]
EXAMPLE = 16
WIDTH = 512
# Parts in onnxruntime, sizes that only a run gives, and sizes in place of others.
PATTERNS = {**read_patterns("part_patterns.txt"), **read_patterns("size_patterns.txt")}
SUBSTITUTED = ("slice last k", "split num", "reshape windows")
ALL_KERNELS = (*SUBSTITUTED, "dft", "cumsum mask")  # for the example's level
STORED = dict.fromkeys((*read_patterns("part_patterns.txt"), *ALL_KERNELS))
LIGHT = """
import sys, numpy, superopt
exe = superopt.compile(sys.argv[1], threads=1)
out = exe.run(dict(numpy.load(sys.argv[2])))
heavy = "onnx onnx_ir z3 sympy superopt.ir.graph superopt.compilation.model.compiler".split()
assert not [name for name in heavy if name in sys.modules]
numpy.savez(sys.argv[3], **out)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(partition, "SWITCH_US", 0.0)  # kernels for the smallest parts, too
    return at_rest(tmp_path, monkeypatch)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows whenever a class is compiled."""
    calls: list[object] = []
    own = Compiler.compile_class

    def count(c: Compiler, sizes: dict[str, int], only_empty: bool = False) -> object:
        calls.append(sizes)
        return own(c, sizes, only_empty)

    monkeypatch.setattr(Compiler, "compile_class", count)
    return calls


def forbid_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whatever loads the compiler of a file fail, as in another process."""

    def fail(*_: object) -> Compiler:
        raise AssertionError("the compiler is loaded")

    monkeypatch.setattr(open_model, "make_compiler", fail)
    CONSTANT_POOL.arrays.clear()


def assert_equal(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    for name, a in wanted.items():
        np.testing.assert_array_equal(got[name], a)
        assert got[name].dtype == a.dtype


@pytest.mark.parametrize("name", STORED)
def test_a_stored_class_gives_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At all sizes that it admits, which are the same; without the compiler."""
    m = pattern_model(*PATTERNS[name])
    path = written(tmp_path / "m.onnx", m)
    names, rng = size_names(m), np.random.default_rng(zlib.crc32(name.encode()))
    first = superopt.compile(path, threads=1, shapes=())
    first.run(pattern_feeds(m, dict.fromkeys(names, EXAMPLE), rng))
    made = first.size_classes.classes[0]
    forbid_compiler(monkeypatch)
    again = superopt.compile(path, threads=1, shapes=())
    kinds = []
    drawn = [{d: int(rng.choice(SIZES)) for d in names} for _ in range(CALLS)]
    for sizes in (dict.fromkeys(names, EXAMPLE), dict.fromkeys(names, 2 * EXAMPLE), *drawn):
        given = pattern_feeds(m, sizes, rng)
        stored = again.size_classes.variant(sizes)
        assert (stored is not None) == made.formulas.admits(sizes)
        if stored is not None and (own := made.variant(sizes)) is not None:
            try:
                wanted = first.run_variant(own, first.input_arrays(given), on_device=False)
            except ModelError:  # the model has no result for these inputs
                continue
            for _ in range(2):
                assert_equal(again.run(given), wanted)
            assert [type(s) for s in stored] == [type(s) for s in own]
            kinds += [type(s) for s in stored]
    assert kinds
    assert name in ALL_KERNELS or {OrtSegment, RuntimeSizedSegment} & {*kinds}


def masked_table(rows: int | str = "n") -> onnx.ModelProto:
    """A product; rows of a large table by a mask, in onnxruntime; and a product of these."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8,
        "table": rng.standard_normal((2 * WIDTH, WIDTH)).astype(np.float32),
        "zero": np.array([0]),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("ReduceMax", ["a"], ["b"], axes=[1], keepdims=0),
        helper.make_node("Greater", ["b", "bound"], ["m"]),
        helper.make_node("Compress", ["table", "m"], ["t"], axis=0),
        helper.make_node("MatMul", ["t", "w"], ["y"]),
    ]
    weights["bound"] = np.array(0.9, np.float32)
    return model(nodes, {"x": (F, [rows, WIDTH])}, ["y"], weights)


def row_feeds(rows: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)}


@pytest.mark.parametrize("rows", ["n", 300])
def test_another_process_loads_neither_compiler_nor_model(rows: int | str, tmp_path: Path) -> None:
    """Weights that the part in onnxruntime reads are a file of the cache, not a copy of it."""
    path = written(tmp_path / "m.onnx", masked_table(rows))
    np.savez(tmp_path / "in.npz", **row_feeds(300))
    exe = superopt.compile(path, threads=1, shapes=())
    wanted = exe.run(row_feeds(300))
    (variant,) = exe.variants.values()
    assert any(isinstance(s, RuntimeSizedSegment) for s in variant)
    table_bytes = 8 * WIDTH * WIDTH
    sizes = {f.suffix: f.stat().st_size for f in (tmp_path / "cache").rglob("*") if f.is_file()}
    assert sizes[".program"] < table_bytes
    names = [str(tmp_path / name) for name in ("m.onnx", "in.npz", "out.npz")]
    subprocess.run([sys.executable, "-c", LIGHT, *names], check=True)
    assert_equal(dict(np.load(tmp_path / "out.npz")), wanted)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["classes", "program", "constant"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "empty"])
def test_what_is_damaged_is_compiled_again(
    kind: str, damage: str, tmp_path: Path, compilations: list[object]
) -> None:
    path = written(tmp_path / "m.onnx", masked_table())
    wanted = superopt.compile(path, threads=1, shapes=()).run(row_feeds(300))
    for file in (tmp_path / "cache").rglob(f"*.{kind}"):
        held = bytearray(file.read_bytes())
        held[len(held) // 3] ^= 4
        if damage == "gone":
            file.unlink()
        else:
            other = file.with_suffix(".other")  # programs of this process have the file mapped
            other.write_bytes({"flip": held, "cut": held[:-9], "empty": b""}[damage])
            other.replace(file)
    for count in (2, 2):
        CONSTANT_POOL.arrays.clear()  # as in another process
        assert_equal(superopt.compile(path, threads=1, shapes=()).run(row_feeds(300)), wanted)
        assert len(compilations) == count


def test_a_child_compiles_other_classes(tmp_path: Path, compilations: list[object]) -> None:
    """Of all levels; the parent finds them in the cache, and shares the session."""
    path = written(tmp_path / "m.onnx", masked_table())
    exe = superopt.compile(path, threads=1, shapes=())
    exe.run(row_feeds(300))
    exe.shape_policy.compile_seconds = [1e-9]
    wanted = exe.run(row_feeds(3))
    assert exe.wait(300)
    assert len(compilations) == 1
    assert all(exe.size_classes.admits({"n": n}) for n in range(1, 200))
    first = exe.size_classes.classes[0].formulas
    sizes = [n for n in range(1, 200) if not first.admits({"n": n})]
    steps = [exe.size_classes.variant({"n": n}) for n in sizes]  # those of the child
    sessions = {id(s.session) for v in steps for s in v or () if isinstance(s, OrtSegment)}
    assert len(sessions) == 1
    np.testing.assert_allclose(exe.run(row_feeds(3))["y"], wanted["y"], rtol=1e-3, atol=1e-3)


def run_twice(path: Path, calls: Sequence[Feeds]) -> list[Feeds]:
    """Return the outputs of calls, each made twice."""
    exe = superopt.compile(path, threads=1, shapes=())
    return [exe.run(given) for given in calls for _ in range(2)]


@pytest.mark.parametrize("rows", ["n", 20])
@pytest.mark.parametrize("count", ["steps", "size", "many"])
def test_a_stored_loop(
    count: str, rows: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs of its parts, and the model in onnxruntime."""
    monkeypatch.setattr(dynamic_loop, "TRIAL_CALLS", 100)  # all calls run kernels
    m = cell(count, "some" if count == "many" else "", rows)
    calls = [cell_inputs(20, 4), cell_inputs(20, 0), cell_inputs(20 if rows == 20 else 33, 7)]
    path = written(tmp_path / "m.onnx", m)
    wanted = run_twice(path, calls)
    forbid_compiler(monkeypatch)
    for got, each in zip(run_twice(path, calls), wanted, strict=True):
        assert_equal(got, each)


@pytest.mark.parametrize("condition", GATES)
@pytest.mark.parametrize("rows", ["n", 12])
def test_stored_branches(
    condition: str, rows: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = gated_model(condition, rows)
    calls = [gate_inputs(12, flag, sign) for flag in (True, False) for sign in (1.0, -1.0)]
    path = written(tmp_path / "m.onnx", m)
    wanted = run_twice(path, calls)
    forbid_compiler(monkeypatch)
    for got, each in zip(run_twice(path, calls), wanted, strict=True):
        assert_equal(got, each)


def test_a_stored_voice_detector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "m.onnx", voice_detector())
    calls = [detector_inputs(b, n, RATES[r]) for b, n, r in ((2, 640, True), (2, 640, False))]
    others = [detector_inputs(b, n, RATES[r]) for b, n, r in ((2, 700, True), (3, 641, False))]
    exe = superopt.compile(path, threads=1, shapes=())
    wanted = [exe.run(given) for given in (*calls, *others)]
    forbid_compiler(monkeypatch)
    again = superopt.compile(path, threads=1, shapes=())
    for given, each in zip((*calls, *others), wanted, strict=True):
        assert_equal(again.run(given), each)
    np.savez(tmp_path / "in.npz", **calls[0])
    names = [str(tmp_path / name) for name in ("m.onnx", "in.npz", "out.npz")]
    subprocess.run([sys.executable, "-c", LIGHT, *names], check=True)
    assert_equal(dict(np.load(tmp_path / "out.npz")), wanted[0])


@pytest.mark.ci
@pytest.mark.one_in(2)
@pytest.mark.parametrize("in_file", [True, False])
@pytest.mark.parametrize("rows", ["n", 300])
def test_other_counts_have_kernels_after_some_time(
    rows: int | str, in_file: bool, tmp_path: Path
) -> None:
    """Of sizes that only a run gives: also in a later process."""
    m = masked_table(rows)
    given: Any = written(tmp_path / "m.onnx", m) if in_file else m
    exe = superopt.compile(given, threads=1, shapes=())
    x = row_feeds(300)["x"]
    wanted = {count: selected_table(exe, x, count) for count in (300, 3, 20)}
    exe.shape_policy.compile_seconds = [1e-9]
    selected_table(exe, x, 3)
    assert exe.wait(300)
    for again in (exe, superopt.compile(given, threads=1, shapes=())) if in_file else (exe,):
        for count, y in wanted.items():
            got = selected_table(again, x, count)
            np.testing.assert_allclose(got, y, rtol=1e-3, atol=1e-3)
        (step,) = (
            s for v in again.variants.values() for s in v if isinstance(s, RuntimeSizedSegment)
        )
        assert all(isinstance(at.step, KernelStep) for at in step.bound.values())
        assert [*step.bound] == [(300,), (3,), (20,)]


def selected_table(exe: superopt.Executable, x: np.ndarray, count: int) -> np.ndarray:
    """Return the output for inputs that select so many rows of the table."""
    scale = np.zeros((len(x), 1), np.float32)
    scale[:count] = 10
    y: np.ndarray = exe.run({"x": x * scale})["y"]
    assert len(y) == count
    return y
