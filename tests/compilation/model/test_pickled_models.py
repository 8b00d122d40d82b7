"""Compiled models in pickles: they name the model's file."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import superopt
from superopt.errors import ModelError, UsageError
from tests.support.compilation.concurrent_calls import mlp, rows

W2 = np.full((32, 48), 0.25, np.float32)
REST_S = 0.5  # after which a file counts as at rest
ONLY_WITH_COMPILER = ("superopt.compilation.model.compiler", "superopt.plan.passes")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def compiled(rows_of_model: int | str = 64, **options: Any) -> superopt.Executable:
    onnx.save(mlp(rows_of_model), "m.onnx")
    return superopt.compile("m.onnx", **options)


def saved() -> superopt.Executable:
    compiled().save("m.superopt")
    return superopt.load("m.superopt")


def run_in_process(exe: superopt.Executable, x: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return the result, and which modules of the compiler are loaded."""
    y = exe.run({"x": x})["y"]
    return y, [name for name in ONLY_WITH_COMPILER if name in sys.modules]


def test_a_spawned_process_runs_the_programs_of_the_cache() -> None:
    onnx.save(mlp(64), "m.onnx")
    time.sleep(REST_S)  # else its digest is not remembered
    exe = superopt.compile("m.onnx", threads=2)
    wanted = exe.run({"x": rows(64)})["y"]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        got, loaded = pool.apply(run_in_process, (exe, rows(64)))
    np.testing.assert_array_equal(got, wanted)
    assert not loaded, "it was compiled again"


@pytest.mark.parametrize("made", [compiled, saved])
def test_a_pickle_is_small_and_opens_in_any_folder(
    made: Callable[[], superopt.Executable], monkeypatch: pytest.MonkeyPatch
) -> None:
    exe = made()
    wanted = exe.run({"x": rows(64)})["y"]
    data = pickle.dumps(exe)
    assert len(data) < 1500 < Path("m.onnx").stat().st_size
    monkeypatch.chdir("/")
    again = pickle.loads(data)
    np.testing.assert_array_equal(again.run({"x": rows(64)})["y"], wanted)
    assert pickle.dumps(again) == data
    assert copy.deepcopy(again).output_names == exe.output_names


def test_options_and_sizes_are_kept() -> None:
    exe = compiled(
        "n", threads=2, float_class="E1", specialize="never", shapes={"n": 48}, store="own.sqlite"
    )
    again = pickle.loads(pickle.dumps(exe))
    assert again.reference == exe.reference
    assert again.device == exe.device
    assert again.shape_policy.specialize == "never"
    assert again.model.source.path == Path("m.onnx").absolute()
    assert again.compiler.generator.allowed.float_class == "E1"
    assert [*again.variants] == [(("n", 48),)]
    assert again.reference.options.store == Path("own.sqlite").absolute()


@pytest.mark.parametrize("made", [compiled, saved])
@pytest.mark.parametrize("what", ["changed", "missing"])
def test_another_file_is_an_error_that_names_it(
    made: Callable[[], superopt.Executable], what: str
) -> None:
    exe = made()
    path = Path("m.onnx" if made is compiled else "m.superopt").absolute()
    data = pickle.dumps(exe)
    if what == "missing":
        path.unlink()
    elif made is compiled:
        other = mlp(64)
        other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(W2, "w"))
        onnx.save(other, path)
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(superopt.SuperoptError) as found:
        pickle.loads(data)
    assert str(path) in str(found.value)
    assert found.value.todo
    if what == "changed":
        assert "has changed" in str(found.value)


def test_a_saved_model_that_changed_before_it_is_pickled() -> None:
    exe = saved()
    shutil.copy("m.superopt", "other")
    Path("m.superopt").write_bytes(Path("other").read_bytes())
    os.utime("m.superopt", (1, 1))
    with pytest.raises(ModelError, match="has changed"):
        pickle.dumps(exe)


def test_a_model_from_memory_is_not_pickled() -> None:
    exe = superopt.compile(mlp(64))
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(UsageError, match="use save and superopt") as found:
            copied(exe)  # type: ignore[operator]
        assert "compiled from memory" in found.value.what


def test_a_closed_model_is_not_pickled() -> None:
    exe = compiled()
    exe.close()
    with pytest.raises(UsageError, match="closed"):
        pickle.dumps(exe)
