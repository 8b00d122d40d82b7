"""Single operators, compiled, against onnxruntime and OpenVINO: where is there a hole?

    python scripts/bench_operators.py [PATTERN ...] [--threads 1] [--seconds 0.3] [--markdown FILE]

Each case is a model of one node at the size of a layer. Printed are the medians in us, and the
better peer's by ours; those below --below come once more in the end. An operator between others may
do better (what it is fused with, how its operands lie) or worse.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers import drawn, geometric_mean, in_turns

import superopt
from superopt import ort
from superopt.errors import SuperoptError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A node. given: shapes of its inputs; known: constants that follow these, or their shapes."""

    op: str
    given: tuple[Shape, ...]
    known: tuple[Any, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        shapes = [*self.given, *(k for k in self.known if isinstance(k, tuple))]
        text = " ".join("x".join(map(str, s)) for s in shapes)
        said = " ".join(f"{k}={v}" for k, v in self.attrs.items())
        said += " ".join(str(list(k)) for k in self.known if isinstance(k, list))
        return f"{self.op} {text} {said}".strip()

    def model(self) -> onnx.ModelProto:
        rng = np.random.default_rng(0)
        names = [f"x{n}" for n in range(len(self.given))]
        known = []
        for n, k in enumerate(self.known):
            if k is None:
                names.append("")
                continue
            if isinstance(k, tuple):
                k = (rng.standard_normal(k) / 8).astype(np.float32)
            known.append(numpy_helper.from_array(np.asarray(k), f"w{n}"))
            names.append(f"w{n}")
        outputs = [f"y{n}" for n in range(self.attrs.get("_outputs", 1))]
        attrs = {k: v for k, v in self.attrs.items() if not k.startswith("_")}
        node = helper.make_node(self.op, names, outputs, **attrs)
        given = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
            for n, s in zip(names, self.given, strict=False)
        ]
        gives = [onnx.ValueInfoProto(name=n) for n in outputs]
        graph = helper.make_graph([node], "one", given, gives, known)
        m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        return onnx.shape_inference.infer_shapes(m, data_prop=True)


def conv(c: int, k: int, size: Shape, kernel: Shape, op: str = "Conv", **attrs: Any) -> Case:
    group = attrs.get("group", 1)
    pads = [
        r // 2 * d for r, d in zip(kernel, attrs.get("dilations", (1,) * len(kernel)), strict=True)
    ]
    if "pads" not in attrs:
        attrs["pads"] = [*pads, *pads]
    weight = (c, k // group, *kernel) if op == "ConvTranspose" else (k, c // group, *kernel)
    return Case(op, ((1, c, *size),), (weight, (k,)), attrs)


def each(ops: str, *shapes: Shape, **attrs: Any) -> list[Case]:
    return [Case(op, shapes, (), attrs) for op in ops.split()]


def over(ops: str, shape: Shape, axes: list[int] | None, **attrs: Any) -> list[Case]:
    known = () if axes is None else (axes,)
    return [Case(op, (shape,), known, attrs) for op in ops.split()]


def resize(shape: Shape, scale: float, mode: str, how: str) -> Case:
    scales = np.array([1.0, 1.0, scale, scale], np.float32)
    said = {"mode": mode, "coordinate_transformation_mode": how}
    if mode == "nearest":
        said["nearest_mode"] = "floor"
    return Case("Resize", (shape,), (None, scales), {**said, "_scale": scale})


CASES = [
    *each(
        "Relu Sigmoid Tanh Exp Log Sqrt Abs Neg Floor Ceil Round Sign Erf Softplus Softsign Elu"
        " Selu LeakyRelu HardSigmoid HardSwish Gelu Mish Celu ThresholdedRelu Sin Cos Tan Asin"
        " Acos Atan Sinh Cosh Asinh Acosh Atanh Reciprocal Identity",
        (1, 64, 56, 56),
    ),
    *each("Add Mul Sub Div Max Min Pow", (64, 4096), (64, 4096)),
    *each("Add Mul", (1, 64, 56, 56), (1, 64, 1, 1)),
    *each("Add Mul", (128, 768), (768,)),
    *each("Softmax LogSoftmax Hardmax", (128, 1000), axis=-1),
    *each("Softmax", (12, 128, 128), axis=-1),
    *each("Softmax", (1, 64, 56, 56), axis=1),
    *over("ReduceMean ReduceSum ReduceMax ReduceMin ReduceL2 ReduceProd ReduceLogSumExp",
          (128, 768), [1]),
    *over("ReduceMean ReduceSum ReduceMax", (1, 64, 56, 56), [2, 3]),
    *over("ReduceMean ReduceMax", (1, 64, 56, 56), [1]),
    *over("ReduceMean", (64, 128, 256), [0]),
    Case("ArgMax", ((128, 1000),), (), {"axis": 1}),
    Case("CumSum", ((64, 64),), (np.array(1),)),
    *(Case("MatMul", ((m, k),), ((k, n),)) for m, k, n in (
        (1, 1024, 1000), (1, 4096, 4096), (8, 512, 512), (32, 784, 512), (128, 768, 768),
        (128, 768, 3072), (512, 512, 512), (1000, 64, 10), (300, 300, 7))),
    *(Case("MatMul", s) for s in (
        ((12, 128, 64), (12, 64, 128)), ((12, 128, 128), (12, 128, 64)), ((8, 1, 64), (8, 64, 512)),
        ((256, 256), (256, 256)), ((64, 16, 16), (64, 16, 16)))),
    Case("Gemm", ((64, 256),), ((512, 256), (512,)), {"transB": 1}),
    Case("Einsum", ((8, 64, 32), (8, 32, 64)), (), {"equation": "bij,bjk->bik"}),
    *(conv(c, k, (s, s), (r, r), strides=[t, t]) for c, k, s, r, t in (
        (3, 64, 224, 7, 2), (3, 32, 224, 3, 2), (64, 64, 56, 3, 1), (64, 256, 56, 1, 1),
        (256, 64, 56, 1, 1), (128, 128, 56, 3, 2), (256, 256, 14, 3, 1), (512, 512, 7, 3, 1),
        (256, 512, 28, 1, 2), (1, 32, 28, 5, 1), (64, 3, 64, 9, 1), (32, 1, 128, 3, 1),
        (64, 24, 56, 5, 1), (96, 96, 28, 7, 1), (20, 50, 24, 5, 1))),
    *(conv(c, c, (s, s), (r, r), strides=[t, t], group=c) for c, s, r, t in (
        (96, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (384, 14, 5, 1), (96, 56, 7, 1),
        (960, 7, 3, 1), (30, 28, 3, 1))),
    conv(64, 192, (28, 28), (3, 3), group=64),
    *(conv(c, c, (28, 28), (3, 3), group=g) for c, g in ((128, 32), (240, 10), (96, 8), (60, 20))),
    *(conv(c, c, (28, 28), (3, 3), dilations=[d, d]) for c, d in ((64, 2), (128, 4))),
    *(conv(c, k, (n,), (r,), dilations=[d]) for c, k, n, r, d in (
        (64, 64, 512, 3, 1), (64, 64, 512, 3, 8), (256, 256, 128, 1, 1), (1, 256, 4000, 25, 1),
        (80, 384, 300, 3, 1), (128, 256, 200, 5, 1))),
    conv(256, 256, (128,), (31,), group=256),
    *(conv(c, k, s, (3, 3, 3)) for c, k, s in (
        (3, 32, (8, 56, 56)), (32, 32, (8, 28, 28)), (64, 64, (4, 14, 14)))),
    *(conv(c, k, (s, s), (r, r), "ConvTranspose", strides=[t, t], pads=[p] * 4)
      for c, k, s, r, t, p in ((128, 64, 28, 2, 2, 0), (256, 128, 8, 4, 2, 1), (64, 3, 32, 4, 2, 1),
                               (64, 64, 28, 3, 2, 1), (512, 3, 14, 4, 4, 0))),
    *(Case(op, ((1, 64, 56, 56),), (), {"kernel_shape": [r, r], "strides": [t, t], "pads": [p] * 4})
      for op in ("MaxPool", "AveragePool")
      for r, t, p in ((2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 1, 2))),
    *each("GlobalAveragePool GlobalMaxPool", (1, 512, 14, 14)),
    Case("BatchNormalization", ((1, 64, 56, 56),), ((64,), (64,), (64,), np.ones(64, np.float32))),
    Case("LayerNormalization", ((128, 768),), ((768,), (768,)), {"axis": -1}),
    Case("LayerNormalization", ((1, 3136, 96),), ((96,), (96,)), {"axis": -1}),
    Case("InstanceNormalization", ((1, 64, 56, 56),), ((64,), (64,))),
    Case("GroupNormalization", ((1, 64, 56, 56),), ((8,), (8,)), {"num_groups": 8}),
    Case("LpNormalization", ((128, 512),), (), {"axis": -1}),
    Case("LRN", ((1, 64, 56, 56),), (), {"size": 5}),
    Case("PRelu", ((1, 64, 56, 56),), ((64, 1, 1),)),
    Case("Clip", ((1, 64, 56, 56),), (np.float32(0), np.float32(6))),
    *(Case("Transpose", (s,), (), {"perm": p}) for s, p in (
        ((128, 768), [1, 0]), ((1, 64, 56, 56), [0, 2, 3, 1]), ((1, 56, 56, 64), [0, 3, 1, 2]),
        ((1, 128, 12, 64), [0, 2, 1, 3]), ((8, 16, 32, 64), [3, 1, 2, 0]))),
    *(Case("Concat", ((1, 64, 28, 28), (1, 32, 28, 28)), (), {"axis": a}) for a in (1,)),
    Case("Concat", ((128, 256), (128, 256)), (), {"axis": 1}),
    Case("Split", ((1, 128, 768),), (), {"axis": 2, "num_outputs": 3, "_outputs": 3}),
    Case("Slice", ((1, 64, 56, 56),), ([0, 0], [56, 56], [2, 3], [2, 2])),
    Case("Pad", ((1, 64, 56, 56),), ([0, 0, 1, 1, 0, 0, 1, 1],)),
    Case("Pad", ((1, 64, 56, 56),), ([0, 0, 3, 3, 0, 0, 3, 3],), {"mode": "reflect"}),
    Case("Tile", ((1, 64, 28, 28),), ([1, 1, 2, 2],)),
    Case("Expand", ((1, 64, 1, 1),), ([1, 64, 56, 56],)),
    Case("Gather", ((30000, 256),), (np.arange(128) * 37 % 30000,)),
    Case("Gather", ((128, 768),), (np.arange(0, 768, 2),), {"axis": 1}),
    Case("GatherElements", ((128, 768),), (np.arange(8192).reshape(128, 64) % 768,), {"axis": 1}),
    Case("GatherND", ((128, 768),), (np.arange(256).reshape(256, 1) % 128,)),
    Case("ScatterND", ((128, 768),), (np.array([[3], [5]]), (2, 768))),
    Case("DepthToSpace", ((1, 256, 28, 28),), (), {"blocksize": 2}),
    Case("SpaceToDepth", ((1, 64, 56, 56),), (), {"blocksize": 2}),
    *(resize((1, 64, 28, 28), f, mode, how) for f, mode, how in (
        (2.0, "nearest", "asymmetric"), (1.5, "nearest", "asymmetric"),
        (2.0, "linear", "half_pixel"), (2.0, "linear", "align_corners"),
        (1.5, "linear", "half_pixel"), (2.0, "cubic", "half_pixel"))),
    Case("Trilu", ((128, 128),)),
    *each("Mod", (64, 4096), (64, 4096), fmod=1),
    *(Case(kind, ((32, 1, 128),), ((1, g * h, 128), (1, g * h, h), (1, 2 * g * h)),
           {"hidden_size": h}) for kind, g in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
      for h in (64, 256)),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("patterns", nargs="*", help="only cases whose label has one of these")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each case")
    parser.add_argument("--below", type=float, default=0.95)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    some = [c for c in CASES if not args.patterns or any(p in c.label for p in args.patterns)]
    rows: list[tuple[float, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for n, c in enumerate(some):
            path = Path(folder) / f"{n}.onnx"
            try:
                onnx.save(c.model(), path)
                exe = superopt.compile(path, threads=args.threads, shapes=())
                session = ort.load_session(path, args.threads)
                feeds = drawn(session, 1, {})
                found = in_turns(exe, session, path, feeds, args.threads, args.seconds)
            except (SuperoptError, RuntimeError) as e:  # RuntimeError: a peer's
                print(f"{c.label}: {' '.join(str(e).split())[:90]}", flush=True)
                continue
            us = found["us"]
            assert isinstance(us, dict)
            ratio = found["ratio"]
            assert isinstance(ratio, float)
            elsewhere = " (in onnxruntime)" if exe.fallback_nodes({}) else ""
            cells = [c.label + elsewhere, *(f"{v:.1f}" for v in us.values()), f"{ratio:.2f}"]
            rows.append((ratio, "| " + " | ".join(cells) + " |"))
            print(rows[-1][1], flush=True)
    every = [r for r, _ in rows]
    low = [text for r, text in sorted(rows) if r < args.below]
    said = (
        f"{len(every)} cases, {args.threads} thread(s): geometric mean {geometric_mean(every):.2f},"
        f" {len(low)} below {args.below}"
    )
    print("\n".join([*low, said]))
    if args.markdown is not None:
        head = ["| case | superopt us | onnxruntime us | OpenVINO us | better peer / superopt |",
                "| --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
        about = (__doc__ or "").splitlines()[0]
        text = [f"# {about}", "", said + ".", "", *head, *(t for _, t in rows)]
        args.markdown.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
