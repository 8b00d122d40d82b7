"""Recurrent layers of any number of steps and with all options, against ONNX's definition in
float64 and against onnxruntime."""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt
from superopt import ort
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.compilation.model.compiler import Compiler
from superopt.ir import graph as ir_graph
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.graph.partition import unsupported_reason
from superopt.plan.graph.recurrent_layer import GATES, MAX_UNROLLED_STEPS, MAX_UNROLLED_STEPS_GPU
from tests.support.compilation.cache import at_rest, counting
from tests.support.compilation.exporting import CC, HERE, OK, InC
from tests.support.compilation.recurrent import loops
from tests.support.ops.recurrent_reference import FUNCTIONS, expected

OUTPUTS = {"LSTM": ("y", "yh", "yc"), "GRU": ("y", "yh"), "RNN": ("y", "yh")}
ORDER = ("x", "w", "r", "b", "lengths", "h", "c", "p")
Feeds = dict[str, np.ndarray]
# Options by name; "lengths", "states", "peepholes", "bias" and "outputs" are inputs and outputs.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clip": {"clip": 0.4},
    "sequence_lens": {"lengths": True, "states": True},
    "no bias": {"bias": False, "states": True},
    "peepholes": {"peepholes": True, "states": True},
    "peepholes, clip": {"peepholes": True, "clip": 0.4},
    "input_forget": {"input_forget": 1, "peepholes": True},
    "linear_before_reset": {"linear_before_reset": 1},
    "linear_before_reset, no bias": {"linear_before_reset": 1, "bias": False},
    "only Y_h": {"outputs": ("yh",)},
    "only Y": {"outputs": ("y",)},
    "only Y_h of sequence_lens": {"outputs": ("yh",), "lengths": True},
}
ONLY = {"input_forget": "LSTM", "peepholes": "LSTM", "linear_before_reset": "GRU"}


def model(
    kind: str, steps: int | str, direction: str = "forward", layout: int = 0, batch: int = 3,
    size: int = 4, hidden: int = 5, bias: bool = True, states: bool = False, lengths: bool = False,
    peepholes: bool = False, outputs: tuple[str, ...] | None = None, scale: float = 0.7,
    constant: bool = True, **attrs: Any,
) -> tuple[onnx.ModelProto, Feeds, list[np.ndarray]]:  # fmt: skip
    """The model, its inputs, and all results in float64. constant: are W, R, B and P initializers?
    They are inputs else."""
    rng = np.random.default_rng(steps if isinstance(steps, int) else 0)
    d, n, t = (
        1 + (direction == "bidirectional"),
        GATES[kind],
        steps if isinstance(steps, int) else 7,
    )

    def drawn(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    def turned(a: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(a.swapaxes(0, 1)) if layout else a

    given: Feeds = {
        "x": turned(drawn(t, batch, size)),
        "w": drawn(d, n * hidden, size),
        "r": drawn(d, n * hidden, hidden),
    }
    given |= {"b": drawn(d, 2 * n * hidden)} if bias else {}
    if lengths:
        given["lengths"] = np.array([t, *rng.integers(0, t + 1, batch - 1)], np.int32)
    if states:
        given["h"] = turned(drawn(d, batch, hidden))
        given |= {"c": turned(drawn(d, batch, hidden))} if kind == "LSTM" else {}
    given |= {"p": drawn(d, 3 * hidden)} if peepholes else {}
    names = [k if k in given else "" for k in ORDER]
    while not names[-1]:
        names.pop()
    some = outputs or OUTPUTS[kind]
    attrs |= {"layout": layout} if layout else {}
    node = helper.make_node(
        kind, names, [k if k in some else "" for k in OUTPUTS[kind]], hidden_size=hidden,
        direction=direction, **attrs,
    )  # fmt: skip
    known = {k: given.pop(k) for k in "wrbp" if k in given} if constant else {}
    symbols = {"x": steps} if isinstance(steps, str) else {}
    graph = helper.make_graph(
        [node], "recurrent", [_input(k, a, symbols.get(k)) for k, a in given.items()],
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, None) for k in some],
        [onnx.numpy_helper.from_array(v, k) for k, v in known.items()],
    )  # fmt: skip
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    made = onnx.shape_inference.infer_shapes(m)
    wanted = expected(kind, **given, **known, direction=direction, **attrs)
    by_name = dict(zip(OUTPUTS[kind], wanted, strict=True))
    return made, given, [by_name[k] for k in some]


def _input(name: str, a: np.ndarray, symbol: str | None) -> onnx.ValueInfoProto:
    kind = TensorProto.INT32 if a.dtype == np.int32 else TensorProto.FLOAT
    shape: list[int | str] = list(a.shape)
    if symbol is not None:
        shape[0] = symbol
    return helper.make_tensor_value_info(name, kind, shape)


def close(got: Feeds, wanted: list[np.ndarray], tolerance: float = 2e-5) -> None:
    for a, b in zip(got.values(), wanted, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, float(abs(b).max())))


def fits(kind: str, option: str) -> bool:
    return all(kind == only for key, only in ONLY.items() if key in OPTIONS[option])


@pytest.mark.one_in(12)
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("kind", "option"), [(k, o) for k, o in product(GATES, OPTIONS) if fits(k, o)]
)
def test_options(kind: str, option: str, direction: str, layout: int) -> None:
    for steps in (2, 12):
        m, x, wanted = model(kind, steps, direction, layout, **OPTIONS[option])
        exe = superopt.compile(m)
        assert not exe.fallback_nodes({})
        close(exe.run(x), wanted)
        if not layout:  # which onnxruntime does not have
            theirs = ort.run(ort.load_session(m.SerializeToString()), x)
            close(theirs, wanted)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("steps", [255, 256, 257, 300, 600])
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_many_steps(kind: str, direction: str, steps: int) -> None:
    m, x, wanted = model(kind, steps, direction, states=True, lengths=True, scale=0.3)
    exe = superopt.compile(m)
    assert not exe.fallback_nodes({})
    assert {c.steps for c in loops(exe)} >= {steps}
    close(exe.run(x), wanted)
    close(ort.run(ort.load_session(m.SerializeToString()), x), wanted)


@pytest.mark.parametrize("kind", GATES)
def test_the_code_does_not_hang_on_the_number_of_steps(kind: str) -> None:
    found = []
    for steps in (100, 400):
        m, _, _ = model(kind, steps)
        (step,) = superopt.compile(m).variant({})
        assert isinstance(step, NativeSegment)
        found.append(sorted(step.code.program.kernels))
    assert found[0] == found[1]


@pytest.mark.one_in(8)
@pytest.mark.parametrize("steps", [3, 20])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations(name: str, steps: int) -> None:
    numbers = {"activation_alpha": [0.3, 0.2], "activation_beta": [0.4, 0.1]}
    for kind, rest in (("RNN", []), ("GRU", ["Tanh"]), ("LSTM", ["Softsign", "Tanh"])):
        m, x, wanted = model(kind, steps, scale=0.3, activations=[name, *rest], **numbers)
        exe = superopt.compile(m)
        assert not exe.fallback_nodes({})
        close(exe.run(x), wanted)
        close(ort.run(ort.load_session(m.SerializeToString()), x), wanted)


@pytest.mark.parametrize("steps", [3, 20])
def test_each_direction_has_functions_of_its_own(steps: int) -> None:
    names = ["Relu", "Tanh", "Sigmoid", "HardSigmoid", "LeakyRelu", "Softsign"]
    m, x, wanted = model("LSTM", steps, "bidirectional", scale=0.3, activations=names)
    exe = superopt.compile(m)
    assert not exe.fallback_nodes({})
    close(exe.run(x), wanted)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("steps", [4, 40])
@pytest.mark.parametrize("kind", GATES)
def test_matrices_may_be_inputs(kind: str, steps: int) -> None:
    options = {"peepholes": True} if kind == "LSTM" else {}
    m, x, wanted = model(kind, steps, "bidirectional", constant=False, lengths=True, **options)
    exe = superopt.compile(m)
    assert not exe.fallback_nodes({})
    close(exe.run(x), wanted)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_threads(kind: str, direction: str, threads: int, layout: int) -> None:
    """Directions and sequences are shared out."""
    options: dict[str, Any] = {"states": True, "lengths": True, "batch": 5, "hidden": 72}
    m, x, wanted = model(kind, 60, direction, layout, size=33, scale=0.1, **options)
    exe = superopt.compile(m, threads=threads)
    directions = 1 + (direction == "bidirectional")
    assert [len(c.lanes) for c in loops(exe) if c.steps == 60] == [max(threads, directions)]
    for _ in range(3):
        close(exe.run(x), wanted)


def test_other_sizes_may_be_symbolic() -> None:
    """Of values that pass by a loop, whose own sizes are numbers."""
    m, x, wanted = model("GRU", 20, outputs=("yh",))
    for k in ("t", "q"):
        m.graph.input.append(helper.make_tensor_value_info(k, TensorProto.FLOAT, ["n", 5]))
    m.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 1, 3, 5]))
    m.graph.node.append(helper.make_node("Exp", ["t"], ["e"]))
    m.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 2]), "axes"))
    m.graph.node.append(helper.make_node("Mul", ["e", "q"], ["eq"]))
    m.graph.node.append(helper.make_node("Unsqueeze", ["eq", "axes"], ["u"]))
    m.graph.node.append(helper.make_node("Add", ["u", "yh"], ["z"]))
    exe = superopt.compile(m)
    for n in (1, 40):
        own = {k: np.full((n, 5), v, np.float32) for k, v in (("t", 0.5), ("q", 2.0))}
        z = 2 * np.exp(np.float32(0.5)) + wanted[0][None]
        close(exe.run(x | own), [wanted[0], np.broadcast_to(z, (n, 1, 3, 5))])
        assert not exe.fallback_nodes({"n": n})


def test_layers_one_after_the_other() -> None:
    """A stack with other nodes between, and an output of a layer that another one reads."""
    rng = np.random.default_rng(0)
    known = {
        f"{k}{n}": (rng.standard_normal(s) * 0.3).astype(np.float32)
        for n, size in enumerate((6, 16))
        for k, s in (("w", (2, 24, size)), ("r", (2, 24, 8)), ("b", (2, 48)))
    }
    both: dict[str, Any] = {"hidden_size": 8, "direction": "bidirectional"}
    nodes = [
        helper.make_node("GRU", ["x", "w0", "r0", "b0"], ["y0", "h0"], **both),
        helper.make_node("Transpose", ["y0"], ["t"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["t", "shape"], ["s"]),
        helper.make_node("GRU", ["s", "w1", "r1", "b1", "", "h0"], ["y1", "h1"], **both),
        helper.make_node("Relu", ["h1"], ["z"]),
    ]  # fmt: skip
    float_ = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "stack", [helper.make_tensor_value_info("x", float_, [30, 2, 6])],
        [helper.make_tensor_value_info(k, float_, None) for k in ("y1", "z", "h0")],
        [onnx.numpy_helper.from_array(v, k) for k, v in known.items()]
        + [onnx.numpy_helper.from_array(np.array([30, 2, 16]), "shape")],
    )  # fmt: skip
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    m = onnx.shape_inference.infer_shapes(m)
    x = rng.standard_normal((30, 2, 6)).astype(np.float32)

    def layer(a: np.ndarray, n: int, h: np.ndarray | None = None) -> list[np.ndarray]:
        own = (known[f"{k}{n}"] for k in "wrb")
        return expected("GRU", a, *own, h=h, direction="bidirectional")

    y0, h0 = layer(x, 0)
    y1, h1 = layer(y0.transpose(0, 2, 1, 3).reshape(30, 2, 16), 1, h0)
    for threads in (1, 2):
        exe = superopt.compile(m, threads=threads)
        assert not exe.fallback_nodes({})
        assert len(loops(exe)) >= 2
        close(exe.run({"x": x}), [y1, np.maximum(h1, 0), h0])


def test_a_new_number_of_steps_is_compiled_soon() -> None:
    m, _, _ = model("LSTM", "t", "bidirectional", size=64, hidden=64, batch=1, scale=0.1)
    exe = superopt.compile(m)
    spent = []
    for steps in (100, 131, 262, 393):
        x = {"x": np.random.default_rng(0).standard_normal((steps, 1, 64)).astype(np.float32)}
        begin = time.process_time()
        got = exe.run(x)
        spent.append(time.process_time() - begin)
        close(got, list(ort.run(ort.load_session(m.SerializeToString()), x).values()))
    assert not exe.fallback_nodes({"t": 393})
    assert min(spent[1:]) < 0.3  # seconds; 4 steps written out take as long


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"activations": ["Affine"]}, "activation 'affine' without activation_alpha"),
        ({"activations": ["ThresholdedRelu"]}, "'thresholdedrelu' without activation_alpha"),
    ],
)
def test_what_runs_in_onnxruntime_says_why(options: dict[str, Any], cause: str) -> None:
    m, x, _ = model("RNN", 12, **options)
    exe = superopt.compile(m)
    (pair,) = exe.fallback_nodes({})
    assert cause in pair[1]
    close(exe.run(x), list(ort.run(ort.load_session(m.SerializeToString()), x).values()))


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"steps": 1025}, "LSTM: more than 1024 steps: 1025"),
        ({"steps": 600, "direction": "bidirectional"}, "600 in each of 2 directions"),
        ({"peepholes": True, "clip": 0.5}, "LSTM: peepholes, clip on this target"),
        ({"lengths": True}, "LSTM: sequence_lens on this target"),
        ({"activations": ["Relu", "Tanh", "Tanh"]}, "LSTM: activations on this target"),
        ({"input_forget": 1}, "LSTM: input_forget on this target"),
        ({}, ""),
    ],
    ids=str,
)
def test_a_target_without_loops_says_why(options: dict[str, Any], cause: str) -> None:
    m, _, _ = model("LSTM", **{"steps": 12, **options})
    (n,) = (n for n in ir_graph.nodes(import_model(read_model(m)).graph) if n.op.name == "LSTM")
    found = unsupported_reason(n, {}, MAX_UNROLLED_STEPS_GPU)
    assert found.endswith(cause) if cause else not found
    assert not unsupported_reason(n, {})


def test_saved_and_loaded(tmp_path: Path) -> None:
    m, x, wanted = model("LSTM", 40, "bidirectional", peepholes=True, lengths=True)
    superopt.compile(m).save(tmp_path / "m.superopt")
    again = superopt.load(tmp_path / "m.superopt")
    assert loops(again)
    close(again.run(x), wanted)


@pytest.mark.ci
def test_profile_has_a_line_for_each_loop() -> None:
    m, x, _ = model("LSTM", MAX_UNROLLED_STEPS + 1)
    exe = superopt.compile(m)
    found = exe.profile(x, seconds=0.01)
    own = [p for p in found.parts if p.how.startswith("loop of")]
    assert len(own) == len(loops(exe))
    assert own[-1].how.startswith(f"loop of {MAX_UNROLLED_STEPS + 1} steps")
    assert all(p.operations > 0 for p in own)
    assert "loop of" in str(found)


@pytest.mark.parametrize("steps", [24, "t"])
def test_accuracy(steps: int | str) -> None:
    m, _, _ = model("LSTM", steps, "bidirectional", peepholes=True, scale=0.3)
    found = superopt.compile(m).accuracy({"t": 24} if steps == "t" else None, sets=1)
    assert [o.name for o in found.outputs] == ["y", "yh", "yc"]
    assert all(0 < o.max_error < 1e-5 and not o.failure for o in found.outputs)


def test_kept_for_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second compiler takes the program with its loops as it was kept."""
    at_rest(tmp_path, monkeypatch)
    m, x, wanted = model("GRU", 30, "bidirectional", lengths=True)
    onnx.save(m, tmp_path / "m.onnx")
    calls = counting(Compiler, monkeypatch)
    for _ in range(2):
        exe = superopt.compile(tmp_path / "m.onnx")
        close(exe.run(x), wanted)
    assert len(calls) == 1
    assert loops(exe)


@pytest.mark.parametrize("threads", [1, 2])
def test_exported_to_c(threads: int, tmp_path: Path) -> None:
    if CC is None or not HERE:
        pytest.skip("shared objects need Linux on x86-64 and a C compiler")
    m, x, _ = model("LSTM", 50, "bidirectional", lengths=True)
    exe = superopt.compile(m, threads=threads)
    wanted = exe.run(x)
    opened = InC(exe.export(tmp_path / "m"))
    assert opened.error == OK
    for _ in range(2):
        for k, got in opened.run(x).items():
            np.testing.assert_array_equal(got, wanted[k], strict=True)
    opened.close()
