"""Compile a model, compare it with onnxruntime and print the time of each kernel.

python examples/compile_and_profile.py [model.onnx]
"""

import sys
import time

import numpy as np
import onnxruntime
import small_model

import superopt


def milliseconds(call, rounds: int = 200) -> float:
    call()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return 1e3 * float(np.median(times))


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else small_model.write()
    exe = superopt.compile(path, threads=1)
    feeds = small_model.inputs()

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    expected = dict(zip(exe.output_names, session.run(None, feeds), strict=True))
    for name, value in exe.run(feeds).items():
        print(f"{name}: largest difference {np.abs(value - expected[name]).max():.1e}")

    print(f"onnxruntime {milliseconds(lambda: session.run(None, feeds)):.4f} ms")
    print(f"superopt    {milliseconds(lambda: exe.run(feeds)):.4f} ms")
    print(exe.profile(feeds, seconds=0.5))
    print(exe.accuracy({"batch": 8}))


if __name__ == "__main__":
    main()
