#!/usr/bin/env python3
"""Models with branches and loops of symbolic sizes, compiled, beside onnxruntime on one thread.

    scripts/bench_control_flow.py [MODEL ...] [--calls 400] [--rounds 8]
                                  [--specialize background]

Models: voice (an If on the sampling rate, a short-time Fourier transform, one step of an LSTM),
recognizer (a text recognizer with bidirectional LSTMs), audio (an LSTM and a GRU over time), scan,
loop (a gated recurrent cell whose number of steps is an input). Each is called at one size
(`same`), at sizes that vary from call to call (`varied`), and at sizes that no call had before
(`new`), in turns with onnxruntime. Microseconds are medians of the thread's processor time; the
calls before are not measured: rounds of calls at other sizes, until nothing compiles in the
background.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.support.compilation.branch_models import RATES, detector_inputs, voice_detector
from tests.support.compilation.sequence_models import (
    audio_net,
    draw,
    gated_loop,
    scan_cell,
    text_recognizer,
)

Feeds = dict[str, np.ndarray]
LOOP_WIDTH = 64
MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], Callable[[int], Feeds], Sequence[int]]] = {
    "voice": (voice_detector, lambda n: detector_inputs(1, n, RATES[True]), range(512, 1100)),
    "recognizer": (text_recognizer, lambda n: {"x": draw(1, 1, 16, n, scale=1)}, range(64, 400)),
    "audio": (audio_net, lambda n: {"x": draw(1, 20, n, scale=1)}, range(64, 400)),
    "scan": (scan_cell, lambda n: {"x": draw(n, 1, 12, scale=1)}, range(64, 400)),
    "loop": (
        lambda: gated_loop(LOOP_WIDTH, "n"),
        lambda n: {"x": draw(n % 8 + 1, LOOP_WIDTH, scale=1), "steps": np.array(n)},
        range(8, 136),
    ),
}


def measure(
    ours: Callable[[Feeds], object], theirs: Callable[[Feeds], object], given: Sequence[Feeds]
) -> tuple[float, float]:
    """Return the median microseconds of both functions, which run in turns."""
    spent: tuple[list[float], list[float]] = ([], [])
    for feeds in given:
        for call, own in zip((ours, theirs), spent, strict=True):
            begin = time.thread_time()
            call(feeds)
            own.append(1e6 * (time.thread_time() - begin))
    return statistics.median(spent[0]), statistics.median(spent[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--specialize", default="background")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SUPEROPT_CACHE"] = folder
        print(f"{'model':12} {'sizes':8} {'superopt us':>12} {'onnxruntime us':>15} {'ratio':>6}")
        for name in args.models or MODELS:
            bench(name, args.calls, args.rounds, args.specialize)


def bench(name: str, calls: int, rounds: int, specialize: str) -> None:
    import onnxruntime

    import superopt

    make, feeds, sizes = MODELS[name]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    data = make().SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    exe = superopt.compile(make(), threads=1, specialize=specialize)
    rng = np.random.default_rng(0)
    drawn = [feeds(int(n)) for n in rng.permutation(sizes)]
    known, new = drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]
    varied = [known[k] for k in rng.integers(len(known), size=calls)]
    for _ in range(rounds):
        for x in varied:
            check(exe.run(x), session.run(None, x))
        exe.wait()
    for kind, given in (("new", new), ("varied", varied), ("same", varied[:1] * calls)):
        ours, theirs = measure(exe.run, lambda x: session.run(None, x), given)
        print(f"{name:12} {kind:8} {ours:12.1f} {theirs:15.1f} {theirs / ours:6.2f}", flush=True)


def check(found: dict[str, np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    for a, b in zip(found.values(), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


if __name__ == "__main__":
    main()
