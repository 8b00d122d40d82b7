"""Causal attention as models are exported: the mask is recognised, and attention skips what is
behind it, at fixed sizes and at sizes that are arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import superopt
from superopt import ort
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.kernels.algorithms.causal_mask import CausalSkip, causal_skip
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, F32, I64
from superopt.te.expr.node import Axis, Load, Size
from superopt.te.expr.tensor import Tensor, apply, cast, compare, const, select

FLOAT, LOWEST = TensorProto.FLOAT, float(np.finfo(np.float32).min)
HEADS, WIDTH, LIMIT = 2, 32, 640
node = helper.make_node
Nodes = list[onnx.NodeProto]


def sizes() -> Nodes:
    """The length of the queries, alone (sl) and twice (ss)."""
    return [
        node("Shape", ["q"], ["sh"]),
        node("Gather", ["sh", "last"], ["sl"]),
        node("Concat", ["sl", "sl"], ["ss"], axis=0),
    ]


def full() -> onnx.NodeProto:
    value = helper.make_tensor("v", FLOAT, [1], [LOWEST])
    return node("ConstantOfShape", ["ss"], ["full"], value=value)


def trilu() -> Nodes:
    return [
        *sizes(), full(), node("Trilu", ["full", "one"], ["m"], upper=1),
        node("Add", ["s1", "m"], ["s2"]),
    ]  # fmt: skip


def positions() -> Nodes:
    """A comparison of two Ranges, by Where."""
    return [
        *sizes(), node("Squeeze", ["sl"], ["n"]), node("Range", ["zero", "n", "one"], ["r"]),
        node("Unsqueeze", ["r", "axis0"], ["j"]), node("Unsqueeze", ["r", "axis1"], ["i"]),
        node("LessOrEqual", ["j", "i"], ["c"]), node("Where", ["c", "s1", "low"], ["s2"]),
    ]  # fmt: skip


def sliced() -> Nodes:
    """GPT-2: a constant triangle, sliced, and a padding that is added."""
    return [
        *sizes(),
        node("Slice", ["triangle", "from0", "sl", "axis2"], ["t1"]),
        node("Slice", ["t1", "from0", "sl", "axis3"], ["t2"]),
        node("Where", ["t2", "s1", "low"], ["w"]),
        node("Unsqueeze", ["attention_mask", "axis12"], ["a4"]),
        node("Cast", ["a4"], ["a"], to=FLOAT), node("Sub", ["unit", "a"], ["inverse"]),
        node("Mul", ["inverse", "minus"], ["padding"]), node("Add", ["w", "padding"], ["s2"]),
    ]  # fmt: skip


def filled() -> Nodes:
    """Llama: a triangle whose padded columns are filled."""
    return [
        *sizes(), full(), node("Trilu", ["full", "one"], ["m"], upper=1),
        node("Unsqueeze", ["m", "axis01"], ["m4"]),
        node("Unsqueeze", ["attention_mask", "axis12"], ["a4"]),
        node("Equal", ["a4", "zero"], ["hidden"]), node("Where", ["hidden", "low", "m4"], ["m5"]),
        node("Add", ["s1", "m5"], ["s2"]),
    ]  # fmt: skip


CONSTANTS = {
    "scale": np.float32(WIDTH**-0.5), "low": np.float32(LOWEST), "unit": np.float32(1),
    "minus": np.float32(-10000), "zero": np.int64(0), "one": np.int64(1), "last": np.array([2]),
    "from0": np.array([0]), "axis0": np.array([0]), "axis1": np.array([1]), "axis2": np.array([2]),
    "axis3": np.array([3]), "axis01": np.array([0, 1]), "axis12": np.array([1, 2]),
    "triangle": np.tril(np.ones((1, 1, LIMIT, LIMIT), bool)),
}  # fmt: skip
FORMS: dict[str, Callable[[], Nodes]] = {
    "Trilu": trilu, "Range": positions, "GPT-2": sliced, "Llama": filled,
}  # fmt: skip


def exported(form: str, length: int | str) -> onnx.ModelProto:
    """An attention with the mask of a form; "Attention" is the operator with is_causal."""
    shape = [2, HEADS, length, WIDTH]
    inputs = dict.fromkeys("qkv", (FLOAT, shape))
    if form == "Attention":
        nodes = [node("Attention", [*"qkv"], ["y"], is_causal=1)]
    else:
        masked = FORMS[form]()
        if any("attention_mask" in n.input for n in masked):
            inputs["attention_mask"] = (TensorProto.INT64, [2, length])
        nodes = [
            node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
            node("MatMul", ["q", "kt"], ["s0"]),
            node("Mul", ["s0", "scale"], ["s1"]), *masked, node("Softmax", ["s2"], ["p"], axis=-1),
            node("MatMul", ["p", "v"], ["y"]),
        ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, *t) for n, t in inputs.items()],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in CONSTANTS.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


def feeds(model: onnx.ModelProto, length: int) -> dict[str, np.ndarray]:
    """Random inputs; of the first row the beginning is padding, of the second one the end."""
    rng = np.random.default_rng(length)
    shape = (2, HEADS, length, WIDTH)
    found = {n: rng.standard_normal(shape).astype(np.float32) for n in "qkv"}
    mask = np.ones((2, length), np.int64)
    mask[0, :3] = mask[1, -5:] = 0
    found["attention_mask"] = mask
    return {i.name: found[i.name] for i in model.graph.input}


@pytest.mark.parametrize("is_symbolic", [False, True])
@pytest.mark.parametrize("form", [*FORMS, "Attention"])
def test_exported_masks(form: str, is_symbolic: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    made = exported(form, "s" if is_symbolic else 130)
    onnx.save(made, tmp_path / "m.onnx")
    session = ort.load_session(tmp_path / "m.onnx", 1)
    exe = superopt.compile(made, specialize="never")
    for length in (130, 97, 320) if is_symbolic else (130,):
        given = feeds(made, length)
        (wanted,) = ort.run(session, given).values()
        (got,) = exe.run(given).values()
        if form == "GPT-2":  # rows of padding only are sums of about -1e4, rounded to 1e-3
            got, wanted = got[:, :, 3:], np.asarray(wanted)[:, :, 3:]
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-6)
        (step,) = exe.variant({"s": length} if is_symbolic else {})
        assert isinstance(step, NativeSegment)
        program = step.static_code.program
        kinds = [program.options[key].algorithm for key in program.call_problems if key]
        assert kinds.count("streaming") == 2  # the bounds of keys and values, and attention


QUERY, KEY = Axis("i", 40), Axis("j", 60)
PRODUCT = Load(Tensor("held", F32, ()), (), F32)
PADDING, BIAS = Tensor("padding", F32, (60,)), Tensor("bias", F32, (40, 60))
IS_PADDED = Tensor("padded", BOOL, (60,))
ZERO, LOW = const(0, F32), const(-1e9, F32)
SCORES = PRODUCT * const(0.5, F32)
SEEN = compare("le", KEY, index.as_index(QUERY + 2))
UNSEEN = compare("lt", index.as_index(QUERY + 2), KEY)
TWO = index.as_index(2)
MASKED = {  # scores: what is hidden
    "added": (SCORES + select(SEEN, ZERO, LOW), CausalSkip(TWO, -1e9, 0.5)),
    "chosen": (select(SEEN, SCORES, LOW), CausalSkip(TWO, -1e9, 0.0)),
    "not": (select(apply("not", SEEN, dtype=BOOL), LOW, SCORES), CausalSkip(TWO, -1e9, 0.0)),
    "and": (
        select(apply("and", SEEN, IS_PADDED[KEY], dtype=BOOL), SCORES, LOW),
        CausalSkip(TWO, -1e9, 0.0),
    ),
    "or": (
        SCORES + select(apply("or", IS_PADDED[KEY], UNSEEN, dtype=BOOL), LOW, ZERO),
        CausalSkip(TWO, -1e9, 0.5),
    ),
    "of i64": (
        select(compare("le", cast(KEY, I64), cast(QUERY, I64) + const(2, I64)), SCORES, LOW),
        CausalSkip(TWO, -1e9, 0.0),
    ),
    "a size": (
        select(compare("lt", KEY, index.as_index(QUERY + Size("p"))), SCORES, LOW),
        CausalSkip(index.as_index(Size("p") - 1), -1e9, 0.0),
    ),
    "and padding": (
        select(SEEN, SCORES, LOW) + PADDING[KEY], CausalSkip(TWO, -1e9, 0.0, PADDING[KEY]),
    ),
    "and a bias of rows": (SCORES + select(SEEN, ZERO, LOW) + BIAS[QUERY, KEY], None),
    "no mask": (SCORES + PADDING[KEY], None),
    "what is hidden is larger": (select(SEEN, SCORES, const(1, F32)), None),
    "keys before": (select(compare("le", QUERY, KEY), SCORES, LOW), None),
    "a function of the scores": (apply("tanh", SCORES + select(SEEN, ZERO, LOW)), None),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKED)
def test_hidden_scores(name: str) -> None:
    scores, wanted = MASKED[name]
    assert causal_skip(scores, QUERY, KEY, PRODUCT) == wanted
