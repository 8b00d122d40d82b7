"""Small models of one kernel each, by family: what docs/benchmarks/bench_kernels.md measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """nodes: one a line, from the inputs and weights to y. inputs, weights: shapes; weights are
    drawn, other constants made. whole: inputs that are int64, drawn below so much. float_class: for
    `compile`. share, ratio: what is to be reached, of the roofline and against the better peer."""

    name: str
    nodes: str
    inputs: Mapping[str, Shape]
    weights: Mapping[str, Shape] = field(default_factory=dict)
    constants: Callable[[], Mapping[str, np.ndarray]] = dict
    whole: Mapping[str, int] = field(default_factory=dict)
    float_class: str = "E2"
    share: float = 0.0
    ratio: float = 0.0


def model(case: Case) -> onnx.ModelProto:
    """With its weights, standard normal by the root of how many a sum has at most."""
    rng = np.random.default_rng(0)
    values = {
        name: rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[1:]) or 1))
        for name, shape in case.weights.items()
    } | dict(case.constants())
    kinds = {n: TensorProto.INT64 if n in case.whole else TensorProto.FLOAT for n in case.inputs}
    graph = helper.make_graph(
        [onnx.parser.parse_node(line.strip()) for line in case.nodes.strip().splitlines()],
        "kernel",
        [helper.make_tensor_value_info(n, kinds[n], s) for n, s in case.inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in values.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made, strict_mode=True, data_prop=True)


def product(m: int, k: int, n: int, share: float = 0.0) -> Case:
    return Case(f"{m}x{k}x{n}", "y = MatMul(x, w)", {"x": (m, k)}, {"w": (k, n)}, share=share)


def batched(b: int, m: int, k: int, n: int) -> Case:
    return Case(f"{b} of {m}x{k}x{n}", "y = MatMul(x, z)", {"x": (b, m, k), "z": (b, k, n)})


def conv(
    channels: int, pixels: int | tuple[int, int], out: int, kernel: int | tuple[int, int] = 3, *,
    stride: int = 1, dilation: int = 1, groups: int = 1, ratio: float = 0.0,
) -> Case:  # fmt: skip
    """With bias and Relu, padded so that without a stride the size stays."""
    kh, kw = (kernel, kernel) if isinstance(kernel, int) else kernel
    height, width = (pixels, pixels) if isinstance(pixels, int) else pixels
    size = f"{height}" if height == width else f"{height}x{width}"
    ph, pw = dilation * (kh - 1) // 2, dilation * (kw - 1) // 2
    named = {"stride": (stride, 1), "dilation": (dilation, 1), "groups": (groups, 1)}
    more = "".join(f" {n} {v}" for n, (v, usual) in named.items() if v != usual)
    return Case(
        f"{kh}x{kw} {channels}@{size} to {out}{more}",
        f"c = Conv <pads = [{ph}, {pw}, {ph}, {pw}], strides = [{stride}, {stride}],"
        f" dilations = [{dilation}, {dilation}], group = {groups}> (x, w, b)\n y = Relu(c)",
        {"x": (1, channels, height, width)},
        {"w": (out, channels // groups, kh, kw), "b": (out,)},
        ratio=ratio,
    )


def depthwise(channels: int, pixels: int, kernel: int, stride: int = 1) -> Case:
    return conv(channels, pixels, channels, kernel, stride=stride, groups=channels)


def attention(
    length: int, causal: bool, heads: int = 12, width: int = 64, batch: int = 1, kv_heads: int = 0
) -> Case:
    """From q, k, v of (batch, length, heads * width) to the like, as exporters write it. kv_heads:
    of k and v, each of which several heads of q share; `heads` if 0."""
    shared = kv_heads or heads

    def constants() -> Mapping[str, np.ndarray]:
        split = np.array([batch, length, heads, width])
        scale = np.float32(1 / np.sqrt(width))
        mask = np.triu(np.full((length, length), -1e9, np.float32), 1)
        joined = np.array([batch, length, heads * width])
        found = {"split": split, "scale": scale, "joined": joined}
        found["few"] = np.array([batch, length, shared, width])
        if shared != heads:
            found["repeat"] = np.arange(heads) * shared // heads
        return found | ({"mask": mask} if causal else {})

    masked = "s = Add(scaled, mask)" if causal else "s = Identity(scaled)"
    repeat = "Identity({})" if shared == heads else "Gather <axis = 2> ({}, repeat)"
    return Case(
        f"{heads} heads, d {width}, length {length}{', causal' if causal else ''}",
        f"""q4 = Reshape(q, split)
            k1 = Reshape(k, few)
            v1 = Reshape(v, few)
            k4 = {repeat.format("k1")}
            v4 = {repeat.format("v1")}
            qt = Transpose <perm = [0, 2, 1, 3]> (q4)
            kt = Transpose <perm = [0, 2, 3, 1]> (k4)
            vt = Transpose <perm = [0, 2, 1, 3]> (v4)
            raw = MatMul(qt, kt)
            scaled = Mul(raw, scale)
            {masked}
            p = Softmax <axis = -1> (s)
            o = MatMul(p, vt)
            ot = Transpose <perm = [0, 2, 1, 3]> (o)
            y = Reshape(ot, joined)""",
        {
            "q": (batch, length, heads * width),
            "k": (batch, length, shared * width),
            "v": (batch, length, shared * width),
        },
        constants=constants,
        share=0.75,
    )


def simple(name: str, nodes: str, *shapes: Shape, **weights: Shape) -> Case:
    """Of inputs x, z, ..."""
    shown = " ".join("x".join(map(str, s)) for s in shapes[:1])
    return Case(f"{name} {shown}", nodes, dict(zip("xzuv", shapes, strict=False)), weights)


def axes(*numbers: int) -> Callable[[], Mapping[str, np.ndarray]]:
    return lambda: {"axes": np.array(numbers)}


def reduced(op: str, shape: Shape, *over: int) -> Case:
    name = f"{op} {'x'.join(map(str, shape))} over {', '.join(map(str, over))}"
    return Case(name, f"y = {op} <keepdims = 0> (x, axes)", {"x": shape}, constants=axes(*over))


def rms_norm(rows: int, width: int) -> Case:
    nodes = """two = Mul(x, x)
               mean = ReduceMean <keepdims = 1> (two, axes)
               more = Add(mean, eps)
               root = Sqrt(more)
               normal = Div(x, root)
               y = Mul(normal, scale)"""
    return Case(
        f"RMSNorm {rows}x{width}", nodes, {"x": (rows, width)}, {"scale": (width,)},
        lambda: {"axes": np.array([-1]), "eps": np.float32(1e-6)},
    )  # fmt: skip


def gathered(name: str, axis: int, table: Shape, rows: int) -> Case:
    return Case(
        f"{name} {rows} of {'x'.join(map(str, table))}", f"y = Gather <axis = {axis}> (w, i)",
        {"i": (rows,)}, {"w": table}, whole={"i": table[axis]},
    )  # fmt: skip


GELU = """d = Div(x, root)
          e = Erf(d)
          f = Add(e, one)
          g = Mul(x, f)
          y = Mul(g, half)"""
_GELU_CONSTANTS = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
SILU = "s = Sigmoid(x)\n y = Mul(x, s)"
NORM = "y = LayerNormalization <axis = -1> (x, scale, bias)"

FAMILIES: dict[str, list[Case]] = {
    "products with constants": [
        product(m, k, n, 0.90)
        for m, k, n in (
            (128, 768, 768), (128, 768, 3072), (128, 3072, 768), (512, 768, 768),
            (128, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024),
        )
    ],
    "products of few rows": [
        product(m, k, n)
        for m, k, n in ((2, 768, 3072), (3, 512, 512), (4, 1024, 1024), (8, 768, 768),
                        (8, 768, 3072), (16, 768, 768))
    ],
    "matrix and vector": [
        product(1, k, n) for k, n in ((4096, 4096), (1024, 1024), (768, 3072), (2048, 1000))
    ],
    "batched products": [
        batched(12, 128, 64, 128), batched(12, 128, 128, 64), batched(8, 256, 256, 256),
        batched(16, 64, 64, 64),
    ],
    "direct convolutions": [
        replace(case, float_class="E1", share=0.92)  # E1: not in tiles
        for case in (
            conv(64, 56, 64), conv(128, 28, 128), conv(256, 14, 256),
            conv(256, 56, 64, 1), conv(64, 56, 256, 1), conv(512, 28, 128, 1),
            conv(1024, 14, 256, 1), conv(2048, 7, 512, 1), conv(256, 56, 512, 1, stride=2),
            conv(3, 224, 64, 7, stride=2), conv(3, 224, 32, stride=2),
            conv(128, 56, 128, stride=2), conv(256, 28, 256, stride=2),
            conv(512, 14, 512, stride=2),
            conv(128, 28, 128, dilation=2), conv(256, 14, 256, dilation=4),
            conv(128, 56, 128, groups=32), conv(256, 28, 256, groups=32),
            conv(256, 28, 256, groups=4),
        )
    ],
    "convolutions of few channels": [
        conv(8, (172, 264), 8, (3, 39)), conv(8, (172, 264), 1, 5), conv(8, 112, 8),
        conv(4, 112, 4), conv(12, 56, 12), conv(3, 224, 8), conv(8, 112, 24, 1),
        conv(32, (172, 88), 1, (7, 3)), conv(33, (172, 88), 1), conv(64, 128, 1, 5),
        conv(64, 128, 3, 9), conv(1, (172, 264), 32, 7, stride=3),
        conv(1, (1, 20000), 36, (1, 256), stride=1), conv(1, (1, 20000), 36, (1, 256), stride=8),
    ],
    "convolutions in tiles": [
        conv(64, 56, 64, ratio=1.8), conv(128, 28, 128, ratio=1.8), conv(256, 14, 256, ratio=1.8),
        conv(512, 7, 512), conv(192, 17, 192, (1, 7)), conv(192, 17, 192, (7, 1)),
        conv(48, 35, 64, 5), conv(64, 28, 64, 5), conv(128, 28, 128, dilation=2),
    ],
    "depthwise convolutions": [
        depthwise(144, 56, 3), depthwise(192, 28, 3), depthwise(384, 14, 3), depthwise(960, 7, 3),
        depthwise(96, 112, 3, 2), depthwise(144, 56, 3, 2), depthwise(240, 28, 5),
        depthwise(672, 14, 5, 2),
    ],
    "pooling": [
        simple("MaxPool 3 stride 2",
               "y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x)",
               (1, 64, 112, 112)),
        simple("AveragePool 3", "y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x)",
               (1, 192, 35, 35)),
        simple("AveragePool 2 stride 2",
               "y = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (x)", (1, 256, 56, 56)),
        simple("GlobalAveragePool", "y = GlobalAveragePool(x)", (1, 2048, 7, 7)),
    ],
    "attention": [attention(n, causal) for causal in (False, True) for n in (128, 512, 1024)],
    "softmax": [
        simple("Softmax", "y = Softmax <axis = -1> (x)", shape)
        for shape in ((12, 128, 128), (12, 512, 512), (64, 1000))
    ],
    "norms": [
        simple("LayerNorm", NORM, (128, 768), scale=(768,), bias=(768,)),
        simple("LayerNorm", NORM, (512, 768), scale=(768,), bias=(768,)),
        simple("Add, LayerNorm", "a = Add(x, z)\n" + NORM.replace("(x,", "(a,"),
               (128, 768), (128, 768), scale=(768,), bias=(768,)),
        rms_norm(128, 2048), rms_norm(512, 768),
    ],
    "elementwise": [
        Case("Gelu by Erf 128x3072", GELU, {"x": (128, 3072)}, constants=lambda: _GELU_CONSTANTS),
        simple("SiLU", SILU, (128, 3072)),
        simple("SiLU gate", SILU.replace("y =", "t =") + "\n y = Mul(t, z)",
               (128, 3072), (128, 3072)),
        simple("Add, Relu", "a = Add(x, z)\n y = Relu(a)", (1, 64, 56, 56), (1, 64, 56, 56)),
        simple("Tanh", "y = Tanh(x)", (128, 3072)),
        simple("Exp", "y = Exp(x)", (128, 3072)),
    ],
    "reductions": [
        reduced("ReduceMean", (512, 768), 1), reduced("ReduceSum", (512, 768), 0),
        reduced("ReduceMax", (1, 256, 56, 56), 2, 3),
    ],
    "transposes": [
        simple("0 2 1 3", "y = Transpose <perm = [0, 2, 1, 3]> (x)", (1, 512, 12, 64)),
        simple("1 0", "y = Transpose <perm = [1, 0]> (x)", (1024, 1024)),
        simple("0 2 3 1", "y = Transpose <perm = [0, 2, 3, 1]> (x)", (1, 256, 56, 56)),
    ],
    "gather": [
        gathered("rows", 0, (30522, 768), 128),
        Case("channels of 1x116x28x28", "y = Gather <axis = 1> (x, order)", {"x": (1, 116, 28, 28)},
             constants=lambda: {"order": np.arange(116).reshape(2, 58).T.ravel()}),
    ],
}  # fmt: skip
