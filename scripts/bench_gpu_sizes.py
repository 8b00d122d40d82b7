#!/usr/bin/env python3
"""Calls of an encoder at many sizes on a GPU: batches and lengths as a server gets them. superopt
compiles classes of sizes in the calls; its peers are torch's eager mode and
torch.compile(dynamic=True), with the same weights.

    python scripts/bench_gpu_sizes.py [--calls 48] [--layers 4] [--precision fp16] [--peers eager]

Prints for each the time of the first call, of all calls in order, of the slowest call after the
first, and of all calls again (ms), and the largest difference of results from the eager mode's in
float32. With TRITON_INTERPRET=1 it runs without a GPU, and its times say nothing of one.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEAD_WIDTH = 64
WORDS = 1000  # of the vocabulary
BATCHES = (1, 1, 1, 1, 2, 2, 4, 8)  # drawn from
MEDIAN_LENGTH, LENGTH_SPREAD, MAX_LENGTH = 64, 0.7, 512  # of a lognormal distribution

Weights = Mapping[str, np.ndarray]
Call = Callable[[np.ndarray], np.ndarray]


def draw_weights(layers: int, width: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    out = {"table": rng.standard_normal((WORDS, width)).astype(np.float32)}
    for n in range(layers):
        shapes = dict.fromkeys("qkvo", (width, width))
        shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
        for name, shape in shapes.items():
            out[f"{name}{n}"], out[f"{name}_bias{n}"] = drawn(*shape), drawn(shape[1]) * 0.1
        for name in ("first", "second"):
            out[f"{name}_scale{n}"] = 1 + drawn(width) * 0.1
            out[f"{name}_shift{n}"] = drawn(width) * 0.1
    return out


def encoder_model(weights: Weights, layers: int, width: int) -> onnx.ModelProto:
    """Return an encoder of ids[batch, sequence]: attention and a product with GELU in each layer,
    with norms behind."""
    made: list[onnx.NodeProto] = []
    constants = {
        **weights, "heads": np.array([0, 0, width // HEAD_WIDTH, HEAD_WIDTH]),
        "joined": np.array([0, 0, width]), "scale": np.float32(HEAD_WIDTH**-0.5),
        "half": np.float32(0.5), "one": np.float32(1), "root": np.float32(2**-0.5),
    }  # fmt: skip

    def node(op: str, *inputs: str, **attributes: Any) -> str:
        name = f"value{len(made)}"
        made.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def linear(x: str, name: str, n: int) -> str:
        return node("Add", node("MatMul", x, f"{name}{n}"), f"{name}_bias{n}")

    def heads(x: str, order: Sequence[int]) -> str:
        return node("Transpose", node("Reshape", x, "heads"), perm=order)

    def norm(x: str, name: str, n: int) -> str:
        return node("LayerNormalization", x, f"{name}_scale{n}", f"{name}_shift{n}", axis=-1)

    x = node("Gather", "table", "ids")
    for n in range(layers):
        q, v = (heads(linear(x, name, n), (0, 2, 1, 3)) for name in "qv")
        k = heads(linear(x, "k", n), (0, 2, 3, 1))
        scores = node("Softmax", node("Mul", node("MatMul", q, k), "scale"), axis=-1)
        mixed = node("Transpose", node("MatMul", scores, v), perm=(0, 2, 1, 3))
        x = norm(node("Add", x, linear(node("Reshape", mixed, "joined"), "o", n)), "first", n)
        up = linear(x, "up", n)
        bell = node("Add", node("Erf", node("Mul", up, "root")), "one")
        gelu = node("Mul", node("Mul", up, bell), "half")
        x = norm(node("Add", x, linear(gelu, "down", n)), "second", n)
    made[-1].output[0] = "y"
    graph = helper.make_graph(
        made, "encoder",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "sequence"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "sequence", width])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def torch_encoder(weights: Weights, layers: int, device: str, dtype: Any) -> Callable[[Any], Any]:
    """Return the same as a function of torch tensors."""
    import torch
    from torch.nn import functional as fn

    w = {k: torch.from_numpy(v).to(device, dtype) for k, v in weights.items()}
    turned = {k: v.T.contiguous() for k, v in w.items() if v.ndim == 2}

    def linear(x: Any, name: str, n: int) -> Any:
        return fn.linear(x, turned[f"{name}{n}"], w[f"{name}_bias{n}"])

    def norm(x: Any, name: str, n: int) -> Any:
        return fn.layer_norm(x, x.shape[-1:], w[f"{name}_scale{n}"], w[f"{name}_shift{n}"])

    def run(ids: Any) -> Any:
        x = fn.embedding(ids, w["table"])
        batch, length, width = x.shape
        for n in range(layers):
            q, k, v = (
                linear(x, name, n).view(batch, length, -1, HEAD_WIDTH).transpose(1, 2)
                for name in "qkv"
            )
            mixed = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2)
            x = norm(x + linear(mixed.reshape(batch, length, width), "o", n), "first", n)
            x = norm(x + linear(fn.gelu(linear(x, "up", n)), "down", n), "second", n)
        return x

    return run


def draw_sizes(calls: int, limit: int) -> list[tuple[int, int]]:
    """Return the batch and the length of each call."""
    rng = np.random.default_rng(1)
    lengths = np.exp(rng.normal(np.log(MEDIAN_LENGTH), LENGTH_SPREAD, calls))
    return [(int(rng.choice(BATCHES)), int(min(max(n, 1), limit))) for n in lengths]


def callers(
    args: argparse.Namespace, weights: Weights, path: Path, device: str
) -> Iterator[tuple[str, Callable[[], Callable[[Any], Any]]]]:
    """Yield what is measured: a name, and a function that returns one of ids on the device."""
    import torch

    kind = torch.float16 if args.precision == "fp16" else torch.float32

    def compile_model(specialize: str) -> Callable[[Any], Any]:
        import superopt

        exe = superopt.compile(path, target="cuda", precision=args.precision, specialize=specialize)
        if device == "cpu":
            return lambda ids: torch.from_numpy(exe(ids=ids.numpy())["y"])
        return lambda ids: exe.run({"ids": ids})["y"]

    yield "superopt", lambda: compile_model("background")
    yield "superopt, from the cache", lambda: compile_model("background")
    if "static" in args.peers:
        yield "superopt, each size", lambda: compile_model("eager")
    if "eager" in args.peers:
        yield "torch eager", lambda: torch_encoder(weights, args.layers, device, kind)
    if "compile" in args.peers:
        made = torch_encoder(weights, args.layers, device, kind)
        yield "torch.compile", lambda: torch.compile(made, dynamic=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--calls", type=int, default=48)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--length", type=int, default=MAX_LENGTH, help="of a sequence, at most")
    parser.add_argument("--precision", default="fp16", choices=("fp16", "fp32"))
    parser.add_argument("--peers", default="eager,compile", help="of eager, compile, static")
    parser.add_argument("--verbose", action="store_true", help="show the classes of sizes")
    args = parser.parse_args()
    if args.verbose:
        logging.basicConfig(format="%(relativeCreated)d ms %(message)s")
        logging.getLogger("superopt.compile").setLevel(logging.INFO)
    import torch

    device = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    weights = draw_weights(args.layers, args.width)
    sizes = draw_sizes(args.calls, args.length)
    rng = np.random.default_rng(2)
    given = [torch.from_numpy(rng.integers(0, WORDS, size)).to(device) for size in sizes]
    with torch.no_grad():
        exact = torch_encoder(weights, args.layers, device, torch.float32)
        wanted = [exact(ids).float().cpu() for ids in given]
    print(f"{len(sizes)} calls, {len({*sizes})} sizes, {args.precision}; ms")
    heads = ("first", "all", "max", "again", "median again", "difference")
    print(f"{'':26}" + "".join(f"{h:>14}" for h in heads))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SUPEROPT_CACHE"] = str(Path(folder) / "cache")
        path = Path(folder) / "encoder.onnx"
        path.write_bytes(encoder_model(weights, args.layers, args.width).SerializeToString())
        time.sleep(0.2)  # a file that was just written is not cached
        for name, make in callers(args, weights, path, device):
            row = measure(make, given, wanted, device)
            print(f"{name:26}" + "".join(f"{x:14.4g}" for x in row), flush=True)


def measure(
    make: Callable[[], Callable[[Any], Any]], given: Sequence[Any], wanted: Sequence[Any],
    device: str,
) -> list[float]:  # fmt: skip
    """Return the figures of a row; the calls are repeated twice, of which the last time counts."""
    import torch

    def time_call(call: Callable[[Any], Any], ids: Any) -> tuple[float, Any]:
        begin = time.perf_counter()
        out = call(ids)
        if device == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin), out

    with torch.no_grad():
        begin = time.perf_counter()
        call = make()
        loading = 1e3 * (time.perf_counter() - begin)
        times, differences = [], []
        for ids, expected in zip(given, wanted, strict=True):
            t, out = time_call(call, ids)
            times.append(t)
            differences.append(float((out.float().cpu() - expected).abs().max()))
        times[0] += loading
        for _ in range(3 if device == "cuda" else 0):
            again = [time_call(call, ids)[0] for ids in given]
    again = again if device == "cuda" else times
    slowest = max(times[1:], default=0.0)
    return [times[0], sum(times), slowest, sum(again), statistics.median(again), max(differences)]


if __name__ == "__main__":
    main()
