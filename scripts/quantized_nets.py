"""Float networks, with drawn weights, that onnxruntime's tools quantize for bench_quantized.py.

YOLOv8n (Ultralytics, as its exports are: SiLU, C2f, SPPF and the detection head), MiniLM-L6 (Wang
et al., arXiv:2002.10957), ViT-tiny (Touvron et al., arXiv:2012.12877), T5-small's encoder (Raffel
et al., arXiv:1910.10683) and a bidirectional LSTM with a projection.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from image_nets import NetBuilder
from onnx import TensorProto

SILU_GAIN = 1.45  # keeps the scale of activations
YOLO_CHANNELS = (16, 32, 64, 128, 256)
BOX_BINS, DETECTED_CLASSES = 16, 80
LSTM_FEATURES, LSTM_HIDDEN, LSTM_CLASSES = 80, 256, 64


# --- YOLOv8n ---


class _YoloBuilder(NetBuilder):
    """Blocks of YOLOv8 with batch normalization merged into weights and biases."""

    def plain_conv(self, x: str, inner: int, outer: int, kernel: int, stride: int = 1) -> str:
        terms = inner * kernel * kernel
        w = self.weight(self.rng.standard_normal((outer, inner, kernel, kernel)) * terms**-0.5)
        bias = self.weight(0.1 * self.rng.standard_normal(outer))
        pads, steps = [kernel // 2] * 4, [stride] * 2
        return self.add("Conv", x, w, bias, kernel_shape=[kernel] * 2, strides=steps, pads=pads)

    def silu_conv(self, x: str, inner: int, outer: int, kernel: int, stride: int = 1) -> str:
        y = self.plain_conv(x, inner, outer, kernel, stride)
        bias = self.nodes[-1].input[2]
        self.weights[self.nodes[-1].input[1]] *= np.float32(SILU_GAIN)
        self.weights[bias] *= np.float32(SILU_GAIN)
        return self.add("Mul", y, self.add("Sigmoid", y))

    def c2f(self, x: str, inner: int, outer: int, count: int, adds: bool) -> str:
        half = outer // 2
        y = self.silu_conv(x, inner, outer, 1)
        parts = self.add_parts(2, "Split", y, self.integers(half, half), axis=1)
        for _ in range(count):
            z = self.silu_conv(self.silu_conv(parts[-1], half, half, 3), half, half, 3)
            parts.append(self.add("Add", parts[-1], z) if adds else z)
        joined = self.add("Concat", *parts, axis=1)
        return self.silu_conv(joined, half * len(parts), outer, 1)

    def sppf(self, x: str, channels: int) -> str:
        parts = [self.silu_conv(x, channels, channels // 2, 1)]
        for _ in range(3):
            how = {"kernel_shape": [5, 5], "strides": [1, 1], "pads": [2] * 4}
            parts.append(self.add("MaxPool", parts[-1], **how))
        return self.silu_conv(self.add("Concat", *parts, axis=1), 2 * channels, channels, 1)

    def upsample(self, x: str) -> str:
        scales = self.weight(np.array([1, 1, 2, 2]))
        how = {"mode": "nearest", "nearest_mode": "floor"}
        return self.add("Resize", x, "", scales, coordinate_transformation_mode="asymmetric", **how)


def yolov8n(side: int = 320) -> onnx.ModelProto:
    """Return YOLOv8n for images of side x side pixels."""
    b = _YoloBuilder()
    c = YOLO_CHANNELS
    x = b.silu_conv(b.silu_conv("x", 3, c[0], 3, 2), c[0], c[1], 3, 2)
    x = b.c2f(x, c[1], c[1], 1, True)
    p3 = b.c2f(b.silu_conv(x, c[1], c[2], 3, 2), c[2], c[2], 2, True)
    p4 = b.c2f(b.silu_conv(p3, c[2], c[3], 3, 2), c[3], c[3], 2, True)
    x = b.c2f(b.silu_conv(p4, c[3], c[4], 3, 2), c[4], c[4], 1, True)
    p5 = b.sppf(x, c[4])
    n4 = b.c2f(b.add("Concat", b.upsample(p5), p4, axis=1), c[4] + c[3], c[3], 1, False)
    n3 = b.c2f(b.add("Concat", b.upsample(n4), p3, axis=1), c[3] + c[2], c[2], 1, False)
    down = b.add("Concat", b.silu_conv(n3, c[2], c[2], 3, 2), n4, axis=1)
    m4 = b.c2f(down, c[2] + c[3], c[3], 1, False)
    down = b.add("Concat", b.silu_conv(m4, c[3], c[3], 3, 2), p5, axis=1)
    m5 = b.c2f(down, c[3] + c[4], c[4], 1, False)
    return _detect(b, [(n3, c[2]), (m4, c[3]), (m5, c[4])], side)


def _detect(b: _YoloBuilder, scales: list[tuple[str, int]], side: int) -> onnx.ModelProto:
    """Add the head: distances to a box's sides as means over bins, and scores of classes."""
    box, classes = 4 * BOX_BINS, DETECTED_CLASSES
    flat, anchors, strides = [], [], []
    for n, (x, channels) in enumerate(scales):
        found = []
        for outer, inner in ((box, box), (classes, classes)):
            y = b.silu_conv(b.silu_conv(x, channels, inner, 3), inner, inner, 3)
            found.append(b.plain_conv(y, inner, outer, 1))
        joined = b.add("Concat", *found, axis=1)
        flat.append(b.add("Reshape", joined, b.integers(1, box + classes, -1)))
        cells = side // (8 << n)
        places = np.stack(np.meshgrid(np.arange(cells), np.arange(cells))).reshape(2, -1) + 0.5
        anchors.append(places)
        strides.append(np.full(places.shape[1], 8 << n))
    count = sum(a.shape[1] for a in anchors)
    joined = b.add("Concat", *flat, axis=2)
    boxes, scores = b.add_parts(2, "Split", joined, b.integers(box, classes), axis=1)
    bins = b.add("Reshape", boxes, b.integers(1, 4, BOX_BINS, count))
    shares = b.add("Softmax", b.add("Transpose", bins, perm=[0, 2, 1, 3]), axis=1)
    weights = b.weight(np.arange(BOX_BINS).reshape(1, BOX_BINS, 1, 1))
    sides = b.add("Reshape", b.add("Conv", shares, weights), b.integers(1, 4, count))
    near, far = b.add_parts(2, "Split", sides, b.integers(2, 2), axis=1)
    center = b.weight(np.concatenate(anchors, axis=1)[None])
    least, most = b.add("Sub", center, near), b.add("Add", center, far)
    middle = b.add("Div", b.add("Add", least, most), b.weight(np.array(2)))
    extent = b.add("Sub", most, least)
    placed = b.add("Concat", middle, extent, axis=1)
    placed = b.add("Mul", placed, b.weight(np.concatenate(strides)[None]))
    y = b.add("Concat", placed, b.add("Sigmoid", scores), axis=1)
    return b.model("yolov8n", (1, 3, side, side), y, (1, 4 + classes, count))


# --- Transformers ---


@dataclass(frozen=True)
class EncoderSize:
    layers: int
    width: int
    heads: int
    hidden: int
    tokens: int
    vocabulary: int = 0

    @property
    def head(self) -> int:
        return self.width // self.heads


MINILM = EncoderSize(6, 384, 12, 1536, 128, 30522)
VIT_TINY = EncoderSize(12, 192, 3, 768, 197)
T5_SMALL = EncoderSize(6, 512, 8, 2048, 128, 32128)


class _EncoderBuilder(NetBuilder):
    """Layers of transformers as exporters of PyTorch write them."""

    def dense(self, x: str, rows: int, columns: int, with_bias: bool = True) -> str:
        w = self.weight(self.rng.standard_normal((rows, columns)) * rows**-0.5)
        y = self.add("MatMul", x, w)
        bias = 0.1 * self.rng.standard_normal(columns)
        return self.add("Add", y, self.weight(bias)) if with_bias else y

    def norm(self, x: str, width: int) -> str:
        scale = self.weight(self.rng.uniform(0.8, 1.2, width))
        bias = self.weight(0.1 * self.rng.standard_normal(width))
        return self.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-6)

    def rms_norm(self, x: str, width: int) -> str:
        square = self.add("Pow", x, self.weight(np.array(2)))
        mean = self.add("ReduceMean", square, axes=[-1])
        root = self.add("Sqrt", self.add("Add", mean, self.weight(np.array(1e-6))))
        scaled = self.add("Div", x, root)
        return self.add("Mul", self.weight(self.rng.uniform(0.8, 1.2, width)), scaled)

    def gelu(self, x: str) -> str:
        y = self.add("Erf", self.add("Div", x, self.weight(np.array(2**0.5))))
        y = self.add("Mul", x, self.add("Add", y, self.weight(np.array(1))))
        return self.add("Mul", y, self.weight(np.array(0.5)))

    def attention(self, x: str, size: EncoderSize, mask: str, with_bias: bool = True) -> str:
        """Return attention. mask: what is added to scores; "" for none, which divides them."""
        shape = self.integers(1, size.tokens, size.heads, size.head)
        q, k, v = (
            self.add("Reshape", self.dense(x, size.width, size.width, with_bias), shape)
            for _ in range(3)
        )
        q, v = (self.add("Transpose", y, perm=[0, 2, 1, 3]) for y in (q, v))
        scores = self.add("MatMul", q, self.add("Transpose", k, perm=[0, 2, 3, 1]))
        scores = self.add("Div", scores, self.weight(np.array(size.head**0.5)))
        scores = self.add("Add", scores, mask) if mask else scores
        y = self.add("MatMul", self.add("Softmax", scores, axis=-1), v)
        y = self.add("Transpose", y, perm=[0, 2, 1, 3])
        joined = self.add("Reshape", y, self.integers(1, size.tokens, size.width))
        return self.dense(joined, size.width, size.width, with_bias)

    def embedding(self, size: EncoderSize) -> str:
        table = self.weight(self.rng.standard_normal((size.vocabulary, size.width)))
        return self.add("Gather", table, "x")

    def encoder_model(self, name: str, size: EncoderSize, y: str) -> onnx.ModelProto:
        """Return the model of tokens, whose input "x" is integers."""
        made = self.model(name, (1, size.tokens), y, (1, size.tokens, size.width))
        made.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
        return made


def minilm(size: EncoderSize = MINILM) -> onnx.ModelProto:
    """Return a BERT of 6 layers and 384 channels."""
    b = _EncoderBuilder()
    places = b.weight(b.rng.standard_normal((1, size.tokens, size.width)))
    x = b.norm(b.add("Add", b.embedding(size), places), size.width)
    mask = b.weight(np.zeros((1, 1, 1, size.tokens)))
    for _ in range(size.layers):
        x = b.norm(b.add("Add", b.attention(x, size, mask), x), size.width)
        y = b.dense(b.gelu(b.dense(x, size.width, size.hidden)), size.hidden, size.width)
        x = b.norm(b.add("Add", y, x), size.width)
    return b.encoder_model("minilm", size, x)


def t5_encoder(size: EncoderSize = T5_SMALL) -> onnx.ModelProto:
    """Return an encoder with RMS normalization, relative positions, and ReLU."""
    b = _EncoderBuilder()
    x = b.embedding(size)
    relative = b.weight(b.rng.standard_normal((1, size.heads, size.tokens, size.tokens)))
    for _ in range(size.layers):
        y = b.attention(b.rms_norm(x, size.width), size, relative, False)
        x = b.add("Add", x, y)
        y = b.add("Relu", b.dense(b.rms_norm(x, size.width), size.width, size.hidden, False))
        x = b.add("Add", x, b.dense(y, size.hidden, size.width, False))
    return b.encoder_model("t5_encoder", size, b.rms_norm(x, size.width))


def vit_tiny(size: EncoderSize = VIT_TINY, side: int = 224, patch: int = 16) -> onnx.ModelProto:
    """Return a vision transformer of 12 layers and 192 channels."""
    b = _EncoderBuilder()
    w = b.weight(b.rng.standard_normal((size.width, 3, patch, patch)) * (3 * patch**2) ** -0.5)
    bias = b.weight(0.1 * b.rng.standard_normal(size.width))
    x = b.add("Conv", "x", w, bias, kernel_shape=[patch] * 2, strides=[patch] * 2)
    x = b.add("Reshape", x, b.integers(1, size.width, -1))
    x = b.add("Transpose", x, perm=[0, 2, 1])
    first = b.weight(b.rng.standard_normal((1, 1, size.width)))
    x = b.add("Concat", first, x, axis=1)
    x = b.add("Add", x, b.weight(b.rng.standard_normal((1, size.tokens, size.width))))
    for _ in range(size.layers):
        x = b.add("Add", x, b.attention(b.norm(x, size.width), size, ""))
        y = b.gelu(b.dense(b.norm(x, size.width), size.width, size.hidden))
        x = b.add("Add", x, b.dense(y, size.hidden, size.width))
    x = b.norm(x, size.width)
    x = b.add("Gather", x, b.integers(0), axis=1)
    x = b.add("Reshape", x, b.integers(1, size.width))
    w = b.weight(b.rng.standard_normal((size.width, 1000)) * size.width**-0.5)
    y = b.add("Gemm", x, w, b.weight(0.1 * b.rng.standard_normal(1000)))
    return b.model("vit_tiny", (1, 3, side, side), y, (1, 1000))


# --- LSTM ---


def lstm_tagger(steps: int = 100, layers: int = 2) -> onnx.ModelProto:
    """Return bidirectional LSTMs over [time, 1, features] between two products."""
    b = _EncoderBuilder()
    x, size = b.dense("x", LSTM_FEATURES, LSTM_HIDDEN), LSTM_HIDDEN
    for _ in range(layers):
        shapes = ((2, 4 * LSTM_HIDDEN, size), (2, 4 * LSTM_HIDDEN, LSTM_HIDDEN))
        w, r = (b.weight(b.rng.standard_normal(s) * s[-1] ** -0.5) for s in shapes)
        bias = b.weight(0.1 * b.rng.standard_normal((2, 8 * LSTM_HIDDEN)))
        y = b.add("LSTM", x, w, r, bias, hidden_size=LSTM_HIDDEN, direction="bidirectional")
        size = 2 * LSTM_HIDDEN
        y = b.add("Transpose", y, perm=[0, 2, 1, 3])
        x = b.add("Reshape", y, b.integers(steps, 1, size))
    y = b.dense(x, size, LSTM_CLASSES)
    return b.model("lstm", (steps, 1, LSTM_FEATURES), y, (steps, 1, LSTM_CLASSES))
