#!/usr/bin/env python3
"""Greedy decoding with a GPT-2-size decoder: superopt, onnxruntime and OpenVINO in turns.

    scripts/bench_decoder.py [--kind growing|fixed|tensor_scatter|group_query] [--small]
                             [--capacity 512] [--steps 200] [--prompt 32] [--threads 1]
                             [--vocabulary 50257] [--layers 12] [--block 32 [--zero-points]]

Weights are random, and in a file of external data; with --block of 4 bits (MatMulNBits). In each
step every runtime computes one token of its own sequence. Printed for each runtime: seconds until
the first token (with loading and compiling), milliseconds of the next tokens, the median of the
others, the total, and the peak memory of a process that runs it alone; for superopt the programs
that were compiled after the first token, whether the tokens are those of onnxruntime, and the
bound: the time of reading as many bytes from memory as a token reads of weights, in the same turns.

Caches stay in each runtime: superopt has `bind_state`, onnxruntime OrtValues that are not copied,
OpenVINO the states of its stateful transformation. OpenVINO computes in float32. All kinds but the
first have caches of a fixed capacity, by default the tokens of the run. onnxruntime writes those of
TensorScatter and GroupQueryAttention in place: an input and an output are one OrtValue. OpenVINO
2026 reads neither of these models.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from decoder_models import (  # noqa: E402
    SMALL,
    Size,
    fixed_decoder,
    group_query_decoder,
    growing_decoder,
    tensor_scatter_decoder,
)

MIB = 1 << 20
UNIT_BYTES = 512  # of which `memory_reader` reads a multiple
NEXT_TOKENS = 4  # that are printed one by one
MODELS = {
    "growing": growing_decoder,
    "fixed": fixed_decoder,
    "tensor_scatter": tensor_scatter_decoder,
    "group_query": group_query_decoder,
}


class Decoder(Protocol):
    """A decoder that keeps its cache."""

    def logits(self, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the logits of the last token; feeds: the inputs except the caches."""
        ...


class SuperoptDecoder:
    def __init__(self, path: Path, empty: Mapping[str, np.ndarray], threads: int) -> None:
        import superopt

        exe = superopt.compile(path, threads=threads)
        capacity = max(x.shape[2] for x in empty.values())
        sizes = {"capacity": capacity} if capacity else {}
        self.decode = exe.bind_state({present_name(name): name for name in empty}, sizes=sizes)

    def logits(self, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.asarray(self.decode.run(feeds)["logits"][0, -1])


class OnnxruntimeDecoder:
    """Caches stay OrtValues, which are not copied. Operators of caches of a fixed capacity write
    them in place."""

    def __init__(self, path: Path, empty: Mapping[str, np.ndarray], threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        providers = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        self.make = onnxruntime.OrtValue.ortvalue_from_numpy
        self.cache = {name: self.make(x) for name, x in empty.items()}
        names = {i.name for i in self.session.get_inputs()}
        self.is_in_place = not names.isdisjoint(("write_indices", "seqlens_k"))

    def logits(self, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
        given = {name: self.make(x) for name, x in feeds.items()}
        if self.is_in_place:
            bound = self.session.io_binding()
            bound.bind_output("logits")
            for name, x in {**given, **self.cache}.items():
                bound.bind_ortvalue_input(name, x)
            for name, x in self.cache.items():
                bound.bind_ortvalue_output(present_name(name), x)
            self.session.run_with_iobinding(bound)
            return np.asarray(bound.get_outputs()[0].numpy()[0, -1])
        names = ["logits", *map(present_name, self.cache)]
        first, *rest = self.session.run_with_ort_values(names, {**given, **self.cache})
        self.cache = dict(zip(self.cache, rest, strict=True))
        return np.asarray(first.numpy()[0, -1])


class OpenvinoDecoder:
    """Caches are states of the model; it keeps those that grow in memory with room for more."""

    def __init__(self, path: Path, empty: Mapping[str, np.ndarray], threads: int) -> None:
        import openvino
        from openvino._offline_transformations import apply_make_stateful_transformation

        options = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
            "PERFORMANCE_HINT": "LATENCY",
        }
        core = openvino.Core()
        model = core.read_model(str(path))
        names = [i.get_any_name() for i in model.inputs]
        shapes = {name: [n or -1 for n in empty[name].shape] for name in names if name in empty}
        model.reshape({name: openvino.PartialShape(dims) for name, dims in shapes.items()})
        pairs = {name: present_name(name) for name in empty}
        apply_make_stateful_transformation(model, pairs)
        self.request = core.compile_model(model, "CPU", options).create_infer_request()

    def logits(self, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
        out = self.request.infer(dict(feeds), share_inputs=True)
        return np.asarray(out["logits"][0, -1])


RUNTIMES: dict[str, Callable[[Path, Mapping[str, np.ndarray], int], Decoder]] = {
    "superopt": SuperoptDecoder,
    "onnxruntime": OnnxruntimeDecoder,
    "openvino": OpenvinoDecoder,
}


def present_name(past_name: str) -> str:
    return past_name.replace("past_key_values", "present")


def empty_caches(size: Size, capacity: int) -> dict[str, np.ndarray]:
    """Caches before the first token. capacity: 0 for a past that grows."""
    shape = (1, size.heads, capacity, size.head)
    names = (f"past_key_values.{n}.{k}" for n in range(size.layers) for k in ("key", "value"))
    return {name: np.zeros(shape, np.float32) for name in names}


def step_feeds(kind: str, tokens: np.ndarray, past: int) -> dict[str, np.ndarray]:
    """The inputs of a step except the caches. past: tokens before it."""
    at = np.arange(past, past + len(tokens))
    total = past + len(tokens)
    feeds = {"input_ids": tokens[None], "position_ids": at[None]}
    more: dict[str, dict[str, np.ndarray]] = {
        "growing": {"attention_mask": np.ones((1, total), np.int64)},
        "fixed": {"cache_position": at},
        "tensor_scatter": {
            "write_indices": np.array([past]),
            "nonpad_kv_seqlen": np.array([total]),
        },
        "group_query": {
            "seqlens_k": np.array([total - 1], np.int32),
            "total_sequence_length": np.array(total, np.int32),
        },
    }
    return {**feeds, **more[kind]}


class Greedy:
    """A sequence that a runtime continues with the likeliest token. fed: the tokens of the next
    step. seconds: of each step. clock: processor time, or the time of several threads."""

    def __init__(self, name: str, path: Path, a: argparse.Namespace, size: Size) -> None:
        begin = time.perf_counter()
        capacity = a.capacity or a.prompt + a.steps if a.kind != "growing" else 0
        self.kind, self.past = a.kind, 0
        self.clock = time.process_time if a.threads == 1 else time.perf_counter
        self.fed = np.random.default_rng(1).integers(0, size.vocabulary, a.prompt)
        self.runtime = RUNTIMES[name](path, empty_caches(size, capacity), a.threads)
        self.tokens: list[int] = []
        self.load_seconds = time.perf_counter() - begin
        self.seconds: list[float] = []
        self.used: list[float] = []

    def step(self) -> None:
        feeds = step_feeds(self.kind, self.fed, self.past)
        begin, used = time.perf_counter(), self.clock()
        self.tokens.append(int(np.argmax(self.runtime.logits(feeds))))
        self.seconds.append(time.perf_counter() - begin)
        self.used.append(self.clock() - used)
        self.past += len(self.fed)
        self.fed = np.array(self.tokens[-1:])

    def report(self) -> str:
        ms = 1e3 * np.array(self.seconds)
        some = " ".join(f"{x:.1f}" for x in ms[1 : 1 + NEXT_TOKENS])
        rest = ms[1 + NEXT_TOKENS :]
        used = 1e3 * float(np.median(self.used[1 + NEXT_TOKENS :]))
        timed = f"{np.median(rest):.2f} ms ({self.clock.__name__} {used:.2f})"
        return (
            f"first token {self.load_seconds + self.seconds[0]:.2f} s; then {some} ms; "
            f"median {timed}, longest {ms[1:].max():.1f}; "
            f"tokens after the first {ms[1:].sum() / 1e3:.2f} s"
        )


class _Compilations(logging.Handler):
    """Counts what superopt logs of compiled programs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text("ascii")
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def weight_bytes(path: Path) -> int:
    """Bytes of the weights that a token reads: without tables that rows are gathered from."""
    graph = onnx.load(path, load_external_data=False).graph
    tables = {n.input[0] for n in graph.node if n.op_type == "Gather"}
    kinds = {onnx.TensorProto.FLOAT: 4, onnx.TensorProto.UINT8: 1}
    return sum(kinds[t.data_type] * int(np.prod(t.dims)) for t in graph.initializer
               if t.name not in tables and t.data_type in kinds)  # fmt: skip


class MemoryReader:
    """Reads as many bytes as weights, a part for each thread, of an array that caches do not hold:
    in each step the next ones. used: of each step, as in `Greedy`."""

    def __init__(self, size: int, threads: int) -> None:
        from superopt.kernels.runtime import cpu_peak
        from superopt.kernels.runtime.engine import host
        from superopt.plan.program.call_context import aligned_zeros

        self.step_bytes = size // threads // UNIT_BYTES * UNIT_BYTES
        held = cpu_peak.MEMORY_CACHE_RATIO * cpu_peak.last_cache_bytes() // threads
        self.steps = -(-held // self.step_bytes) + 1
        self.arrays = [aligned_zeros(self.steps * self.step_bytes) for _ in range(threads)]
        for array in self.arrays:
            array[:] = 1
        self.read = cpu_peak.memory_reader(host())
        self.clock = time.process_time if threads == 1 else time.perf_counter
        self.pool = ThreadPoolExecutor(threads)
        self.used: list[float] = []

    def step(self) -> None:
        at = len(self.used) % self.steps * self.step_bytes
        begin = self.clock()
        [*self.pool.map(self.read, (a[at : at + self.step_bytes] for a in self.arrays))]
        self.used.append(self.clock() - begin)


def write_model(path: Path, a: argparse.Namespace, size: Size) -> None:
    onnx.save(
        MODELS[a.kind](size),
        path,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=1024,
    )


def in_turns(path: Path, a: argparse.Namespace, size: Size, names: list[str]) -> None:
    log = logging.getLogger("superopt.compile")
    compilations = _Compilations()
    log.addHandler(compilations)
    log.setLevel(logging.INFO)
    runs = {name: Greedy(name, path, a, size) for name in names}
    held = weight_bytes(path)
    reader = MemoryReader(held, a.threads)
    for n in range(a.steps):
        for run in (reader, *runs.values()):
            run.step()
        if not n:
            first, compilations.messages = compilations.messages, []
    own, other = runs["superopt"], runs["onnxruntime"]
    for name, run in runs.items():
        print(f"{name:12} {run.report()}", flush=True)
    same = next((n for n, pair in enumerate(zip(own.tokens, other.tokens, strict=True))
                 if pair[0] != pair[1]), None)  # fmt: skip
    print(f"tokens: {len(set(own.tokens))} different tokens; as onnxruntime's: "
          f"{'all' if same is None else f'until step {same}'}")  # fmt: skip
    print(f"programs at the first token: {len(first)}; after it: {len(compilations.messages)}")
    for message in (*first, *compilations.messages):
        print(f"  {message[:300]}")
    rest = slice(1 + NEXT_TOKENS, None)
    for name, run in list(runs.items())[1:]:
        ratios = np.array(run.used[rest]) / np.array(own.used[rest])
        last = np.median(ratios[-len(ratios) // 4 :])
        print(f"{name} / superopt, in turns: median of ratios {np.median(ratios):.2f}, "
              f"of the last quarter {last:.2f}")  # fmt: skip
    for how, share in {"medians in turns": 50, "the fastest tenth": 10}.items():
        bound, used = (
            1e3 * float(np.percentile(x, share)) for x in (reader.used[rest], own.used[rest])
        )
        print(f"bound: {held / MIB:.0f} MiB / {held / bound / 1e6:.1f} GB/s = {bound:.2f} ms; "
              f"superopt takes {used:.2f} ms, {used / bound:.2f} of it ({how})")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=MODELS, default="growing")
    parser.add_argument("--small", action="store_true", help="2 layers of width 128")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--vocabulary", type=int)
    parser.add_argument("--capacity", type=int, help="of caches, if they do not grow")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--block", type=int, default=0, help="weights of 4 bits in blocks of it")
    parser.add_argument("--zero-points", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    a = parser.parse_args()
    size = SMALL if a.small else Size()
    size = replace(
        size,
        layers=a.layers or size.layers,
        vocabulary=a.vocabulary or size.vocabulary,
        block=a.block,
        zero_points=a.zero_points,
    )
    if a.alone:
        run = Greedy(a.alone, a.model, a, size)
        for _ in range(a.steps):
            run.step()
        print(peak_bytes())
        return
    has_openvino = find_spec("openvino") and a.kind in ("growing", "fixed")
    names = [*RUNTIMES] if has_openvino else ["superopt", "onnxruntime"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decoder.onnx"
        write_model(path, a, size)
        given = sum(f.stat().st_size for f in Path(folder).iterdir())
        print(
            f"{a.kind}: {size.layers} layers of width {size.width}, {given / MIB:.0f} MiB",
            flush=True,
        )
        in_turns(path, a, size, names)
        for name in [] if a.no_memory else names:
            command = [
                sys.executable,
                __file__,
                *sys.argv[1:],
                "--alone",
                name,
                "--model",
                str(path),
            ]
            done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
            if done.returncode:
                sys.exit(done.stderr)
            peak = int(done.stdout.split()[-1])
            print(f"{name:12} peak {peak / MIB:.0f} MiB = {peak / given:.2f} models", flush=True)


if __name__ == "__main__":
    main()
