"""Compiled models that are kept whole: found again, and only where they are still right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.compilation.cache import entries
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.compilation.model.compiler import Compiler
from superopt.errors import ModelError
from superopt.plan.program.constant_pool import CONSTANT_POOL
from tests.support.compilation.cache import ONES, at_rest, counting, scaled, written
from tests.support.compilation.models import F, model, net, picture


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return at_rest(tmp_path, monkeypatch)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    return counting(Compiler, monkeypatch)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_it_is_found_again(
    folder: Path, tmp_path: Path, compiled: list[object], threads: int
) -> None:
    path = written(tmp_path / "m.onnx", net(9))
    how: Any = {"threads": threads, "specialize": "eager"}
    first = superopt.compile(path, **how)(x=picture(1, 9))
    again = superopt.compile(path, **how)
    assert len(compiled) == 1
    for _ in range(2):
        second = again(x=picture(1, 9))
        assert list(second) == list(first)
        for name, a in first.items():
            np.testing.assert_array_equal(second[name], a)
    superopt.compile(path, threads=3, specialize="eager")(x=picture(1, 9))
    superopt.compile(path, **how, float_class="E1")(x=picture(1, 9))
    assert len(compiled) == 3


def test_at_each_size(folder: Path, tmp_path: Path, compiled: list[object]) -> None:
    path = written(tmp_path / "m.onnx", net("s"))
    exe = superopt.compile(path, specialize="eager")
    wanted = [exe(x=picture(n, s))["y"] for n, s in ((1, 9), (2, 12))]
    assert len(compiled) == 2
    exe = superopt.compile(path)
    got = [exe(x=picture(n, s))["y"] for n, s in ((1, 9), (2, 12))]
    assert len(compiled) == 2
    assert list(map(dict, exe.variants)) == [{"n": 1, "s": 9}, {"n": 2, "s": 12}]
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


LIGHT = """
import sys, numpy, superopt
exe = superopt.compile(sys.argv[1])
exe(x=numpy.ones((2, 4), numpy.float32))
heavy = "onnx onnx_ir onnxruntime z3 sympy superopt.compilation.model.compiler".split()
print([name for name in heavy if name in sys.modules])
"""


def test_another_process_loads_neither_compiler_nor_model(folder: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", scaled(1))
    superopt.compile(path)
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def large(by: float) -> onnx.ModelProto:
    """A constant of it is a file of its own."""
    w = np.full((128, 128), by, np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return model(nodes, {"x": (F, [2, 128])}, ["y"], {"w": w})


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["digest", "model", "program", "constant"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "empty"])
def test_what_is_damaged_is_compiled_again(
    folder: Path, tmp_path: Path, kind: str, damage: str
) -> None:
    path = written(tmp_path / "m.onnx", large(3))
    superopt.compile(path)
    CONSTANT_POOL.arrays.clear()  # as in another process
    (file,) = folder.parent.rglob(f"*.{kind}")
    held = bytearray(file.read_bytes())
    held[len(held) // 3] ^= 4
    if damage == "gone":
        file.unlink()
    else:
        other = file.with_suffix(".other")  # programs of this process have the file mapped
        other.write_bytes({"flip": held, "cut": held[:-9], "empty": b""}[damage])
        other.replace(file)
    for _ in range(2):
        got = superopt.compile(path)(x=np.ones((2, 128), np.float32))["y"]
        np.testing.assert_array_equal(got, np.full((2, 128), 384))
        CONSTANT_POOL.arrays.clear()
    (again,) = folder.parent.rglob(f"*.{kind}")
    assert again.stat().st_size == len(held)


def test_another_model_in_its_place(folder: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", scaled(3))
    before = path.stat()
    held = superopt.compile(path)
    held = superopt.compile(path)
    size = len(scaled(3).SerializeToString())
    with path.open("r+b") as f:  # the same file, of the same size and age
        assert len(scaled(5).SerializeToString()) == size
        f.write(scaled(5).SerializeToString())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    np.testing.assert_array_equal(superopt.compile(path)(x=ONES)["y"], np.full((2, 4), 20))
    np.testing.assert_array_equal(held(x=ONES)["y"], np.full((2, 4), 12))
    with pytest.raises(ModelError, match="has changed"):
        held.model  # noqa: B018


def test_external_data_that_changed(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for by in (3, 5):
        onnx.save_model(
            scaled(by), path if by == 3 else tmp_path / "other.onnx",
            save_as_external_data=True, location=f"w{by}", size_threshold=0,
        )  # fmt: skip
        if by == 3:
            superopt.compile(path)
    (tmp_path / "w3").write_bytes((tmp_path / "w5").read_bytes())
    np.testing.assert_array_equal(superopt.compile(path)(x=ONES)["y"], np.full((2, 4), 20))


def test_a_file_that_was_just_written_is_read_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "_MIN_REST_NS", 10**12)
    monkeypatch.setattr(entries, "_MIN_REST_WHOLE_SECONDS_NS", 10**12)
    path = written(tmp_path / "m.onnx", scaled(3))
    for _ in range(2):
        np.testing.assert_array_equal(superopt.compile(path)(x=ONES)["y"], np.full((2, 4), 12))
    assert not list(folder.glob("*.digest"))
    assert list(folder.glob("*.program"))  # by the contents' digest it is found nevertheless


def test_what_else_is_asked_of_it(folder: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", net(9))
    first, found = superopt.compile(path), superopt.compile(path)
    (a,), (b,) = first.variant({"n": 1}), found.variant({"n": 1})
    assert isinstance(a, NativeSegment)
    assert isinstance(b, NativeSegment)
    assert b.code.program.identity() == a.code.program.identity()
    assert not found.fallback_nodes({"n": 1})
    assert found.profile(seconds=0.05).parts
    found.save(tmp_path / "m.superopt")
    x = picture(1, 9)
    np.testing.assert_array_equal(superopt.load(tmp_path / "m.superopt")(x=x)["y"], found(x=x)["y"])


def test_parts_in_onnxruntime_are_not_kept(folder: Path, tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [node("Relu", ["x"], ["a"]), node("NonZero", ["a"], ["y"])]
    path = written(tmp_path / "m.onnx", model(nodes, {"x": (F, [2, 4])}, ["y"]))
    for _ in range(2):
        assert superopt.compile(path)(x=ONES)["y"].shape == (2, 8)
    assert not list(folder.glob("*.program"))


def test_an_input_with_a_value_of_its_own(folder: Path, tmp_path: Path) -> None:
    m = scaled(3)
    m.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 4]))
    path = written(tmp_path / "m.onnx", m)
    for _ in range(2):
        exe = superopt.compile(path)
        np.testing.assert_array_equal(exe(x=ONES)["y"], np.full((2, 4), 12))
        got = exe(x=ONES, w=np.full((4, 4), 2, np.float32))
        np.testing.assert_array_equal(got["y"], np.full((2, 4), 8))


def test_a_folder_of_others_is_not_used(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    path = written(tmp_path / "m.onnx", scaled(3))
    superopt.compile(path)
    assert not list(folder.iterdir())


def test_nothing_is_executed_of_what_is_read(folder: Path, tmp_path: Path) -> None:
    """Descriptions are JSON."""
    path = written(tmp_path / "m.onnx", scaled(3))
    superopt.compile(path)
    (file,) = folder.glob("*.program")
    about = json.loads(file.read_bytes()[32:].partition(b"\n")[0])
    assert about["gives"] == [["y", 0]]
