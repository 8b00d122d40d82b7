"""The model of the examples: three matrix products of one input, and a Transpose that cancels."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
attention (float[batch, 64] x) => (float[batch, 64] y)
{
    t = Transpose<perm = [1, 0]>(x)
    u = Transpose<perm = [1, 0]>(t)
    q = MatMul(u, wq)
    k = MatMul(u, wk)
    v = MatMul(u, wv)
    s = Mul(q, k)
    p = Softmax<axis = 1>(s)
    y = Mul(p, v)
}
"""


def write(path: str = "model.onnx", seed: int = 0) -> str:
    """Write the model with random weights, and return its path."""
    model = parser.parse_model(TEXT)
    rng = np.random.default_rng(seed)
    for name in ("wq", "wk", "wv"):
        weight = (rng.standard_normal((64, 64)) / 8).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    onnx.checker.check_model(model)
    Path(path).write_bytes(model.SerializeToString())
    return path


def inputs(batch: int = 8) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((batch, 64)).astype(np.float32)}


if __name__ == "__main__":
    print(write())
