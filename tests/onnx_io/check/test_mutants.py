"""Damaged models are refused in words, or are valid, or are what onnxruntime loads nevertheless: no
crash, no hang, nothing else let through."""

import resource
import time
from pathlib import Path

import onnx
import pytest

import superopt
from superopt.errors import ModelError
from tests.support.children import Crashed, in_child
from tests.support.onnx_io.models import MODELS
from tests.support.onnx_io.mutants import MUTATIONS, mutants

SEED = 0
ALL = dict(mutants(SEED))
GB = 1 << 30


def accept(data: bytes) -> bool:
    """Whether the product takes this model: optimizes it, and has a result to write."""
    try:
        superopt.optimize(data, budget=3, cost="roofline").model  # noqa: B018 - made when asked for
    except ModelError as refusal:
        check_words(refusal)
        return False
    return True


def _in_use() -> int:
    """Bytes of address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def check_words(error: ModelError) -> None:
    """What, why and what to do: a line each."""
    for line in (error.what, error.why, error.todo):
        assert line.strip(), error
        assert "\n" not in line
        assert len(line) < 600


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Children are forks of this process: what a first call loads is not what a mutant takes."""
    assert accept(MODELS["conv_net"]().SerializeToString())


def with_known_operators(data: bytes) -> bytes:
    """Return the model with a function for its operator of another domain, which superopt carries
    through and onnxruntime does not know."""
    model = onnx.load_from_string(data)
    if any(o.domain == "org.example" for o in model.opset_import):
        copies = [onnx.helper.make_node("Identity", [x], [y]) for x, y in (("a", "c"), ("b", "d"))]
        opset = [onnx.helper.make_opsetid("", 17)]
        made = onnx.helper.make_function(
            "org.example", "Unheard", ["a", "b"], ["c", "d"], copies, opset, ["level", "mode"]
        )
        model.functions.append(made)
    return model.SerializeToString()  # type: ignore[no-any-return]


def onnxruntime_loads(data: bytes) -> bool:
    """True if onnxruntime makes a session of the model, in a process that it may crash."""
    ort = pytest.importorskip("onnxruntime")
    data = with_known_operators(data)

    def load() -> bool:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        try:
            ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception:
            return False
        return True

    try:
        return in_child(load, seconds=20)
    except Crashed:
        return False


def onnx_accepts(data: bytes) -> bool:
    """The verdict of onnx's own checker, which may crash over it."""

    def check() -> bool:
        try:
            onnx.checker.check_model(data, full_check=True)
        except Exception:
            return False
        return True

    try:
        return in_child(check, seconds=20)
    except Crashed:
        return False


def test_there_are_enough() -> None:
    assert len(ALL) >= 300
    assert dict(mutants(SEED)) == ALL
    assert dict(mutants(SEED + 1)) != ALL
    names = {name.partition("-")[2] for name in ALL}
    unused = {mutation.__name__ for mutation in MUTATIONS} - names
    assert not unused, "these mutations changed no model"


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", MODELS)
def test_the_originals_are_accepted(name: str) -> None:
    data = MODELS[name]().SerializeToString()
    assert onnx_accepts(data)
    assert accept(data)


@pytest.mark.one_in(22)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if i % 3 else ()) for i, n in enumerate(ALL)]
)
def test_mutant(name: str) -> None:
    data = ALL[name]

    def measured() -> tuple[bool, float]:
        resource.setrlimit(resource.RLIMIT_AS, (_in_use() + GB, resource.RLIM_INFINITY))
        start = time.process_time()
        return accept(data), time.process_time() - start

    accepted, seconds = in_child(measured, seconds=20)
    assert seconds < 5
    if accepted:
        known = onnx_accepts(data) or onnxruntime_loads(data)
        assert known, "onnx's checker and onnxruntime reject what was accepted"


ALWAYS_INVALID = [
    *("dangling_input", "read_itself", "cycle", "same_output", "output_named_as_input"),
    *("repeat_node", "repeat_initializer", "nameless_initializer", "repeat_graph_input"),
    *("drop_graph_inputs", "unmade_output", "untyped_attribute", "repeat_attribute"),
    *("negative_dim", "huge_dim", "overflowing_dims", "fewer_bytes", "more_bytes", "no_data"),
    *("data_twice", "escaping_data", "no_graph", "nothing_in_graph", "repeat_metadata"),
    *("lost_capture", "empty_body", "shadowing_body", "recursive_function", "repeat_function"),
    *("doubling_functions", "function_reads_outside", "function_without_output"),
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("mutation", ALWAYS_INVALID)
def test_what_can_never_be_valid(mutation: str) -> None:
    found = [name for name in ALL if name.partition("-")[2] == mutation]
    assert found
    # Of models that onnxruntime has no operators for, what is mended as it would is accepted, too.
    some = [n for n in found if mutation != "repeat_initializer" or "custom_domain" not in n]
    accepted = [name for name in some if accept(ALL[name])]
    assert [name for name in accepted if not onnxruntime_loads(ALL[name])] == []
