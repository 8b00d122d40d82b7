"""ONNX's own node tests, run on the operators' tensor expressions.

A case is *run* when every node of its model has a tensor expression. If one has it only where a
shape-like operand is known, and that operand comes from graph inputs, they are *bound* to the
case's values first. All else is *left out*, for a reason that the tables below give by operator
wherever they can.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import onnx
from onnx.backend.test.case import base
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.reference.ops import op_pool_common

from superopt.ir.evaluate import evaluate
from superopt.onnx_io.import_.importer import Model, import_model
from superopt.onnx_io.import_.schema import find_operator
from superopt.onnx_io.read.source import read_model
from tests.support.paths import ROOT

BFLOAT16_RTOL = 2**-6  # two steps, as in onnx.backend.test.runner
LISTED = ROOT / "tests" / "ops" / "backend_suite.txt"

# Operators of ONNX without a tensor expression, by why; a case with one of them is left out.
OPAQUE: Mapping[str, str] = {
    "the size of a result depends on the data": "Compress NonMaxSuppression NonZero Unique",
    "control flow": "If Loop Scan",
    "sequences and optional values": (
        "OptionalGetElement OptionalHasElement SequenceEmpty SequenceInsert SequenceLength"
        " SequenceMap SplitToSequence"
    ),
    "strings": "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer",
    "images in files": "ImageDecoder",
    "random": "Bernoulli RandomUniformLike",
    "recurrent": "GRU LSTM RNN LinearAttention",
    "samples at places that depend on the data": "DeformConv MaxUnpool RoiAlign",
    "deprecated": "Scatter",
    "an operator not defined yet": "Det MelWeightMatrix",
}
# Of the operators with one, the forms that lie outside of it, by how their cases' names begin.
OUTSIDE: Mapping[str, str] = {
    "test_training_dropout": "random",
    "test_maxpool_with_argmax": "the second result of MaxPool",
    "test_resize_": "antialias, crop and other rare forms of Resize",
    "test_blackmanwindow_expanded": "a size computed in floats",
    "test_blackmanwindow_symmetric_expanded": "a size computed in floats",
    "test_hammingwindow_expanded": "a size computed in floats",
    "test_hammingwindow_symmetric_expanded": "a size computed in floats",
    "test_hannwindow_expanded": "a size computed in floats",
    "test_hannwindow_symmetric_expanded": "a size computed in floats",
}
# Cases whose expected values hold a rounding error above their own tolerance: by name, why.
ROUNDED: Mapping[str, str] = dict.fromkeys(
    ("test_dft_inverse", "test_dft_inverse_opset19"),
    "expects the 2e-7 that numpy's float32 FFT leaves of a zero, with an atol of 1e-7",
)


@dataclass(frozen=True, slots=True)
class Runnable:
    """A case whose nodes all have tensor expressions; `bound` inputs are constants in `model`."""

    model: Model
    bound: tuple[str, ...]
    feeds: Mapping[str, np.ndarray]
    expected: tuple[np.ndarray, ...]
    rtol: float
    atol: float
    name: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A case that is not run, and why: a reason of the tables, or "" if they have none."""

    reason: str
    detail: str


@lru_cache(maxsize=1)
def cases() -> Mapping[str, TestCase]:
    """Every node case of the installed onnx by name. Takes seconds, therefore once a process."""
    with (
        warnings.catch_warnings(),
        patch.object(op_pool_common, "pool", partial(pool, op_pool_common.pool)),
        patch.object(base, "process_snippet", lambda *a: ("", "")),  # each case's text, for docs
    ):
        warnings.simplefilter("ignore")  # the generators overflow and divide by zero on purpose
        return {c.name: c for c in load_model_tests(kind="node")}


def pool(
    slow: Callable[..., np.ndarray], padded: np.ndarray, x_shape: Sequence[int],
    kernel: Sequence[int], strides: Sequence[int] | None, out_shape: Sequence[int], kind: str,
    *others: object, **options: int,
) -> np.ndarray:  # fmt: skip
    """What onnx's `pool` gives, which computes one window after the other: seven of the ten seconds
    that the cases take. Where there are pads or dilations `slow` computes it."""
    if others or options.keys() - {"p"}:
        return slow(padded, x_shape, kernel, strides, out_shape, kind, *others, **options)
    spatial = tuple(range(2, padded.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(padded, tuple(kernel), spatial)
    steps = tuple(slice(None, None, step) for step in strides or [1] * len(spatial))
    windows = windows[:, :, *steps]
    axes = tuple(range(padded.ndim, windows.ndim))
    if kind == "AVG":
        return windows.mean(axes)
    if kind == "MAX":
        return windows.max(axes)
    p = options["p"]
    return (np.abs(windows) ** p).sum(axes) ** (1.0 / p)


def prepare(case: TestCase) -> Runnable | LeftOut:
    """The case as it can be run, or why it cannot."""
    proto = case.model
    if case.name in ROUNDED:
        return LeftOut(ROUNDED[case.name], case.name)
    kinds = {v.type.WhichOneof("value") for v in (*proto.graph.input, *proto.graph.output)}
    if kinds - {"tensor_type"}:
        return LeftOut("sequences and optional values", f"{kinds}")
    ((inputs, outputs),) = case.data_sets
    names = [v.name for v in proto.graph.input]
    feeds = {n: array_of(v) for n, v in zip(names, inputs, strict=True)}
    expected = tuple(array_of(v) for v in outputs)
    bound: tuple[str, ...] = ()
    model = import_model(read_model(proto))
    if model.opaque_reasons and (bound := shape_inputs(proto)):
        model = import_model(read_model(with_constants(proto, {n: feeds[n] for n in bound})))
    if model.opaque_reasons:
        return LeftOut(reason(case), "; ".join(f"{n}: {why}" for n, why in model.opaque_reasons))
    rest = {n: v for n, v in feeds.items() if n not in bound}
    return Runnable(model, bound, rest, expected, case.rtol, case.atol, case.name)


def run(case: Runnable) -> None:
    """Evaluate, and raise AssertionError unless the results are the expected ones.

    Element types and shapes must be equal, integers, bools and strings too, floats within the
    case's own tolerances; bfloat16, whose step is wider than those, as onnx's own runner has it.
    """
    results = evaluate(case.model.graph, case.feeds)
    assert len(results) == len(case.expected)
    for got, wanted in zip(results, case.expected, strict=True):
        assert got.shape == wanted.shape
        if wanted.dtype.kind in "OUT":
            assert got.dtype.kind in "OUT"
            assert [str(e) for e in got.flat] == [str(e) for e in wanted.flat]
            continue
        assert got.dtype == wanted.dtype
        defined = defined_elements(case.name, [*case.feeds.values()], wanted)
        got, wanted = got[defined], wanted[defined]
        if wanted.dtype.kind in "biu" or is_small_integer(wanted.dtype):
            np.testing.assert_array_equal(got, wanted)
        elif wanted.dtype.kind == "c":
            np.testing.assert_allclose(got, wanted, case.rtol, case.atol)
        else:  # numpy cannot compare the small floats with a tolerance
            wide = np.float64
            rtol = max(case.rtol, BFLOAT16_RTOL) if wanted.dtype.name == "bfloat16" else case.rtol
            np.testing.assert_allclose(got.astype(wide), wanted.astype(wide), rtol, case.atol)


def is_small_integer(dtype: np.dtype) -> bool:
    """Is this one of ml_dtypes' integers of 2 or 4 bits?"""
    return dtype.name in ("int2", "uint2", "int4", "uint4")


def defined_elements(name: str, inputs: Sequence[np.ndarray], wanted: np.ndarray) -> Any:
    """Return the index of a case's elements that ONNX defines: of floats cast to few bits those in
    the range. What onnx expects of others depends on the version of ml_dtypes: 0.7 has 0, earlier
    ones wrap."""
    if not re.match(r"test_cast(like)?_FLOAT(16)?_to_U?INT[24]", name):
        return ...
    info = ml_dtypes.iinfo(wanted.dtype)
    whole = np.trunc(inputs[0].astype(np.float64))
    found: np.ndarray = (info.min <= whole) & (whole <= info.max)
    assert found.any()
    return found


def array_of(value: object) -> np.ndarray:
    """An operand or result of a case, which gives small floats as TensorProto."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value)


def reason(case: TestCase) -> str:
    """The tables' reason to leave the case out, "" if they have none."""
    for pattern, why in OUTSIDE.items():
        if case.name.startswith(pattern):
            return why
    domains = {n.domain for n in case.model.graph.node} - {"", "ai.onnx"}
    if domains:
        return f"operators of {', '.join(sorted(domains))}"
    used = {n.op_type for n in case.model.graph.node}
    for why, operators in OPAQUE.items():
        if used & set(operators.split()):
            return why
    kinds = (
        v.type.tensor_type.elem_type for v in (*case.model.graph.input, *case.model.graph.output)
    )
    if onnx.TensorProto.STRING in kinds:
        return "strings"
    return ""


def shape_inputs(proto: onnx.ModelProto) -> tuple[str, ...]:
    """The graph inputs from which operands are computed that the operators take as attributes."""
    producer = {name: n for n in proto.graph.node for name in n.output}
    wanted = [name for n in proto.graph.node for name in _attribute_operands(n, proto)]
    seen: set[str] = set()
    while wanted:
        name = wanted.pop()
        if not name or name in seen:
            continue
        seen.add(name)
        n = producer.get(name)
        if n is not None and n.op_type not in ("Shape", "Size"):
            wanted.extend(n.input)
    return tuple(v.name for v in proto.graph.input if v.name in seen)


def _attribute_operands(n: onnx.NodeProto, proto: onnx.ModelProto) -> Iterator[str]:
    version = {o.domain: o.version for o in proto.opset_import}.get(n.domain, 0)
    told = find_operator(n.op_type, n.domain, version)
    if told is None:
        return
    found, s, _ = told
    for position, name in enumerate(n.input):
        formal = s.operands[min(position, len(s.operands) - 1)]
        if formal.name in found.attrs and not formal.variadic:
            yield name


def with_constants(proto: onnx.ModelProto, values: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """The model with some inputs turned into initializers."""
    out = onnx.ModelProto()
    out.CopyFrom(proto)
    kept = [v for v in out.graph.input if v.name not in values]
    del out.graph.input[:]
    out.graph.input.extend(kept)
    for name, value in values.items():
        out.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return out


def listed() -> tuple[tuple[str, bool], ...]:
    """The cases that must run, and are they bound: what the committed list says."""
    return tuple((w[0], w[1:] == ["bound"]) for w in _listed_words() if w[1:] != ["left-out"])


def case_names() -> list[str]:
    """The names of all cases, by the committed list: `cases()` takes seconds."""
    return sorted(w[0] for w in _listed_words())


def _listed_words() -> list[list[str]]:
    lines = LISTED.read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


def listed_version() -> str:
    """The version of onnx whose cases the committed list holds."""
    return LISTED.read_text(encoding="utf-8").splitlines()[0].removeprefix("# onnx ")


def write_list(rows: Sequence[tuple[str, bool]], left_out: Iterable[str]) -> None:
    """Replace the committed list."""
    lines = [f"# onnx {onnx.__version__}", *(f"{n} bound" if b else n for n, b in rows)]
    lines += [f"{n} left-out" for n in sorted(left_out)]
    LISTED.write_text("\n".join(lines) + "\n", encoding="utf-8")
