"""Prove two models equal, and find an input on which two other models differ.

python examples/verify_two_models.py [a.onnx b.onnx]
"""

import sys

import onnx
import small_model
from onnx import numpy_helper

import superopt


def without_transposes(path: str) -> str:
    """Write the model without the two Transposes, which cancel."""
    model = onnx.load(path)
    for node in [n for n in model.graph.node if n.op_type == "Transpose"]:
        model.graph.node.remove(node)
    for node in model.graph.node:
        node.input[:] = ["x" if name == "u" else name for name in node.input]
    onnx.save(model, "shorter.onnx")
    return "shorter.onnx"


def with_another_weight(path: str) -> str:
    """Write the model with one weight changed by 0.01."""
    model = onnx.load(path)
    weight = numpy_helper.to_array(model.graph.initializer[0]).copy()
    weight[3, 5] += 0.01
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "wq"))
    onnx.save(model, "wrong.onnx")
    return "wrong.onnx"


def main() -> None:
    if len(sys.argv) == 3:
        print(superopt.verify(sys.argv[1], sys.argv[2]))
        return
    path = small_model.write()
    print(superopt.verify(path, without_transposes(path)))  # proved, for every batch
    print(superopt.verify(path, with_another_weight(path)))  # differs


if __name__ == "__main__":
    main()
