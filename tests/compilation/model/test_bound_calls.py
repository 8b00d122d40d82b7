"""Calls on fixed arrays: `Executable.bind`."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from onnx import helper, numpy_helper

import superopt
from superopt import ort
from tests.support.compilation.concurrent_calls import mlp, rows
from tests.support.compilation.models import F, model, near, net, picture, reference


def sum_and_twice(rows: int | str = 3) -> Any:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["y"]),
        helper.make_node("Mul", ["y", "y"], ["z"]),
    ]
    given = {"x": (F, [rows, 4]), "b": (F, [4])}
    return model(nodes, given, ["y", "z"])


@pytest.mark.parametrize("rows", [3, "n"])
def test_a_bound_call_reads_and_writes_the_arrays(rows: int | str) -> None:
    exe = superopt.compile(sum_and_twice(rows), specialize="never")
    x, b = np.zeros((3, 4), np.float32), np.ones(4, np.float32)
    y = np.full((3, 4), np.nan, np.float32)
    call = exe.bind(inputs={"x": x, "b": b}, outputs={"y": y})
    assert call.is_direct
    for n in range(4):
        x[...] = n
        out = call()
        assert out is call.outputs
        assert list(out) == ["y", "z"]
        assert out["y"] is y
        np.testing.assert_array_equal(y, np.full((3, 4), n + 1, np.float32))
        np.testing.assert_array_equal(out["z"], y * y)
    assert call()["z"] is out["z"]  # it belongs to the call


def test_bound_calls_give_what_run_gives_at_all_sizes() -> None:
    exe = superopt.compile(net("s"), specialize="never")
    for n, size in ((1, 9), (2, 9), (1, 12), (3, 17), (2, 5)):
        x = picture(n, size)
        wanted = exe.run({"x": x})
        mine = {name: np.full_like(a, np.nan) for name, a in wanted.items()}
        call = exe.bind(inputs={"x": x}, outputs=mine)
        assert call.is_direct
        before = dict(mine)
        call()
        for name, a in wanted.items():
            assert call.outputs[name] is before[name]
            np.testing.assert_array_equal(mine[name], exe.run({"x": x})[name])
            np.testing.assert_allclose(mine[name], a, rtol=1e-4, atol=1e-5)


def test_bind_compiles_a_class_where_no_program_has_the_sizes() -> None:
    exe = superopt.compile(mlp(), specialize="never")
    wanted = exe.run({"x": rows(64)})["y"]
    (first,) = exe.size_classes.classes
    small = next(n for n in (7, 3, 1) if not first.formulas.admits({"n": n}))
    for n in (small, 64):
        call = exe.bind(inputs={"x": rows(n)})
        near(call(), reference(mlp(), {"x": rows(n)}))
        assert exe.variants[(("n", n),)].is_of_class
    np.testing.assert_array_equal(call.outputs["y"], wanted)
    assert len(exe.size_classes.classes) == 2


def test_a_target_without_bound_calls_copies() -> None:
    exe = superopt.compile(sum_and_twice(), target="reference")
    x, b, y = np.ones((3, 4), np.float32), np.ones(4, np.float32), np.empty((3, 4), np.float32)
    call = exe.bind(inputs={"x": x, "b": b}, outputs={"y": y})
    assert not call.is_direct
    assert call()["y"] is y
    np.testing.assert_array_equal(y, 2 * x)
    exe.close()
    with pytest.raises(superopt.UsageError, match="closed"):
        call()


def test_kernels_write_to_the_arrays_without_a_copy() -> None:
    exe = superopt.compile(sum_and_twice())
    x, b, y = np.ones((3, 4), np.float32), np.ones(4, np.float32), np.empty((3, 4), np.float32)
    call = exe.bind(inputs={"x": x, "b": b}, outputs={"y": y})
    given = []
    code = exe.variant({})[0].code
    enter = code.enter
    code.enter = lambda arrays, table: (given.append(arrays), enter(arrays, table))
    call()
    call()
    assert [id(a) for a in given[0]] == [id(a) for a in (x, b, y, call.outputs["z"])]
    assert given[1] is given[0]  # nothing is made for a call


def test_a_value_that_is_two_outputs() -> None:
    nodes = [
        helper.make_node("Add", ["x", "x"], ["y"]),
        helper.make_node("Identity", ["y"], ["z"]),
    ]
    exe = superopt.compile(model(nodes, {"x": (F, [5])}, ["y", "z"]))
    x, y, z = (np.arange(5, dtype=np.float32) for _ in range(3))
    call = exe.bind(inputs={"x": x}, outputs={"y": y, "z": z})
    call()
    np.testing.assert_array_equal(y, 2 * x)
    np.testing.assert_array_equal(z, 2 * x)
    only = exe.bind(inputs={"x": x}, outputs={"z": z})
    z[...] = 0
    np.testing.assert_array_equal(only()["y"], 2 * x)
    np.testing.assert_array_equal(z, 2 * x)


@pytest.mark.skipif(ort.installed_version() is None, reason="needs onnxruntime")
def test_a_model_with_a_part_in_onnxruntime_copies() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["a"]),
        helper.make_node("Unique", ["a"], ["u"]),
        helper.make_node("Add", ["u", "u"], ["y"]),
    ]
    exe = superopt.compile(model(nodes, {"x": (F, [6])}, ["y"]))
    x, y = np.array([1, 1, 2, 2, 3, 3], np.float32), np.empty(3, np.float32)
    call = exe.bind(inputs={"x": x}, outputs={"y": y})
    assert not call.is_direct
    assert call()["y"] is y
    np.testing.assert_array_equal(y, [2, 8, 18])
    x[0] = 5
    with pytest.raises(superopt.UsageError, match=r"float32\[3\].*\n.*float32\[4\]"):
        call()  # one more distinct value
    free = exe.bind(inputs={"x": x})
    np.testing.assert_array_equal(free()["y"], [2, 8, 18, 50])


def test_a_default_input_needs_no_array() -> None:
    m = sum_and_twice()
    m.graph.initializer.append(numpy_helper.from_array(np.full(4, 2, np.float32), "b"))
    exe = superopt.compile(m)
    x = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(exe.bind(inputs={"x": x})()["y"], x + 2)


GOOD = np.zeros((3, 4), np.float32)


def read_only() -> np.ndarray:
    out = np.zeros((3, 4), np.float32)
    out.flags.writeable = False
    return out


def misaligned_array() -> np.ndarray:
    return np.zeros(4 * 12 + 1, np.uint8)[1:].view(np.float32).reshape(3, 4)


BAD: dict[str, tuple[Callable[[], dict[str, Any]], dict[str, Any], list[str]]] = {
    "no names": (lambda: cast(Any, [GOOD]), {}, ["outputs are a list", "by name"]),
    "no such output": (lambda: {"q": GOOD}, {}, ["no output 'q'", "y, z"]),
    "another shape": (
        lambda: {"y": np.zeros((4, 3), np.float32)}, {},
        ["output 'y' is float32[4, 3]", "float32[3, 4]", "np.empty((3, 4), 'float32')"],
    ),
    "another type": (
        lambda: {"z": np.zeros((3, 4))}, {}, ["output 'z' is float64[3, 4]", "float32[3, 4]"],
    ),
    "not contiguous": (
        lambda: {"y": np.zeros((4, 3), np.float32).T}, {}, ["strides [4, 12]", "contiguous"],
    ),
    "not aligned": (lambda: {"y": misaligned_array()}, {}, ["output 'y'", "aligned"]),
    "read-only": (lambda: {"y": read_only()}, {}, ["output 'y' is read-only"]),
    "a list": (lambda: {"y": [[0.0] * 4] * 3}, {}, ["output 'y' is a list", "numpy array"]),
    "two outputs in one array": (
        lambda: dict.fromkeys("yz", np.zeros((3, 4), np.float32)), {},
        ["output 'y' overlaps output 'z'"],
    ),
    "an input": (lambda: {"y": GOOD}, {}, ["output 'y' overlaps input 'x'"]),
    "an input of another shape": (dict, {"x": np.zeros(3, np.float32)}, ["input 'x'", "rank 2"]),
    "an input that is a list": (dict, {"x": [[0.0] * 4] * 3}, ["input 'x' is a list"]),
    "an input that is not contiguous": (
        dict, {"x": np.zeros((4, 3), np.float32).T}, ["input 'x'", "np.ascontiguousarray"],
    ),
    "no such input": (dict, {"q": GOOD}, ["no input 'q'"]),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_arrays_that_cannot_be_bound(what: str) -> None:
    outputs, other, texts = BAD[what]
    exe = superopt.compile(sum_and_twice())
    inputs = {"x": GOOD, "b": np.zeros(4, np.float32)} | other
    with pytest.raises(superopt.UsageError) as found:
        exe.bind(inputs=inputs, outputs=outputs())
    assert all(text in str(found.value) for text in texts), str(found.value)
    assert found.value.todo


def test_a_bound_call_outlives_its_executable() -> None:
    exe = superopt.compile(sum_and_twice())
    x, b = np.ones((3, 4), np.float32), np.ones(4, np.float32)
    call, ref = exe.bind(inputs={"x": x, "b": b}), weakref.ref(exe)
    del exe
    gc.collect()
    assert ref() is None
    np.testing.assert_array_equal(call()["y"], x + 1)
