"""Rewrite a model so that onnxruntime runs it faster, and write it with its certificate.

python examples/optimize.py [model.onnx]
"""

import sys

import small_model

import superopt


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else small_model.write()
    result = superopt.optimize(path, budget=20)
    print(result)
    certificate = result.save("fast.onnx")
    if not result.changed:
        print("fast.onnx is a copy of the model: no rewrite was faster")
        return
    for step in result.report.steps:
        print(f"{step.rule}: proof tier {step.tier}, float class {step.float_class}")
    # The replay needs neither the search nor the measurements.
    print(superopt.verify(path, "fast.onnx", certificate=certificate))


if __name__ == "__main__":
    main()
