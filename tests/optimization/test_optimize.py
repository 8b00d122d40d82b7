"""`optimize` in this process, with estimated costs: what comes out, and what is said of it."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import superopt
from superopt.errors import ExitCode, ModelError, UsageError
from superopt.loading import rule_library
from superopt.loading.model import load_model
from superopt.onnx_io.read.source import read_model
from superopt.optimization import optimization_result, optimize
from superopt.optimization.optimization_result import OptimizationResult
from superopt.report.data.report import Event
from superopt.rules.lang.rule import Rule
from superopt.rules.library.load import load_library
from tests.support.optimization import models
from tests.support.optimization.models import data, model
from tests.support.optimization.running import report, request, rules, run, same, saved

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 6)).astype(np.float32)


def test_a_model_gets_smaller_and_computes_the_same(tmp_path: Path) -> None:
    done = run(data(models.PLAIN))
    after = saved(done, tmp_path)
    assert [n.op_type for n in after.graph.node] == ["MatMul", "MatMul"]
    assert same(model(models.PLAIN), after, x=X)
    found = report(done)
    assert found.changed
    assert (found.nodes_before, found.nodes_after) == (4, 2)
    assert found.graph is not None
    assert (len(found.graph.before), len(found.graph.after)) == (4, 2)
    assert len(found.graph.steps) == len(found.steps)
    assert found.cost_after_us < found.cost_before_us
    assert [s.rule for s in found.steps] == ["transpose-transpose", "transpose-identity"]
    assert found.steps[0].where == ("u",)
    assert found.check is not None
    assert found.check.passed
    assert [o.name for o in found.check.outputs] == ["p", "q"]
    assert found.check.inputs == 3
    assert "onnxruntime against float64" in found.check.method
    assert found.latency_before is found.latency_after is found.speedup is None
    assert any("nothing was timed" in note for note in found.notes)
    assert read_model(tmp_path / "saved.onnx").sha256 == found.optimized_sha256


def test_a_model_that_cannot_get_faster_is_copied_byte_for_byte(tmp_path: Path) -> None:
    given = data(models.DONE)
    done = run(given)
    optimization_result.save_model(done, tmp_path / "copy.onnx")
    assert (tmp_path / "copy.onnx").read_bytes() == given
    found = report(done)
    assert not found.changed
    assert found.check is None
    assert found.optimized_sha256 == found.model_sha256
    assert (found.nodes_before, found.nodes_after) == (1, 1)


@pytest.mark.parametrize("name", ["TOPK", "NONZERO", "INTEGERS", "LOOP"])
def test_what_has_no_tensor_expression_is_carried_through(name: str, tmp_path: Path) -> None:
    text = getattr(models, name)
    done = run(data(text))
    after = saved(done, tmp_path)
    assert len(after.graph.node) < len(model(text).graph.node)
    feeds = {"x": X} if name != "INTEGERS" else {
        "x": RNG.standard_normal((64, 6)).astype(np.float32),
        "i": np.array([0, 3, 8, 1, 1]),
    }  # fmt: skip
    assert same(model(text), after, **feeds)
    found = report(done).check
    assert found is not None
    if name != "INTEGERS":
        assert found.method.endswith("region by region around opaque nodes, and end to end")
        assert any(o.name.startswith("input ") for o in found.outputs)


def test_what_is_random_is_checked_all_the_same() -> None:
    found = report(run(data(models.RANDOM)))
    assert found.changed
    assert found.check is not None
    assert sorted(o.name for o in found.check.outputs) == ["input 0 of n", "y"]
    assert found.check.passed
    assert all(o.max_error < 1e-6 for o in found.check.outputs)


def test_a_wrong_value_at_a_loops_capture_would_be_seen() -> None:
    found = report(run(data(models.LOOP)))
    assert found.check is not None
    assert {o.name for o in found.check.outputs} == {"y", "input 2 of z", "input 3 of z"}


def test_symbolic_sizes_are_checked_at_several_sizes(tmp_path: Path) -> None:
    done = run(data(models.DYNAMIC), shapes={"batch": 3})
    found = report(done)
    assert found.check is not None
    assert found.check.inputs == 5
    after = saved(done, tmp_path)
    for batch, sequence in ((1, 1), (2, 7), (5, 3)):
        x = RNG.standard_normal((batch, sequence, 6)).astype(np.float32)
        assert same(model(models.DYNAMIC), after, x=x)
    assert [s.feed.sizes["batch"] for s in done_sets(done)] == [3, 2, 1, 3, 3]


def done_sets(done: OptimizationResult) -> tuple[object, ...]:
    """The sets of inputs that a model was checked on: the same again."""
    from superopt.verification.original import prepare_original

    folder = done.scratch.path / "again"
    return prepare_original(done.model, done.request, folder, lambda line: None).sets


def test_other_sizes_are_found_where_the_defaults_do_not_run() -> None:
    found = report(run(data(models.PICKY)))
    assert found.changed
    assert "the model does not run at batch=1; costs are for batch=2 instead" in found.notes


def test_sizes_of_the_users_on_which_the_model_does_not_run() -> None:
    with pytest.raises(UsageError) as caught:
        run(data(models.PICKY), shapes={"batch": 3})
    assert caught.value.what == "the model does not run at batch=3"
    assert "--shape" in caught.value.todo


def test_a_size_that_the_model_lacks() -> None:
    why = "the model has no symbolic size n\nits symbolic sizes are batch"
    with pytest.raises(UsageError, match=why):
        run(data(models.PICKY), shapes={"n": 3})
    with pytest.raises(UsageError, match="all its sizes are fixed"):
        run(data(models.PLAIN), shapes={"n": 3})


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({"z": X}, "the model has no input z"),
        ({}, "input x has no value"),
        ({"x": X.astype(np.float64)}, "input x is float64"),
        ({"x": X[:, :5]}, r"input x has shape \(4, 5\)"),
        ({"x": X[0]}, r"input x has shape \(6,\)"),
        ({"x": np.array(["a"])}, "input x is <U1"),
    ],
)
def test_inputs_of_the_users_that_do_not_fit(arrays: dict[str, np.ndarray], what: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        run(data(models.PLAIN), inputs=arrays)
    assert caught.value.code == ExitCode.USAGE
    assert caught.value.why
    assert caught.value.todo


def test_inputs_of_the_users_on_which_the_model_fails() -> None:
    arrays = {"x": RNG.standard_normal((64, 6)).astype(np.float32), "i": np.full(5, 99)}
    with pytest.raises(UsageError, match="does not run on the given inputs"):
        run(data(models.INTEGERS), inputs=arrays)


def test_inputs_of_the_users_are_checked_first() -> None:
    done = run(data(models.PLAIN), inputs={"x": X})
    assert done.winner is not None
    assert done.winner.check.input_sets == ("given", "normal", "adversarial", "uniform")


def test_a_custom_operator_is_left_alone_and_our_own_evaluation_decides(tmp_path: Path) -> None:
    done = run(data(models.CUSTOM), cost="auto")
    found = report(done)
    assert found.changed
    assert found.check is not None
    assert found.check.method.startswith("superopt's evaluation against float64")
    assert found.speedup is None
    (note,) = (n for n in found.notes if "onnxruntime does not run the original" in n)
    assert "acme:Secret" in note
    assert "/" not in note.partition("Load model from ")[2].partition(" failed")[0]
    optimization_result.save_model(done, tmp_path / "saved.onnx")
    after = onnx.load(str(tmp_path / "saved.onnx"))
    assert [n.op_type for n in after.graph.node] == ["Relu"]  # nobody reads the secret


def test_what_cannot_be_checked_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    # Only what an opaque node of unknown rank gives leads to the output, and there is no runtime.
    text = models.TOPK.replace("TopK <sorted = 0> (s, k)", "acme.Best(s, k)").replace(
        '"" : 17]', '"" : 17, "acme" : 1]'
    )
    found = report(run(data(text)))
    assert not found.changed or found.check is not None
    if found.check is not None:
        assert not {o.name for o in found.check.outputs} & {"y", "i"}


def test_a_model_whose_inputs_cannot_be_drawn_stays_as_it_is() -> None:
    text = models.DONE.replace("float[4, 6] x", "float[4, 6] x, seq(float[2]) s").replace(
        "y = Relu(x)", "z = Relu(x)\n  y = Relu(z)\n"
    )
    found = report(run(data(text)))
    assert not found.changed
    assert any("no inputs were found" in n and "--inputs" in n for n in found.notes)


def test_a_model_whose_inputs_would_fill_the_memory_stays_as_it_is() -> None:
    text = models.DONE.replace("float[4, 6]", "float[90000, 100000]").replace(
        "y = Relu(x)", "z = Relu(x)\n  y = Relu(z)\n"
    )
    found = report(run(data(text)))
    assert not found.changed
    assert any("the inputs take 36.0 GB" in n and "--inputs" in n for n in found.notes)


def test_without_onnxruntime_the_check_is_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from superopt import ort

    monkeypatch.setattr(ort, "installed_version", lambda: None)
    found = report(run(data(models.PLAIN), cost="auto"))
    assert found.changed
    assert found.check is not None
    assert found.check.method.startswith("superopt's evaluation")
    assert any(n.startswith("onnxruntime is not installed") for n in found.notes)


def test_an_override_of_an_initializer_is_an_input(tmp_path: Path) -> None:
    given = model(models.PLAIN)
    shape = onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [6, 5])
    given.graph.input.append(shape)
    done = run(given.SerializeToString())
    after = saved(done, tmp_path)
    other = RNG.standard_normal((6, 5)).astype(np.float32)
    assert same(given, after, x=X, a=other)
    assert same(given, after, x=X)


def test_external_data_stays_outside(tmp_path: Path) -> None:
    path = tmp_path / "given.onnx"
    text = models.PLAIN.replace("[6, 5] a", "[6, 900] a").replace("[4, 5] p", "[4, 900] p")
    onnx.save_model(
        model(text), str(path), save_as_external_data=True, location="given.data",
        size_threshold=0,
    )  # fmt: skip
    folder = tmp_path / "out"
    folder.mkdir()
    done = run(path)
    after = saved(done, folder)
    assert sorted(p.name for p in folder.iterdir()) == ["saved.onnx", "saved.onnx.data"]
    assert same(model(text), after, x=X)


def test_decisions_are_repeated_without_searching(tmp_path: Path) -> None:
    first = run(data(models.PLAIN))
    text = optimization_result.decision_log(first)
    again = run(data(models.PLAIN), replay=text, cost="auto")
    assert saved(first, tmp_path).graph == saved(again, tmp_path).graph
    assert any("decisions were replayed" in n for n in report(again).notes)
    with pytest.raises(UsageError, match="another model"):
        run(data(models.TOPK), replay=text)
    with pytest.raises(UsageError, match="not a decision log"):
        run(data(models.PLAIN), replay="nonsense")


def stop_at(stage: str) -> tuple[Callable[[Event], None], Callable[[], bool]]:
    """A caller who has enough once a stage begins."""
    seen: list[str] = []
    return (lambda event: seen.append(event.stage)), (lambda: stage in seen)


@pytest.mark.parametrize("stage", ["load", "search", "check"])
def test_a_stop_gives_the_best_that_was_checked(stage: str, tmp_path: Path) -> None:
    progress, stop = stop_at(stage)
    done = run(data(models.PLAIN), progress=progress, stop=stop)
    after = saved(done, tmp_path)
    assert same(model(models.PLAIN), after, x=X)
    if stage == "check":
        assert done.winner is not None
        assert done.winner.check.input_sets == ("normal",)
        assert done.winner.check.skipped == (
            "adversarial, uniform inputs: no time was left for float64; outputs are close to"
            " those of the original in onnxruntime",
        )
    else:
        assert done.winner is None
        assert (tmp_path / "saved.onnx").read_bytes() == data(models.PLAIN)


def test_a_budget_that_is_too_short_is_said_to_be() -> None:
    found = report(run(data(models.PLAIN), budget=1e-9))
    assert not found.changed
    assert any("too short for a search" in n for n in found.notes)


def test_a_small_model_is_read_however_long_the_rules_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the library takes longer to load than a short budget."""
    now = time.monotonic
    late = 0.0

    def load() -> tuple[Rule, ...]:
        nonlocal late
        late = 60.0
        return rules()

    monkeypatch.setattr(rule_library, "load_library", load)
    monkeypatch.setattr(time, "monotonic", lambda: now() + late)
    found = superopt.optimize(data(models.PLAIN), budget=1.0, cost="roofline")
    assert not found.report.changed
    assert found.report.notes


def test_nothing_is_left_behind_when_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def progress(event: Event) -> None:
        if event.stage == "check":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(data(models.PLAIN), progress=progress)
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_model_is_refused() -> None:
    with pytest.raises(ModelError):
        run(b"nonsense")


def test_the_whole_library_on_every_small_model(tmp_path: Path) -> None:
    library = tuple(load_library())
    for name in ("PLAIN", "DYNAMIC", "TOPK", "RANDOM", "NONZERO", "LOOP", "CUSTOM", "INTEGERS"):
        done = optimize.optimize(
            load_model(read_model(data(getattr(models, name)))), request(rules=library, budget=60.0)
        )
        assert done.winner is not None, name
        assert not math.isnan(done.cost_after)


def test_rules_that_the_opset_cannot_say_are_left_out() -> None:
    gelu = "to-gelu(x: f): Relu(x) => Gelu(x) ; float=E1"
    found = report(run(data(models.TOPK), rules=rules(gelu)))
    assert all(s.rule != "to-gelu" for s in found.steps)
    assert all(r.rule != "to-gelu" for r in found.rejected)
