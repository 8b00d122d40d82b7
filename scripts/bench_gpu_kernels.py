#!/usr/bin/env python3
"""Kernels on a GPU against torch's: products (few: of few rows) against cuBLAS, attention against
its flash attention and what it takes by itself, convolutions against cuDNN, norms and softmax
against a copy's rate.

    scripts/bench_gpu_kernels.py [--only products,few,attention,convolutions,rows]
                                 [--precision fp16,tf32] [--tune N] [--case TEXT] [--no-vendor]
                                 [--inductor] [--out FILE.json]

Each case is a model of one kernel with inputs and outputs of the precision's own type. Times are
medians of events around graphs of ten calls, ours and torch's in turns, on the same inputs, drawn;
`share` is ours by theirs in speed (for rows: bytes read and written once, by the memory's rate, see
`gpu_checks.most`; each call reads and writes other memory than the one before, as much as no cache
holds, and `copy us` is torch's copy of as many bytes; of all others each call, ours and torch's,
reads and writes what the one before did);
`vendor` names the libraries that were taken for steps of ours. What is timed is checked against
torch's in float64, of inputs that each run draws anew, after memory was filled with what is no
number; it exits with 1 where that fails. `--case`: those in whose names that is. `--inductor`: the
same by torch.compile's max-autotune, in turns, too, which takes seconds for each; `share` is by the
better one then.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_checks import folder, most, poison

KINDS = {"fp16": (TensorProto.FLOAT16, np.float16), "tf32": (TensorProto.FLOAT, np.float32)}
TURNS, RUNS, TOGETHER = 5, 5, 10
NO_CACHE = 1 << 27  # bytes
SEED = secrets.randbits(32)
STORE = folder()
# The output's largest difference from that in float64, by its rms, at most, beyond its rounding: a
# softmax has numbers of 150 times its rms, in halves. Tensor cores leave out the bits of inputs
# that tf32 has not: of scores behind an exponential that is up to 0.037 (numpy).
FAR = {"fp16": 0.02, "tf32": 0.05}
ROUNDING = {"fp16": 2.0**-11, "tf32": 0.0}


@dataclass(frozen=True)
class Case:
    """A model, and the same by torch of the model's inputs and weights, on the device, once they
    lie as torch likes it; bytes, where it is to be at the memory's rate. between: it stands for one
    that is between others in a model."""

    name: str
    nodes: list[Any]
    inputs: dict[str, tuple[int, ...]]
    weights: dict[str, np.ndarray]
    peer: Callable[..., Any]
    bytes: int = 0
    lying: Callable[..., tuple[Any, ...]] = lambda *given: given
    between: bool = False


def products(kind: Any) -> Iterator[Case]:
    import torch

    for n in (512, 1024, 2048, 4096):
        w = drawn(n, n, kind=kind, scale=n**-0.5)
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        yield Case(f"{n} x {n} x {n}", [node], {"x": (n, n)}, {"w": w}, torch.mm)


def few(kind: Any) -> Iterator[Case]:
    """Products of few rows, whose constant lies in the second cache."""
    import torch

    for rows in (2, 4, 8):
        for terms, columns in ((512, 512), (2048, 1000), (1024, 4096)):
            w = drawn(terms, columns, kind=kind, scale=terms**-0.5)
            node = helper.make_node("MatMul", ["x", "w"], ["y"])
            name = f"{rows} x {terms} x {columns}"
            yield Case(name, [node], {"x": (rows, terms)}, {"w": w}, torch.mm)


def attention(kind: Any) -> Iterator[Case]:
    from torch.nn import functional as fn
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for batch, heads, length, d in ((1, 12, 512, 64), (16, 16, 512, 128), (4, 16, 2048, 64)):
        scale = np.asarray(d**-0.5, kind)
        make = helper.make_node
        nodes = [
            make("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]), make("MatMul", ["q", "kt"], ["s"]),
            make("Mul", ["s", "scale"], ["t"]), make("Softmax", ["t"], ["p"], axis=-1),
            make("MatMul", ["p", "v"], ["y"]),
        ]  # fmt: skip
        shapes = dict.fromkeys("qkv", (batch, heads, length, d))

        def chosen(q: Any, k: Any, v: Any, scale: Any) -> Any:
            return fn.scaled_dot_product_attention(q, k, v)

        def flash(q: Any, k: Any, v: Any, scale: Any) -> Any:
            # In float64, for what is right, there is none.
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True):
                return fn.scaled_dot_product_attention(q, k, v)

        name = f"{batch} x {heads} heads of {d}, {length} long"
        yield Case(f"{name}, torch's choice", nodes, shapes, {"scale": scale}, chosen)
        if np.dtype(kind).itemsize == 2:
            yield Case(f"{name}, flash", nodes, shapes, {"scale": scale}, flash)


def convolutions(kind: Any) -> Iterator[Case]:
    import torch
    from torch.nn import functional as fn

    for c, k, size, kernel, stride, *more in (
        (64, 64, 56, 3, 1), (128, 128, 28, 3, 1), (256, 256, 14, 3, 1), (512, 512, 7, 3, 1),
        (64, 256, 56, 1, 1), (256, 64, 56, 1, 1), (512, 128, 28, 1, 1), (1024, 256, 14, 1, 1),
        (2048, 512, 7, 1, 1), (128, 128, 56, 3, 2), (3, 64, 224, 7, 2), (128, 128, 56, 3, 1, 32),
        (256, 256, 28, 3, 1, 4), (144, 144, 56, 3, 1, 144), (64, 256, 56, 1, 2),
    ):  # fmt: skip
        groups = more[0] if more else 1
        pad = kernel // 2
        deep = c // groups
        w = drawn(k, deep, kernel, kernel, kind=kind, scale=(deep * kernel**2) ** -0.5)
        conv = {"pads": [pad] * 4, "strides": [stride] * 2, "group": groups}
        out = helper.make_node("Transpose", ["made"], ["y"], perm=[0, 2, 3, 1])
        if c < 8:  # as the first of a model: its picture is given channel by channel
            shape: tuple[int, ...] = (16, c, size, size)
            nodes = [helper.make_node("Conv", ["x", "w"], ["made"], **conv), out]
        else:  # channels lie innermost, as between others
            shape = (16, size, size, c)
            turned = helper.make_node("Transpose", ["x"], ["across"], perm=[0, 3, 1, 2])
            nodes = [turned, helper.make_node("Conv", ["across", "w"], ["made"], **conv), out]

        def lying(x: Any, w: Any, c: int = c) -> tuple[Any, Any]:
            """Channels innermost, in tensors whose shapes say nothing of it."""
            how = {"memory_format": torch.channels_last}
            return (x.contiguous(**how) if c < 8 else x.permute(0, 3, 1, 2)), w.contiguous(**how)

        def peer(x: Any, w: Any, step: int = stride, pad: int = pad, groups: int = groups) -> Any:
            return fn.conv2d(x, w, None, step, pad, groups=groups).permute(0, 2, 3, 1)

        apart = f", {groups} groups" if groups > 1 else ""
        name = f"{kernel} x {kernel}, {c}@{size} to {k}, step {stride}{apart}, 16 pictures"
        yield Case(name, nodes, {"x": shape}, {"w": w}, peer, lying=lying, between=c >= 8)


def rows(kind: Any) -> Iterator[Case]:
    from torch.nn import functional as fn

    size = np.dtype(kind).itemsize
    for n, d in ((8192, 1024), (16384, 4096)):
        node = helper.make_node("Softmax", ["x"], ["y"], axis=-1)

        def softmax(x: Any) -> Any:
            return fn.softmax(x, -1)

        yield Case(f"softmax {n} x {d}", [node], {"x": (n, d)}, {}, softmax, 2 * n * d * size)
        known = {"g": drawn(d, kind=kind), "b": drawn(d, kind=kind)}
        node = helper.make_node("LayerNormalization", ["x", "g", "b"], ["y"], axis=-1)

        def norm(x: Any, g: Any, b: Any, d: int = d) -> Any:
            return fn.layer_norm(x, (d,), g, b)

        yield Case(f"layer norm {n} x {d}", [node], {"x": (n, d)}, known, norm, 2 * n * d * size)
    yield from across(kind)
    yield from divided(kind)


def divided(kind: Any) -> Iterator[Case]:
    """Rows of which several lie along one axis: of groups of channels."""
    from torch.nn import functional as fn

    size = np.dtype(kind).itemsize
    for shape, groups in (((16, 64, 32, 32), 8), ((16, 256, 64, 64), 32)):
        known = {"g": drawn(shape[1], kind=kind), "b": drawn(shape[1], kind=kind)}
        node = helper.make_node("GroupNormalization", ["x", "g", "b"], ["y"], num_groups=groups)

        def norm(x: Any, g: Any, b: Any, groups: int = groups) -> Any:
            return fn.group_norm(x, groups, g, b)

        name = f"group norm of {groups} groups, {' x '.join(map(str, shape))}"
        moved = 2 * int(np.prod(shape)) * size
        yield Case(name, [node], {"x": shape}, known, norm, moved)


def across(kind: Any) -> Iterator[Case]:
    """Rows that lie across others: of the channels of pictures that lie plane by plane."""
    from torch.nn import functional as fn

    size = np.dtype(kind).itemsize
    shape = (16, 21, 512, 512)
    node = helper.make_node("Softmax", ["x"], ["y"], axis=1)

    def softmax(x: Any) -> Any:
        return fn.softmax(x, 1)

    moved = 2 * int(np.prod(shape)) * size
    yield Case("softmax of 21 channels, 16 of 512 x 512", [node], {"x": shape}, {}, softmax, moved)
    shape = (16, 96, 112, 112)
    known = {"g": drawn(96, kind=kind), "b": drawn(96, kind=kind)}
    nodes = [
        helper.make_node("Transpose", ["x"], ["last"], perm=[0, 2, 3, 1]),
        helper.make_node("LayerNormalization", ["last", "g", "b"], ["normed"], axis=-1),
        helper.make_node("Transpose", ["normed"], ["y"], perm=[0, 3, 1, 2]),
    ]

    def norm(x: Any, g: Any, b: Any) -> Any:
        return fn.layer_norm(x.permute(0, 2, 3, 1), (96,), g, b).permute(0, 3, 1, 2)

    moved = 2 * int(np.prod(shape)) * size
    name = "layer norm of 96 channels, 16 of 112 x 112"
    yield Case(name, nodes, {"x": shape}, known, norm, moved)


FAMILIES = {f.__name__: f for f in (products, few, attention, convolutions, rows)}


def drawn(*shape: int, kind: Any, scale: float = 1.0, of: str = "w") -> np.ndarray:
    """of: what it is for: of one shape others are other numbers, and each run's are new ones."""
    rng = np.random.default_rng((SEED, sum(shape), crc32(of.encode())))
    return (rng.standard_normal(shape, np.float32) * np.float32(scale)).astype(kind)


def measured(
    case: Case, precision: str, tune: int, copied: float, vendor: bool, inductor: bool = False
) -> dict[str, Any]:
    import torch

    from superopt.compilation.cuda import load_compiler
    from superopt.kernels.runtime.gpu_timer import warm_up
    from superopt.kernels.triton.module import vendor_name as vendor_of
    from superopt.onnx_io.read.source import read_model

    proto, kind = KINDS[precision]
    known = [numpy_helper.from_array(np.asarray(v), k) for k, v in case.weights.items()]
    graph = helper.make_graph(
        case.nodes, "kernel",
        [helper.make_tensor_value_info(n, proto, s) for n, s in case.inputs.items()],
        [onnx.ValueInfoProto(name="y")], known,
    )  # fmt: skip
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    m = onnx.shape_inference.infer_shapes(m)
    exe = load_compiler.compile_model(
        read_model(m), precision, vendor=vendor, store=STORE
    )  # not the user's
    feeds = {n: drawn(*s, kind=kind, of=n) for n, s in case.inputs.items()}
    exe.run(feeds)
    if tune:
        exe.tune({}, max_options=tune)
    made = exe.variant({})
    poison(made)
    got = exe.run(feeds)["y"]  # of the kernels that are timed
    given = case.lying(
        *(torch.from_numpy(x).cuda() for x in (*feeds.values(), *case.weights.values()))
    )
    r = made.only_step.gpu_program
    turns = rotated(r, case.bytes)
    graphed = partial(captured, apart=bool(case.bytes))
    graphs = {"whole": graphed(*(x.launch for x in turns))}
    if precision == "tf32" and case.between:
        # Its input is rounded to tf32 by a kernel of its own, as a model's is; between others what
        # computes it does that.
        options = [made.program.options[key] for key in made.program.call_problems]
        launches = zip(r.call_numbers, r.launches, strict=True)
        some = [x for n, x in launches if options[n].algorithm != "elementwise"]
        graphs["ours"] = graphed(r.with_launches(*some).launch)
    if case.bytes:
        pairs = [(x.inputs[0].reshape(-1), x.outputs[0].reshape(-1)) for x in turns]
        graphs["copy"] = graphed(*(partial(y.copy_, x) for x, y in pairs))
    lots = [tuple(x.clone() for x in given) for _ in turns[1:]]
    graphs["torch"] = graphed(*(partial(case.peer, *x) for x in (given, *lots)))
    if inductor:
        torch._dynamo.reset()
        tuned = torch.compile(case.peer, mode="max-autotune-no-cudagraphs")
        graphs["inductor"] = graphed(lambda: tuned(*given))
    wanted = case.peer(*(x.double() for x in given)).cpu().numpy()
    rms = float(np.sqrt((wanted**2).mean()))
    warm_up(graphs["whole"][0].replay)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(TURNS):
        for name, graph in graphs.items():
            times[name].append(ms_of(graph))
    us = {name: float(np.median(t)) * 1e3 for name, t in times.items()}
    a, b = us.get("ours", us["whole"]), min(us["torch"], us.get("inductor", float("inf")))
    extra = {"whole us": us["whole"]} if "ours" in us else {}
    extra |= {f"{x} us": us[x] for x in ("inductor", "copy") if x in us}
    share = case.bytes / (a * 1e-6) / copied if case.bytes else b / a
    how = [str(o) for o in made.program.options.values()]
    theirs = [vendor_of(c.kernel.library) for c in r.calls if c.kernel.library]
    off = np.abs(got - wanted)
    worst = float(off.max()) / rms
    beyond = float((off - ROUNDING[precision] * np.abs(wanted)).max()) / rms
    if not beyond <= FAR[precision]:
        raise ArithmeticError(f"the output is {beyond:.1e} of its rms from that in float64")
    found = {"us": a, "torch us": us["torch"], "share": share, "error": worst, "how": how}
    return {**found, "vendor": theirs, **extra}


def rotated(r: Any, size: int) -> list[Any]:
    """Runs of the same kernels, each with memory of its own for inputs and outputs, of so many
    bytes; as many as no cache holds, or this one where no size is given."""
    out = [r]
    while size and len(out) < min(TOGETHER, -(-NO_CACHE // size)):
        new = {id(x): x.clone() for x in (*r.inputs, *r.outputs)}
        launches = [(n, f, k, [new.get(id(x), x) for x in given], how)
                    for n, f, k, given, how in r.launches]  # fmt: skip
        ins, outs = (tuple(new[id(x)] for x in some) for some in (r.inputs, r.outputs))
        out.append(replace(r.only(*launches), inputs=ins, outputs=outs))
    return out


def captured(*runs: Callable[[], Any], apart: bool = False) -> tuple[Any, list[Any]]:
    """Ten calls as one graph, of these in turns. apart: what they make stays, so that each writes
    elsewhere; else it goes at once, and the next call writes there."""
    import torch

    for run in runs:
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    made: list[Any] = []
    with torch.cuda.graph(graph):
        for n in range(TOGETHER):
            out = runs[n % len(runs)]()
            made += [out] if apart else []
            del out
    return graph, made


def ms_of(captured: tuple[Any, list[Any]]) -> float:
    """Of one call, in ms: the median of some replays."""
    import torch

    graph, _ = captured

    found = []
    for _ in range(RUNS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / TOGETHER)
    return float(np.median(found[1:]))


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--only", default=",".join(FAMILIES))
    given.add_argument("--precision", default="fp16,tf32")
    given.add_argument("--tune", type=int, default=0)
    given.add_argument("--case", default="")
    given.add_argument("--vendor", action=argparse.BooleanOptionalAction, default=True)
    given.add_argument("--inductor", action="store_true")
    given.add_argument("--out", type=Path)
    how = given.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    copied = most("fp16").bandwidth
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "copy GB/s": copied / 1e9}
    print(found, flush=True)
    for family in how.only.split(","):
        for precision in how.precision.split(","):
            some = FAMILIES[family](KINDS[precision][1])
            for case in (x for x in some if how.case in x.name):
                key = f"{family}, {precision}: {case.name}"
                try:
                    found[key] = measured(
                        case, precision, how.tune, copied, how.vendor, how.inductor
                    )
                except Exception as e:
                    found[key] = {"failed": f"{type(e).__name__}: {str(e)[:300]}"}
                print(key, json.dumps(found[key]), flush=True)
                if how.out is not None:
                    how.out.write_text(json.dumps(found, indent=1))
    if any(isinstance(x, dict) and "failed" in x for x in found.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
