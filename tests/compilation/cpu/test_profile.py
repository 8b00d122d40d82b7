"""How long kernels take: each call is timed, and what it must take at least is counted right."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.kernels.llvm.operation_count import count_bytes, count_operations
from superopt.te.expr.dtype import F32, I64
from superopt.te.expr.tensor import Tensor, apply, compute, gather, reduce_sum
from tests.support.compilation.models import F, model, net

A, B, C = Tensor("a", F32, (6, 5)), Tensor("b", F32, (5, 7)), Tensor("c", F32, (7,))
ROWS, TABLE = Tensor("rows", I64, (3,)), Tensor("table", F32, (1000, 8))
MIDDLE = compute((6, 5), lambda i, k: A[i, k] * 2, name="middle")

WORK = {  # tensor, operations, bytes of constants (B, C) and of all else
    "a product": (
        compute((6, 7), lambda i, j: reduce_sum(5, lambda k: A[i, k] * B[k, j])),
        *(2 * 6 * 5 * 7, 4 * 35, 4 * (30 + 42)),
    ),
    "with a sum after it": (
        compute((6, 7), lambda i, j: reduce_sum(5, lambda k: A[i, k] * B[k, j]) + C[j]),
        *(2 * 6 * 5 * 7 + 42, 4 * (35 + 7), 4 * (30 + 42)),
    ),
    "what hangs on fewer axes is counted once for these": (
        compute((6, 7), lambda i, j: C[j] * 2 + A[i, 0]),
        *(7 + 42, 4 * 7, 4 * (6 + 42)),
    ),
    "what is computed on the way": (
        compute((6, 7), lambda i, j: reduce_sum(5, lambda k: MIDDLE[i, k] * B[k, j])),
        *(30 + 2 * 6 * 5 * 7, 4 * 35, 4 * (30 + 42)),
    ),
    "rows of a table": (
        compute((3, 8), lambda i, j: TABLE[gather(ROWS[i], 1000), j]),
        *(0, 0, 3 * 8 + 4 * 24 + 4 * 24),
    ),
    "windows read each element once": (
        compute((4,), lambda i: reduce_sum(3, lambda k: C[i + k])),
        *(12, 4 * 6 + 4, 4 * 4),
    ),
    "a function is as many as its polynomial has": (
        compute((7,), lambda i: apply("exp", C[i])),
        *(7 * 17, 4 * 7, 4 * 7),
    ),
}


@pytest.mark.parametrize("name", WORK)
def test_operations_and_bytes(name: str) -> None:
    t, count, fixed, other = WORK[name]
    assert count_operations(t) == count
    assert count_bytes(t, {B, C}) == (fixed, other)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_each_call_is_timed(threads: int) -> None:
    exe = superopt.compile(net(33), threads=threads)
    x = np.random.default_rng(0).standard_normal((2, 3, 33, 33), np.float32)
    before = exe(x=x)
    found = exe.profile({"x": x}, seconds=0.2)
    (step,) = exe.variant({"n": 2})
    assert len(found.parts) == len(step.code.program.calls)  # type: ignore[union-attr]
    assert all(p.seconds > 0 for p in found.parts)
    assert sum(p.seconds for p in found.parts) == pytest.approx(found.seconds, rel=0.5)
    convs = [p for p in found.parts if "Conv" in p.ops]
    assert {"d", "g"} <= {p.name for p in convs}
    positions = 2 * 33 * 33
    direct = 2 * 9 * 16 * (3 + 16) + 2 * 16 * 24 + 2 * 9 * 24
    own = sum(p.operations for p in convs)
    assert positions * direct <= own <= positions * direct * 1.1  # with Relu and Add
    after = exe(x=x)
    assert all(np.array_equal(before[n], after[n]) for n in before)


def test_names_are_the_models_also_after_rewriting() -> None:
    rng = np.random.default_rng(0)
    some = {n: rng.random(4, np.float32) + 1 for n in ("scale", "shift", "mean", "var")}
    weight = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    m = model(
        [
            helper.make_node("Conv", ["x", "w"], ["first"], pads=[1] * 4),
            helper.make_node("BatchNormalization", ["first", *some], ["second"]),
            helper.make_node("Relu", ["second"], ["third"]),
            helper.make_node("MaxPool", ["third"], ["y"], kernel_shape=[2, 2]),
        ],
        {"x": (F, [1, 3, 12, 12])},
        ["y"],
        {"w": weight, **some},
    )
    found = superopt.compile(m).profile(seconds=0.05)
    assert ("Conv", "Relu") in {p.ops for p in found.parts}
    assert {"third", "y"} <= {p.name for p in found.parts}


def test_parts_in_onnxruntime_are_timed_too() -> None:
    pytest.importorskip("onnxruntime")
    m = model(
        [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("NonZero", ["a"], ["y"]),
        ],
        {"x": (F, [100_000])},  # enough for a kernel of its own
        ["y"],
    )
    found = superopt.compile(m).profile(seconds=0.05)
    assert [p.how for p in found.parts][-1] == "onnxruntime"
    assert found.parts[-1].ops == ("NonZero",)


def test_the_table_and_the_picture_name_every_kernel() -> None:
    found = superopt.compile(net(9)).profile(seconds=0.05)
    text = str(found)
    assert all(p.type in text for p in found.parts)
    picture = ET.fromstring(found.svg())
    dots = [e for e in picture.iter() if e.tag.endswith("circle")]
    assert len(dots) == sum(1 for p in found.parts if p.operations)
    inside = re.fullmatch(r"0 0 (\S+) (\S+)", picture.attrib["viewBox"])
    assert inside is not None
    width, height = map(float, inside.groups())
    for dot in dots:
        assert 0 < float(dot.attrib["cx"]) < width
        assert 0 < float(dot.attrib["cy"]) < height


def test_no_inputs_can_be_drawn() -> None:
    with pytest.raises(superopt.UsageError, match="no value for input"):
        superopt.compile(net(9)).profile({})
    with pytest.raises(superopt.UsageError, match="seconds"):
        superopt.compile(net(9)).profile(seconds=0)


def test_a_model_without_kernels() -> None:
    m = model([helper.make_node("Identity", ["x"], ["y"])], {"x": (F, [3])}, ["y"])
    found = superopt.compile(m).profile(seconds=0.05)
    assert "GFLOP/s" in str(found)
    assert ET.fromstring(found.svg()).tag.endswith("svg")


def test_a_model_of_these_sizes_alone_waits_for_other_calls() -> None:
    """Its memory is that of the model: results were wrong of calls while it was profiled."""
    make = helper.make_node
    nodes = [
        make("Shape", ["x"], ["s"], end=1),
        make("Cast", ["s"], ["f"], to=F),
        make("Sqrt", ["f"], ["r"]),  # of which sizes say nothing
        make("Cast", ["r"], ["k"], to=TensorProto.INT64),
        make("Concat", ["k", "rest"], ["shape"], axis=0),
        make("Reshape", ["x", "shape"], ["a"]),
        make("Softmax", ["a"], ["y"]),
    ]
    exe = superopt.compile(model(nodes, {"x": (F, ["n", 3])}, ["y"], {"rest": np.array([-1])}))
    exe(x=np.zeros((4, 3), np.float32))
    alone = exe.executable_for({"n": 4})
    assert alone is not exe
    assert alone.lock is exe.lock


def test_too_little_memory_for_the_peaks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise MemoryError

    monkeypatch.setattr("superopt.compilation.cpu.profile.measure_cpu_peak", full)
    with pytest.raises(superopt.UsageError, match="that takes 268435456 bytes"):
        superopt.compile(net(9)).profile(seconds=0.01)
