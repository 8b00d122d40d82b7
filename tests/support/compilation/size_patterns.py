"""Small models as exporters write them, whose shapes are computed from sizes (size_patterns.txt) or
that have parts in onnxruntime (part_patterns.txt).

A pattern is a line "name: inputs" and its nodes in ONNX's text form; numbers among the operands are
constants, and the result is y.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADER = '<ir_version: 9, opset_import: ["": 18]>'
NUMBERS = re.compile(r"(?:(?<=\()|(?<=, ))(?:\[[^]]*\]|-?\d[\d.]*)")
DTYPES = {
    TensorProto.FLOAT: np.float32,
    TensorProto.INT64: np.int64,
    TensorProto.BOOL: np.bool_,
}


def read_patterns(name: str) -> dict[str, tuple[str, str]]:
    """Return the inputs and nodes of the patterns in a file, by name."""
    out: dict[str, tuple[str, str]] = {}
    for line in Path(__file__).with_name(name).read_text().splitlines():
        if not line.startswith(" "):
            title, _, inputs = line.partition(": ")
            out[title] = inputs, ""
        else:
            out[title] = out[title][0], out[title][1] + line + "\n"
    return out


def pattern_model(inputs: str, nodes: str) -> onnx.ModelProto:
    """Return the model of a pattern."""
    constants: list[onnx.TensorProto] = []

    def constant(found: re.Match[str]) -> str:
        value = eval(found[0], {})
        is_float = isinstance(value[0] if isinstance(value, list) else value, float)
        array = np.array(value, np.float32 if is_float else np.int64)
        constants.append(numpy_helper.from_array(array, f"constant{len(constants)}"))
        return constants[-1].name

    lines = []
    for line in nodes.splitlines():
        head, end, arguments = line.rpartition("(")
        lines.append(head + NUMBERS.sub(constant, end + arguments))
    text = "\n".join(lines)
    m = onnx.parser.parse_model(f"{HEADER} g ({inputs}) => (float y) {{\n{text}\n}}")
    m.graph.initializer.extend(constants)
    m.graph.output[0].CopyFrom(helper.make_empty_tensor_value_info("y"))
    inferred = onnx.shape_inference.infer_shapes(m).graph.output[0].type.tensor_type.elem_type
    m.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", inferred, None))
    return m


def size_names(m: onnx.ModelProto) -> list[str]:
    """Return the names of the symbolic sizes of the inputs."""
    return sorted({d for _, shape in _inputs(m) for d in shape if isinstance(d, str)})


def _inputs(m: onnx.ModelProto) -> Iterator[tuple[onnx.ValueInfoProto, list[int | str]]]:
    for i in m.graph.input:
        dims = i.type.tensor_type.shape.dim
        yield i, [d.dim_param or d.dim_value for d in dims]


def pattern_feeds(
    m: onnx.ModelProto, sizes: Mapping[str, int], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return random inputs; half of the elements of x are 0, integers are 0 or 1."""
    out = {}
    for i, dims in _inputs(m):
        shape = [d if isinstance(d, int) else sizes[d] for d in dims]
        dtype = DTYPES[i.type.tensor_type.elem_type]
        kept = rng.random(shape) < 0.5
        x = rng.standard_normal(shape) if dtype is np.float32 else kept
        if i.name == "x":
            x = x * kept
        if i.name == "k":  # elements that TopK selects
            x = np.full(shape, rng.integers(max(sizes["s"] // 2, 1), max(sizes["s"], 1) + 1))
        out[i.name] = x.astype(dtype)
    return out
