"""Models in ONNX's text syntax."""

import numpy as np
import onnx
from onnx import numpy_helper, parser


def graph_model(text: str) -> onnx.ModelProto:
    """The model of a graph; inputs whose names begin with "w" are constants."""
    m = onnx.ModelProto(ir_version=10)
    m.opset_import.add(domain="", version=13)
    m.graph.CopyFrom(parser.parse_graph("g " + text))
    for v in [*m.graph.input]:
        if v.name.startswith("w"):
            shape = [d.dim_value for d in v.type.tensor_type.shape.dim]
            m.graph.initializer.append(numpy_helper.from_array(_drawn(shape, v.name), v.name))
            m.graph.input.remove(v)
    return m


def _drawn(shape: list[int], name: str) -> np.ndarray:
    return np.random.default_rng([*name.encode()]).standard_normal(shape).astype(np.float32)
