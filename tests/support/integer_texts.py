"""Graphs of 8-bit integers in ONNX's text syntax, with constants and inputs of the whole range."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser


def drawn_integer_model(text: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return the model of a graph, and its inputs. Inputs of the text whose names begin with "w"
    become constants."""
    m = onnx.ModelProto(ir_version=10)
    m.opset_import.add(domain="", version=21)
    m.graph.CopyFrom(parser.parse_graph("g " + text))
    feeds = {}
    for k, v in enumerate([*m.graph.input]):
        kind = v.type.tensor_type
        array = _draw([d.dim_value for d in kind.shape.dim], kind.elem_type, k)
        if v.name[0] == "w":
            m.graph.initializer.append(numpy_helper.from_array(array, v.name))
            m.graph.input.remove(v)
        else:
            feeds[v.name] = array
    return m, feeds


def _draw(shape: list[int], kind: int, seed: int) -> np.ndarray:
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    rng = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.floating):
        return np.asarray(rng.standard_normal(shape), dtype)
    ends = np.iinfo(dtype)
    return rng.integers(ends.min, ends.max + 1, shape).astype(dtype)
