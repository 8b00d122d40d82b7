"""A search for the CPU: rewrites and schedules, kept only if the whole model is faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import superopt
from superopt.compilation.cpu import tune_kernels
from superopt.compilation.cpu.load_compiler import compile_model
from superopt.cost import tuning_records
from superopt.cost.store import Store
from superopt.errors import UsageError
from superopt.jobs import tune_cpu
from superopt.jobs.graph_rewrites import FoundRewrites
from superopt.kernels.loops.option import Option
from superopt.onnx_io.read.source import read_model


def product_model(rows: int = 64) -> onnx.ModelProto:
    """A product with a weight, and Relu."""
    rng = np.random.default_rng(0)
    w = numpy_helper.from_array(rng.standard_normal((128, 96)).astype(np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 128])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 96])
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.fixture
def other_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning prefers the second option of each problem."""

    def choose(k: Any, timer: Any, store: Store) -> Option:
        option: Option = k.ordered_options[1]
        k.times[option] = (k.times[k.default][0] / 2, 0.0, 0.0, 1)
        target = tuning_records.cpu_target(timer.threads)
        tuning_records.store_chosen_options(store, target, {k.key: option})
        return option

    monkeypatch.setattr(tune_kernels, "_choose_option", choose)


@pytest.mark.parametrize(("ratio", "used"), [(1.05, True), (0.99, False)])
@pytest.mark.usefixtures("other_schedules")
def test_schedules_that_slow_down_the_model_are_not_used(
    ratio: float, used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_cpu, "race_executables", lambda *about: ratio)
    model = product_model()
    source = read_model(model)
    default = tune_cpu.options_of(compile_model(source), {})
    done = superopt.tune(model, budget=2, rewrites=False, store=tmp_path)
    assert (tune_cpu.options_of(compile_model(source, store=tmp_path), {}) != default) == used
    assert any("0.990 times as fast" in note for note in done.notes) != used


def test_a_race_in_turns(tmp_path: Path) -> None:
    few, many = (compile_model(read_model(product_model(n)), store=tmp_path) for n in (16, 512))
    feeds = {"x": np.ones((16, 128), np.float32)}

    class Slower:
        """Runs the larger model on inputs of the smaller one."""

        model, device = few.model, few.device
        drop_variants = many.drop_variants

        def run(self, given: Any) -> None:
            assert given["x"].shape == feeds["x"].shape
            many.run({"x": np.ones((512, 128), np.float32)})

    slower: Any = Slower()
    assert tune_cpu.race_executables(slower, few, {}, 0.1) > 4
    assert tune_cpu.race_executables(few, slower, {}, 0.1) < 0.25


@pytest.mark.ci
@pytest.mark.parametrize("how", ["search", "tune"])
def test_what_a_search_finds_is_kept(how: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(product_model(), path)
    given: dict[str, Any] = {how: 3}
    exe = superopt.compile(path, store=tmp_path / "store", **given)
    x = np.random.default_rng(1).standard_normal((64, 128)).astype(np.float32)
    wanted = superopt.compile(path)(x=x)["y"]
    np.testing.assert_allclose(exe(x=x)["y"], wanted, atol=1e-4)
    with Store.open(tmp_path / "store") as store:
        assert tuning_records.chosen_options(store, tuning_records.cpu_target(1))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"search": 1, "tune": 1}, "a search includes tuning"),
        ({"search": 0}, "invalid search"),
        ({"tune": -1.0}, "invalid tune"),
        ({"search": 5, "target": "reference"}, "cannot be tuned"),
    ],
)
def test_wrong_seconds(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as found:
        superopt.compile(product_model(), **given)
    assert message in str(found.value)


def test_a_result_compiles_itself(tmp_path: Path) -> None:
    model = product_model()
    done = superopt.optimize(model, target="cpu", budget=6, store=tmp_path)
    x = np.random.default_rng(1).standard_normal((64, 128)).astype(np.float32)
    with done.compile() as exe:
        np.testing.assert_allclose(exe(x=x)["y"], superopt.compile(model)(x=x)["y"], atol=1e-4)
        assert exe.device.kernel_threads == 1


def test_a_search_says_where_the_time_went(tmp_path: Path) -> None:
    """From kernels alone to the result, with schedules that were tuned after the rewrites."""
    stages = superopt.tune(product_model(), budget=6, store=tmp_path).waterfall
    assert [s.kind for s in stages][:1] == ["original"]
    assert stages[0].name == "kernels alone"
    assert stages[-1].kind == "result"
    assert {s.name for s in stages} >= {"image layouts", "tuned schedules"}
    assert superopt.tune(product_model(), budget=2, rewrites=False, store=tmp_path).waterfall == ()
    found = FoundRewrites(waterfall=stages).stages_with(2.0)
    assert [s.name for s in found] == [
        *(s.name for s in stages[:-1]), "schedules tuned in this search", "result"
    ]  # fmt: skip
    assert found[-1].us == found[-2].us == stages[-1].us / 2
    assert FoundRewrites(waterfall=stages).stages_with(None) == stages
