"""The public functions on one small model, in every form in which a model may be given."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import pytest

import superopt
from superopt.api import functions
from superopt.cost.store import Store
from superopt.errors import UsageError
from tests.support.optimization import models
from tests.support.optimization.running import values

X = {"x": np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)}


def as_path(folder: Path) -> object:
    path = folder / "model.onnx"
    onnx.save(models.model(models.PLAIN), str(path))
    return path


FORMS: dict[str, Callable[[Path], object]] = {
    "path": as_path,
    "text path": lambda folder: str(as_path(folder)),
    "bytes": lambda folder: models.data(models.PLAIN),
    "proto": lambda folder: models.model(models.PLAIN),
    "onnx_ir": lambda folder: ir.from_proto(models.model(models.PLAIN)),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("form", FORMS)
def test_optimize_takes_a_model_in_every_form(form: str, tmp_path: Path) -> None:
    given = FORMS[form](tmp_path)
    done = superopt.optimize(given, budget=10, cost="roofline")  # type: ignore[arg-type]
    assert done.changed
    assert done.cost_after < done.cost_before
    assert done.report.check is not None
    assert done.report.check.passed
    names = {s.rule for s in done.report.steps}  # by hand or generated
    assert names & {"transpose-transpose", "transpose-transpose--same"}
    assert any("nothing was timed" in n for n in done.report.notes)
    before, after = values(models.model(models.PLAIN), X), values(done.model, X)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    done.save(tmp_path / "fast.onnx")
    assert onnx.load(str(tmp_path / "fast.onnx")) == done.model


def test_the_model_that_is_given_is_not_changed() -> None:
    given = models.model(models.PLAIN)
    before = given.SerializeToString()
    superopt.optimize(given, budget=10, cost="roofline")
    assert given.SerializeToString() == before


def test_its_decisions_lead_to_the_same_file() -> None:
    data = models.data(models.PLAIN)
    first = superopt.optimize(data, budget=10, cost="roofline")
    again = superopt.optimize(data, replay=first.decisions)
    assert again.model == first.model


def test_verify_sees_what_optimize_kept_and_what_it_did_not(tmp_path: Path) -> None:
    data = models.data(models.PLAIN)
    done = superopt.optimize(data, budget=10, cost="roofline")
    assert superopt.verify(data, data).decision == "proved"
    assert superopt.verify(data, done.model).decision == "proved"
    assert superopt.verify(data, done.model, method="numeric").decision == "agrees"
    wrong = models.model(models.PLAIN, seed=1)
    assert superopt.verify(data, wrong).decision == "differs"


THREE = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[3] x, float[3] y) => (float[3] a, float[3] b, float[3] c)
{{
  two = Constant <value_float = 2.0> ()
  one = Constant <value_float = 1.0> ()
  {}
}}
"""


@pytest.mark.ci
def test_each_output_has_a_verdict_of_its_own() -> None:
    """One is summed in another order, one is wrong, and of one nothing is known but examples."""
    given = onnx.parser.parse_model(
        THREE.format("a = Add(x, y)\n b = Mul(x, y)\n s = Sin(x)\n c = Mul(s, s)")
    )
    half = "d = Mul(two, x)\n e = Cos(d)\n f = Sub(one, e)\n c = Div(f, two)"
    wrong = onnx.parser.parse_model(THREE.format(f"a = Add(y, x)\n b = Mul(x, x)\n {half}"))
    found = superopt.verify(given, wrong, limit=5)
    assert found.decision == "differs"
    assert [(o.name, o.decision) for o in found.outputs] == [
        ("a", "proved"), ("b", "refuted"), ("c", "unknown"),
    ]  # fmt: skip
    assert found.outputs[1].reason.startswith("at ["), "where"
    right = onnx.parser.parse_model(THREE.format(f"a = Add(y, x)\n b = Mul(y, x)\n {half}"))
    found = superopt.verify(given, right, limit=5)
    assert found.decision == "agrees"
    assert [o.decision for o in found.outputs] == ["proved", "proved", "unknown"]
    found = superopt.verify(given, right, method="index", limit=5)
    assert found.decision == "unknown"
    assert [o.decision for o in found.outputs] == ["proved", "proved", "unknown"]


def test_large_elements_do_not_hide_small_ones_that_are_wrong() -> None:
    def scaled(value: float) -> onnx.ModelProto:
        w = np.array([1e7, value, 1, 1, 1, 1], np.float32)
        return with_weight("y = Mul(x, w)", w)

    assert superopt.verify(scaled(1), scaled(1)).decision == "proved"
    assert superopt.verify(scaled(1), scaled(2)).decision == "differs"


def test_an_error_of_the_original_does_not_hide_another() -> None:
    """x + 1e6 - 1e6 is off by 0.03 itself."""
    w = np.array([1e6, 0, 0, 0, 0, 0], np.float32)
    right = with_weight("a = Add(x, w)\n y = Sub(a, w)", w)
    wrong = with_weight(
        "a = Add(x, w)\n b = Sub(a, w)\n e = Constant<value_float = 0.01>()\n y = Add(b, e)", w
    )
    assert superopt.verify(right, wrong).decision == "differs"


def test_numbers_whose_squares_overflow_are_compared() -> None:
    def scaled(value: float) -> onnx.ModelProto:
        text = WEIGHED.replace("float[", "double[").format("y = Mul(x, w)")
        return filled(text, np.full(6, value))

    assert superopt.verify(scaled(1e200), scaled(3e200)).decision == "differs"


def test_a_library_rule_that_changes_an_infinity_is_not_used() -> None:
    """0 - 0 is 0, and -0 is not: 1 / (0 - relu(x)) has infinities of another sign."""
    zero = np.zeros(6, np.float32)
    given = with_weight("r = Relu(x)\n s = Relu(r)\n z = Sub(w, s)\n y = Reciprocal(z)", zero)
    done = superopt.optimize(given, budget=10, cost="roofline")
    before, after = (values(m, X) for m in (given, done.model))
    assert np.array_equal(before[0], after[0])
    assert any("was not used: y: NaN or inf" in n for n in done.report.notes)


WEIGHED = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4, 6] x) => (float[4, 6] y)
<float[6] w>
{{
  {}
}}
"""


def with_weight(body: str, w: np.ndarray) -> onnx.ModelProto:
    return filled(WEIGHED.format(body), w)


def filled(text: str, w: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    (declared,) = model.graph.value_info
    model.graph.value_info.remove(declared)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    return model


def test_bench_times_what_it_is_given(tmp_path: Path) -> None:
    path = as_path(tmp_path)
    rows = superopt.bench([path, path], seconds=0.5)  # type: ignore[list-item]
    assert [r.model for r in rows] == ["model.onnx", "model.onnx"]
    assert all(r.latency is not None and r.latency.us_median > 0 for r in rows)


def test_bench_on_a_gpu_of_what_does_not_run_there() -> None:
    with pytest.raises(UsageError, match="no runtime of ort, openvino supports a GPU"):
        superopt.bench(["m.onnx"], target="cuda", vs=("ort", "openvino"))


def test_bench_of_a_model_that_says_another_shape_than_it_gives(tmp_path: Path) -> None:
    """onnxruntime runs it, and binds no output that is as it says."""
    x, y = (
        onnx.helper.make_tensor_value_info(n, 1, [1, 2, s, s]) for n, s in (("x", 50), ("y", 34))
    )
    scales = onnx.numpy_helper.from_array(np.array([1, 1, 0.7, 0.7], np.float32), "s")
    node = onnx.helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear")
    graph = onnx.helper.make_graph([node], "g", [x], [y], [scales])
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / "m.onnx"
    )
    (row,) = superopt.bench([tmp_path / "m.onnx"], seconds=0.2)
    assert row.latency is not None


@pytest.mark.ci
def test_a_store_goes_to_another_machine_of_its_kind(tmp_path: Path) -> None:
    here, there, file = (tmp_path / f"{n}.sqlite3" for n in ("here", "there", "file"))
    superopt.optimize(models.data(models.PLAIN), budget=10, store=here, target="cpu")
    with Store.open(here) as store:
        operators = store.stats().operators
    assert operators
    assert functions.cache_export(here, file) >= operators
    assert functions.cache_import(there, file) >= operators
    again = superopt.optimize(models.data(models.PLAIN), budget=10, store=there, target="cpu")
    assert again.report.search.measured_ops == 0
    assert again.report.search.store_hits
    assert functions.cache_clear(there)
    assert functions.cache_stats(there).entries == 0


def test_derive_tells_how_far_a_rule_is_proved_and_what_it_does_to_floats() -> None:
    w = np.ones(6, np.float32)
    one = with_weight("a = Relu(x)\n b = Relu(a)\n y = Add(b, w)", w)
    two = with_weight("a = Relu(x)\n y = Add(w, a)", w)
    found = superopt.derive(one, two)
    assert found.derived
    assert found.steps
    assert {s.tier for s in found.steps} == {"A"}
    assert {s.float_class for s in found.steps} <= {"E0", "E1"}


def test_derive_looks_for_no_chain_between_models_that_differ() -> None:
    w = np.ones(6, np.float32)
    found = superopt.derive(with_weight("y = Add(x, w)", w), with_weight("y = Sub(x, w)", w))
    assert found.differ
    assert not found.derived
    assert found.reason.startswith("output y differs on random inputs")
    sizes = functions.derive(models.data(RAGGED.format(2)), models.data(RAGGED.format(3)))
    assert sizes.reason == "output y has shapes (2, 6) and (3, 6)"
    whole = [models.data(WHOLE.format(n)) for n in (3, 1)]
    assert functions.derive(*whole).reason.startswith("output y differs on random inputs at [")


RAGGED = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4, 6] x) => (float[n, 6] y)
<int64[1] s = {{0}}, int64[1] e = {{{}}}>
{{
  y = Slice(x, s, e)
}}
"""


WHOLE = """
<ir_version: 8, opset_import: ["" : 17]>
g (int64[9] x) => (int64[9] y)
<int64 n = {{{}}}>
{{
  y = Mod(x, n)
}}
"""


def test_rules_are_counted() -> None:
    counts = functions.rule_stats()
    assert sum(c.rules for c in counts) == len(functions.rules())
    assert all(c.rules == sum(n for _, n in c.float_classes) for c in counts)


def test_every_public_name_is_there() -> None:
    for name in superopt.__all__:
        assert getattr(superopt, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        superopt.optimise  # noqa: B018


def test_results_have_short_texts(tmp_path: Path) -> None:
    """The text of a result held the model's weights: millions of characters."""
    path = Path(str(as_path(tmp_path))).rename(tmp_path / "m.onnx")
    exe = superopt.compile(path)
    found = superopt.optimize(path, budget=5, cost="roofline")
    verdict = superopt.verify(path, path)
    profile = exe.profile(seconds=0.01)
    for result, start in (
        (found, "<Optimized m.onnx: "), (verdict, "<Verdict proved: "),
        (exe, "<Executable ("), (profile, "<Profile of m.onnx: "),
    ):  # fmt: skip
        assert repr(result).startswith(start)
        assert len(repr(result)) < 200
        assert result._repr_html_().startswith("<pre>")
    assert str(found).startswith("m.onnx: ")
    assert len(str(found).splitlines()) <= 13
