"""Models in ONNX's text syntax."""

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser


def graph_model(text: str) -> onnx.ModelProto:
    """The model of a graph; inputs whose names begin with "w" are constants."""
    m = onnx.ModelProto(ir_version=10)
    m.opset_import.add(domain="", version=13)
    m.graph.CopyFrom(parser.parse_graph("g " + text))
    for v in [*m.graph.input]:
        if v.name.startswith("w"):
            kind = v.type.tensor_type
            drawn = _drawn([d.dim_value for d in kind.shape.dim], v.name)
            drawn = drawn.astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
            m.graph.initializer.append(numpy_helper.from_array(drawn, v.name))
            m.graph.input.remove(v)
    return m


def _drawn(shape: list[int], name: str) -> np.ndarray:
    return np.random.default_rng([*name.encode()]).standard_normal(shape).astype(np.float32)
