"""Run a model through ONNX's backend interface, and compare with ONNX's reference evaluator.

python examples/onnx_backend.py [model.onnx]
"""

import sys

import numpy as np
import onnx
import onnx.reference
import small_model

import superopt.backend


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else small_model.write()
    model = onnx.load(path)
    feeds = small_model.inputs()
    assert superopt.backend.supports_device("CPU")
    results = superopt.backend.prepare(model, threads=1).run(feeds)
    expected = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    for output, got, want in zip(model.graph.output, results, expected, strict=True):
        print(f"{output.name}: {got.shape}, largest difference {np.abs(got - want).max():.1e}")


if __name__ == "__main__":
    main()
