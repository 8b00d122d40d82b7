"""How long kernels take: each call is timed, and what it must take at least is counted right."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.api import functions
from superopt.errors import UsageError
from superopt.ir.op import canonical_attrs, expression
from superopt.kernels.algorithms.candidate_costs import TERMS
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import build_choice, options
from superopt.kernels.llvm.operation_count import count_bytes, count_operations
from superopt.kernels.loops.layout import Layout, ScatteredLayout, parse_layout
from superopt.kernels.loops.option import Option
from superopt.kernels.processor import AVX2, ZEN5
from superopt.kernels.runtime.cpu_peak import buffer_sizes
from superopt.kernels.runtime.engine import Machine
from superopt.ops import OPS
from superopt.plan.program.call_operations import stage_operations
from superopt.report.compilation.profile import KernelProfile, Profile
from superopt.te.analysis.walk import loads
from superopt.te.expr.dtype import F32, I64
from superopt.te.expr.tensor import Tensor, TensorType, apply, compute, gather, reduce_sum
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


def test_factors_known_at_compile_time_cost_less() -> None:
    """Of six factors one is 0 and two are 1 or -1: five sums and three products."""
    table = Tensor("t", F32, (2, 3))
    t = compute((2, 7), lambda i, j: reduce_sum(3, lambda k: table[i, k] * B[k, j]))
    values = np.array([[0, 1, 2], [-1, 3, 4]], np.float32)
    assert count_operations(t) == 7 * 12
    assert count_operations(t, {table: values}) == 7 * (5 + 3)


def _algorithm_operations(
    algorithm: str, op: str, shapes: tuple[tuple[int, ...], ...], **attrs: object
) -> tuple[Option, int, int]:
    """An option of a convolution or product, its operations, and those of a direct computation."""
    types = tuple(TensorType(F32, shape) for shape in shapes)
    (t,) = expression(OPS[op], types, canonical_attrs(OPS[op], types, attrs))
    assert t.body is not None
    _, weight = dict.fromkeys(x.tensor for x in loads(t.body))
    form = "i0 i1//16 i2{0} i3{0} i1%16"
    layouts: dict[Tensor, Layout | ScatteredLayout] = {}
    if op == "Conv":
        layouts = {t: parse_layout(form.format(""))}
        layouts |= {
            x.tensor: parse_layout(form.format("+1"))
            for x in loads(t.body)
            if x.tensor is not weight
        }
    p = Problem(t, layouts, {weight}, 64)
    option = next(o for o in options(p) if o.algorithm == algorithm)
    total = count_operations(t)
    return option, sum(stage_operations(build_choice(p, option), total)), total


def test_strassen_has_seven_of_eight_products_at_each_level() -> None:
    option, own, total = _algorithm_operations("strassen", "MatMul", ((1024, 1024), (1024, 1024)))
    share = (7 / 8) ** option["levels"]
    assert share < own / total < share + 0.1


def test_winograd_has_fewer_products() -> None:
    shapes = ((1, 64, 56, 56), (64, 64, 3, 3))
    option, own, total = _algorithm_operations("winograd", "Conv", shapes, pads=(1, 1, 1, 1))
    share = (option["m"] + 2) ** 2 / (9 * option["m"] ** 2)
    assert share < own / total < share + 0.12


def test_operations_of_all_calls_are_those_of_the_algorithm() -> None:
    """A call that prepares another one has its own; the model's are counted once."""
    exe = superopt.compile(
        model(
            [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
            {"x": (F, [1, 128, 28, 28])}, ["y"],
            {"w": np.random.default_rng(0).normal(size=(128, 128, 3, 3)).astype(np.float32)},
        )
    )  # fmt: skip
    parts = exe.profile(seconds=0.05).parts
    direct = 28 * 28 * 128 * 128 * 9 * 2
    assert sum(p.model_operations for p in parts) == pytest.approx(direct, rel=0.01)
    for p in parts:
        assert 0 <= p.operations <= p.model_operations
        assert p.saved_operations == (p.how.split()[0] in ("winograd", "strassen") and p.bytes > 0)


def test_no_kernel_is_shown_above_its_bound() -> None:
    fast = KernelProfile("y", ("Conv",), "f32[8]", "direct", 1e-3, 10**9, 10**9, 4, 2e-3, 1e-9)
    slow = replace(fast, seconds=4e-3)
    assert (fast.roofline_share, fast.is_above_peak) == (1.0, True)
    assert (slow.roofline_share, slow.is_above_peak) == (0.5, False)
    machine = "a machine with a name that is far too long for one line of the picture " * 3
    found = Profile(
        "m.onnx", (), 1, machine, 5, 5e-3, 5e11, ((1 << 14, 1e11), (1 << 28, 1e10)), (fast, slow)
    )
    assert found.roofline_share == pytest.approx(3 / 5)
    assert "1 call was faster than the measured peaks allow and count as 100 %" in str(found)
    picture = ET.fromstring(found.svg())
    shares = re.findall(r"(\d+) %", found.svg())
    assert shares
    assert max(map(int, shares)) == 100
    texts = [e for e in picture.iter() if e.tag.endswith("text")]
    said = " ".join("".join(e.itertext()) for e in texts)
    assert machine.strip() in said
    width = float(picture.attrib["width"])
    letter = {"name": 9.8}  # pixels of a letter, of 16 instead of 12 pixels
    for e in texts:
        if e.attrib["class"] in ("name", "said", "label"):
            size = letter.get(e.attrib["class"], 7.35) * len("".join(e.itertext()))
            assert float(e.attrib["x"]) + size <= width
    bars = [e for e in picture.iter() if e.tag.endswith("rect") and "height" in e.attrib][1:]
    for bar, bound in pairwise(bars):
        if bound.attrib["class"] == "done":
            assert float(bound.attrib["width"]) <= float(bar.attrib["width"])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_each_call_is_timed(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = property(lambda m: ZEN5 if m.width == 64 else AVX2)  # where Winograd does not pay
    monkeypatch.setattr(Machine, "processor", costs)
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


def test_the_table_and_the_plot_name_every_kernel() -> None:
    found = superopt.compile(net(9)).profile(seconds=0.05)
    text = str(found)
    assert all(p.type in text for p in found.parts)
    picture = ET.fromstring(found.svg())
    dots = [e for e in picture.iter() if e.tag.endswith("circle")]
    assert len(dots) == sum(1 for p in found.parts if p.operations and p.bytes)
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
    with pytest.raises(superopt.UsageError, match=f"that takes {buffer_sizes(1)[-1]} bytes"):
        superopt.compile(net(9)).profile(seconds=0.01)


def test_a_kernel_is_explained() -> None:
    exe = superopt.compile(net())
    found = exe.explain_kernel("1", seconds=0.05)
    assert found.seconds > 0
    assert found.chosen in {c.option for c in found.candidates}
    assert all(len(c.seconds) == len(TERMS) and c.bound in TERMS for c in found.candidates)
    assert "measured in this run" in str(found)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [("0", "no kernel 0"), ("99", "no kernel 99"), ("Nothing", "0 kernels are named Nothing")],
)
def test_kernels_that_are_not_there_are_not_explained(kernel: str, message: str) -> None:
    exe = superopt.compile(net())
    with pytest.raises(UsageError, match=message):
        exe.explain_kernel(kernel, seconds=0.05)


def test_the_command_explains_a_kernel(
    superopt: Callable[..., SimpleNamespace], tmp_path: Path
) -> None:
    onnx.save(net(), tmp_path / "m.onnx")
    done = superopt(
        "profile", tmp_path / "m.onnx", "--seconds", "0.05", "--why", "1", api=functions
    )
    assert "  chosen: " in done.out
    assert "What bounds the block sizes" in done.out
