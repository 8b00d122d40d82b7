"""Symbolic sizes that a user gives: what the errors say, and in which arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.errors import UsageError
from superopt.loading.given_sizes import SizeNames
from tests.support.compilation.models import F, model

LARGEST = 2**63 - 1


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


def sums() -> onnx.ModelProto:
    node = helper.make_node("Add", ["x", "y"], ["z"])
    return model([node], {"x": (F, ["n", "k"]), "y": (F, ["n", "k"])}, ["z"])


def message(call: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as found:
        call()
    assert all((found.value.what, found.value.why, found.value.todo))
    return str(found.value)


@pytest.mark.parametrize("value", [-3, 2.5, "4", None, True, np.float32(3), (3, 4), 1 << 63])
def test_a_value_that_is_no_size_is_named_with_its_symbol(value: Any) -> None:
    text = message(lambda: superopt.compile(sums(), shapes={"n": value, "k": 2}))
    limit = f"at most {LARGEST}" if value == 1 << 63 else "at least 0"
    assert text.splitlines() == [
        f"the size n is {value!r}",
        f"it must be an integer of {limit}",
        "pass another value, such as shapes={'n': 1}, or --shape n=1",
    ]


@pytest.mark.parametrize(
    ("shapes", "lines"),
    [
        ({"N": 3, "k": 2}, ["shapes has N = 3, and the model has no symbolic size N",
                            "its symbolic sizes are k, n",
                            "the name is n: shapes={'n': 3}, or --shape n=3"]),
        ({"x": (3, 2)}, ["shapes has x = (3, 2), and the model has no symbolic size x",
                         "its symbolic sizes are k, n",
                         "x is an input, f32[n, k]: pass the sizes of its axes"]),
        ({"n": 3, "k": 2, "m": 1}, ["shapes has m = 1, and the model has no symbolic size m",
                                    "its symbolic sizes are k, n", "use one of these names"]),
        ({"n": 3}, ["shapes has no value for k", "the model's symbolic sizes are k, n",
                    "pass each of them: shapes={'n': 3, 'k': 1}, or --shape n=3,k=1"]),
        (5, ["shapes is 5, of type int", "sizes are given by name",
             'pass a dict of integers by name: shapes={"batch": 8}']),
        ("n=3", ["shapes is 'n=3', of type str", "sizes are given by name",
                 'pass a dict of integers by name: shapes={"batch": 8}']),
        ([{"n": 3, "k": 2}, 5], ["shapes is 5, of type int", "sizes are given by name",
                                 'pass a dict of integers by name: shapes={"batch": 8}']),
        ({1: 3}, ["shapes has the name 1", "a name is a text",
                  'pass a dict of integers by name: shapes={"batch": 8}']),
    ],
)  # fmt: skip
def test_names_that_are_no_sizes_are_refused_with_the_way_out(
    shapes: Any, lines: list[str]
) -> None:
    assert message(lambda: superopt.compile(sums(), shapes=shapes)).splitlines() == lines


def test_a_model_of_fixed_sizes_takes_no_shapes() -> None:
    m = model([helper.make_node("Relu", ["x"], ["y"])], {"x": (F, [2, 3])}, ["y"])
    text = message(lambda: superopt.compile(m, shapes={"n": 2}))
    assert text.splitlines()[1:] == ["all its sizes are fixed", "leave shapes out"]
    assert superopt.compile(m, shapes={})(x=np.ones((2, 3), np.float32))


def test_numpy_integers_and_zero_are_sizes() -> None:
    exe = superopt.compile(sums(), shapes={"n": np.int64(3), "k": 0})
    assert exe.run({"x": np.ones((3, 0), np.float32), "y": np.ones((3, 0), np.float32)})


@pytest.mark.parametrize("job", ["profile", "accuracy", "export", "optimize", "tune", "bench"])
def test_a_size_of_zero_is_refused_where_inputs_are_drawn(job: str, tmp_path: Any) -> None:
    m, sizes = sums(), {"n": 0, "k": 2}
    exe = superopt.compile(m)
    path = tmp_path / "m.onnx"
    onnx.save(m, path)
    calls: dict[str, Callable[[], object]] = {
        "profile": lambda: exe.profile(shapes=sizes, seconds=0.01),
        "accuracy": lambda: exe.accuracy(sizes, sets=1),
        "export": lambda: exe.export(tmp_path, shapes=sizes),
        "optimize": lambda: superopt.optimize(m, shapes=sizes, budget=0.01),
        "tune": lambda: superopt.tune(m, shapes=sizes, budget=0.01),
        "bench": lambda: superopt.bench([path], shapes=sizes, seconds=0.01),
    }
    assert message(calls[job]).startswith("the size n is 0\nit must be an integer of at least 1")


@pytest.mark.parametrize("name", ["buffers", "tune"])
def test_the_methods_of_an_executable_name_the_argument(name: str) -> None:
    exe = superopt.compile(sums())
    option = {"buffers": "shapes", "tune": "sizes"}[name]
    text = message(lambda: getattr(exe, name)({"n": 2}))
    assert text.startswith(f"{option} has no value for k\n")
    assert "the size k is -1" in message(lambda: getattr(exe, name)({"n": 2, "k": -1}))


@pytest.mark.parametrize("value", [0, -4, 2.5, "7", True])
def test_a_capacity_that_is_none_is_named(value: Any) -> None:
    text = message(lambda: decoder().bind_state({"present": "past"}, capacity=value))
    assert text.startswith(f"capacity is {value!r}\nit must be an integer of at least 1\n")


@pytest.mark.parametrize(
    ("sizes", "start"),
    [
        ({"p": -1}, "the size p is -1\nit must be an integer of at least 0\n"),
        ({"p": True}, "the size p is True\n"),
        ({"q": 1}, "sizes has q = 1, and the model has no symbolic size q\n"),
        (5, "sizes is 5, of type int\n"),
    ],
)
def test_sizes_of_states_are_checked(sizes: Any, start: str) -> None:
    assert message(lambda: decoder().bind_state({"present": "past"}, sizes=sizes)).startswith(start)


def test_numpy_integers_are_capacities_and_sizes_of_states() -> None:
    call = decoder().bind_state({"present": "past"}, sizes={"p": np.int64(2)}, capacity=np.int32(8))
    call.run({"new": np.ones((1, 4), np.float32)})
    assert call.state["past"].shape == (3, 4)


def decoder() -> superopt.Executable:
    node = helper.make_node("Concat", ["past", "new"], ["present"], axis=0)
    m = model([node], {"past": (F, ["p", 4]), "new": (F, ["s", 4])}, ["present"])
    return superopt.compile(m)


def test_a_name_with_blanks_is_quoted_for_the_shell() -> None:
    known = SizeNames(["batch size"])
    text = message(lambda: known.check_all({"batch size": -1}))
    assert text.endswith("or --shape 'batch size=1'")
