"""GPT-2-like decoders with random weights, as exporters write them.

`growing_decoder` concatenates the keys and values of the past with those of the call, as exports of
transformers do: shapes are computed in the graph, the causal mask is a slice of a constant.
`fixed_decoder` writes them into caches of a fixed capacity, as exports of a static cache do:
ScatterND at the positions of the call, and a mask that hides what was not written yet.
`tensor_scatter_decoder` and `group_query_decoder` have such caches, too, with the operators that
are meant for them: TensorScatter and Attention of ONNX, GroupQueryAttention of com.microsoft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F32, I32, I64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
OPSET, IR_VERSION = 17, 8
CACHE_OPSET, CACHE_IR_VERSION = 24, 12  # of TensorScatter
DEVIATION_OF_4_BITS = 4.6  # of the integers from 0 to 15
LOWEST = float(np.finfo(np.float32).min)  # what exports add to scores that the mask hides


@dataclass(frozen=True)
class Size:
    """A decoder's size. The default is that of GPT-2. block: weights of 4 bits (MatMulNBits) have a
    scale for so many; 0: weights are float32. zero_points: blocks have zero points, too.
    accuracy_level: of MatMulNBits; 4 allows activations of 8 bits."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 50257
    positions: int = 1024
    block: int = 0
    zero_points: bool = False
    accuracy_level: int = 1

    @property
    def head(self) -> int:
        return self.width // self.heads


SMALL = Size(layers=2, width=128, heads=2, vocabulary=1000, positions=512)


@dataclass
class _Graph:
    """A graph that grows; names stand for values."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        return self.ops(kind, inputs, 1, **attributes)[0]

    def ops(self, kind: str, inputs: Sequence[str], count: int, **attributes: object) -> list[str]:
        names = [f"/{kind}_{len(self.nodes)}_output_{k}" for k in range(count)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names

    def constant(self, array: np.ndarray | float) -> str:
        name = f"constant_{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def random(self, *shape: int, scale: float) -> str:
        array = self.rng.standard_normal(shape, np.float32)
        array *= np.float32(scale)
        return self.constant(array)

    def input(self, name: str, kind: int, *dims: int | str) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, dims))
        return name

    def output(self, value: str, name: str, *dims: int | str) -> str:
        """Make a value an output of this name."""
        for n in self.nodes:
            n.input[:] = [name if v == value else v for v in n.input]
            n.output[:] = [name if v == value else v for v in n.output]
        self.outputs.append(helper.make_tensor_value_info(name, F32, dims))
        return name

    def size(self, x: str, axis: int) -> str:
        """A size of a value, as a vector with one element."""
        shape = self.op("Shape", x)
        return self.op("Unsqueeze", self.op("Gather", shape, self.constant(np.int64(axis))), "zero")

    def reshape(self, x: str, *dims: str) -> str:
        return self.op("Reshape", x, self.op("Concat", *dims, axis=0))

    def norm(self, x: str, width: int) -> str:
        gamma = self.constant(self.rng.uniform(0.8, 1.2, width).astype(np.float32))
        return self.op("LayerNormalization", x, gamma, self.random(width, scale=0.1), axis=-1)

    def nbits(self, x: str, rows: int, columns: int, size: Size) -> str:
        """A product with weights of 4 bits."""
        blocks = rows // size.block
        packed = self.rng.integers(0, 256, (columns, blocks, size.block // 2), np.uint8)
        scales = self.rng.uniform(0.5, 1, (columns, blocks)).astype(np.float32)
        scales *= np.float32(rows**-0.5 / DEVIATION_OF_4_BITS)
        more = [packed, scales]
        if size.zero_points:
            more.append(self.rng.integers(0, 256, (columns, -(-blocks // 2)), np.uint8))
        return self.op(
            "MatMulNBits", x, *map(self.constant, more), domain="com.microsoft", K=rows, N=columns,
            bits=4, block_size=size.block, accuracy_level=size.accuracy_level,
        )  # fmt: skip

    def dense(self, x: str, rows: int, columns: int, size: Size) -> str:
        """A product with weights and a bias, of rank 3 by a Gemm of rank 2, as exports have it."""
        if size.block:
            y = self.nbits(x, rows, columns, size)
            return self.op("Add", y, self.random(columns, scale=0.1))
        batch, seq = self.size(x, 0), self.size(x, 1)
        flat = self.op("Reshape", x, self.integers(-1, rows))
        weight = self.random(rows, columns, scale=rows**-0.5)
        y = self.op("Gemm", flat, weight, self.random(columns, scale=0.1))
        return self.reshape(y, batch, seq, self.integers(columns))

    def gelu(self, x: str) -> str:
        cube = self.op("Mul", self.op("Pow", x, self.number(3.0)), self.number(0.044715))
        inner = self.op("Mul", self.op("Add", x, cube), self.number((2 / np.pi) ** 0.5))
        bell = self.op("Add", self.op("Tanh", inner), self.number(1.0))
        return self.op("Mul", self.op("Mul", x, self.number(0.5)), bell)

    def heads(self, x: str, size: Size) -> str:
        """[batch, seq, width] as [batch, heads, seq, head]."""
        dims = self.size(x, 0), self.size(x, 1), self.integers(size.heads), self.integers(size.head)
        return self.op("Transpose", self.reshape(x, *dims), perm=[0, 2, 1, 3])

    def model(self, name: str, opset: int = OPSET, ir_version: int = IR_VERSION) -> onnx.ModelProto:
        self.weights["zero"] = np.zeros(1, np.int64)
        held = [numpy_helper.from_array(x, n) for n, x in self.weights.items()]
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, held)
        domains = dict.fromkeys(n.domain for n in self.nodes)
        opsets = [helper.make_opsetid(name, 1 if name else opset) for name in domains]
        return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def growing_decoder(size: Size = Size(), seed: int = 0, mask_size: str = "") -> onnx.ModelProto:
    """A decoder with a past that grows. mask_size: the symbol of the attention mask's length; the
    default is a sum, as in exports of optimum."""
    g = _Graph(np.random.default_rng(seed))
    past, total = "past_sequence_length", mask_size or "past_sequence_length + sequence_length"
    x = _add_embedding(g, size)
    mask = g.input("attention_mask", I64, "batch_size", total)
    wide = g.op("Unsqueeze", g.op("Unsqueeze", mask, g.integers(1)), g.integers(2))
    hidden = g.op("Sub", g.number(1.0), g.op("Cast", wide, to=F32))
    bias = g.op("Mul", hidden, g.number(LOWEST))
    ones = np.ones((1, 1, size.positions, size.positions), bool)
    causal = g.constant(np.tril(ones))
    for n in range(size.layers):

        def attend(q: str, k: str, v: str, n: int = n) -> str:
            both = []
            for name, new in (("key", k), ("value", v)):
                dims = ("batch_size", size.heads, past, size.head)
                old = g.input(f"past_key_values.{n}.{name}", F32, *dims)
                dims = ("batch_size", size.heads, total, size.head)
                concat = g.op("Concat", old, new, axis=2)
                both.append(g.output(concat, f"present.{n}.{name}", *dims))
            scores = g.op("MatMul", q, g.op("Transpose", both[0], perm=[0, 1, 3, 2]))
            scores = g.op("Div", scores, g.number(size.head**0.5))
            end = g.size(both[0], 2)
            begin = g.op("Sub", end, g.size(q, 2))
            rows = g.op("Slice", causal, begin, end, g.integers(2), g.integers(1))
            seen = g.op("Slice", rows, g.integers(0), end, g.integers(3), g.integers(1))
            scores = g.op("Where", seen, scores, g.number(LOWEST))
            weights = g.op("Softmax", g.op("Add", scores, bias), axis=-1)
            return g.op("MatMul", weights, both[1])

        x = _layer(g, size, x, attend)
    _finish(g, size, x)
    return g.model("growing")


def fixed_decoder(
    size: Size = Size(), seed: int = 0, capacity: int | str = "capacity"
) -> onnx.ModelProto:
    """A decoder with caches of a fixed capacity. `cache_position` has the positions of a call's
    tokens; caches are written there."""
    g = _Graph(np.random.default_rng(seed))
    x = _add_embedding(g, size)
    at = g.input("cache_position", I64, "sequence_length")
    rows = g.op("Unsqueeze", at, g.integers(1))
    bias = ""
    for n in range(size.layers):

        def attend(q: str, k: str, v: str, n: int = n) -> str:
            nonlocal bias
            both = []
            for name, new in (("key", k), ("value", v)):
                dims = ("batch_size", size.heads, capacity, size.head)
                old = g.input(f"past_key_values.{n}.{name}", F32, *dims)
                # rows along the first axis, where ScatterND has its indices
                first = g.op("Transpose", old, perm=[2, 0, 1, 3])
                updates = g.op("Transpose", new, perm=[2, 0, 1, 3])
                written = g.op("ScatterND", first, rows, updates)
                cache = g.op("Transpose", written, perm=[1, 2, 0, 3])
                both.append(g.output(cache, f"present.{n}.{name}", *dims))
            if not bias:
                end = g.op("Squeeze", g.size(both[0], 2))
                columns = g.op("Range", g.constant(np.int64(0)), end, g.constant(np.int64(1)))
                seen = g.op("LessOrEqual", columns, rows)
                bias = g.op("Where", seen, g.number(0.0), g.number(LOWEST))
            scores = g.op("MatMul", q, g.op("Transpose", both[0], perm=[0, 1, 3, 2]))
            scores = g.op("Mul", scores, g.number(size.head**-0.5))
            weights = g.op("Softmax", g.op("Add", scores, bias), axis=-1)
            return g.op("MatMul", weights, both[1])

        x = _layer(g, size, x, attend)
    _finish(g, size, x)
    return g.model("fixed")


def tensor_scatter_decoder(
    size: Size = Size(), seed: int = 0, capacity: int | str = "capacity", mode: str = "linear"
) -> onnx.ModelProto:
    """A decoder with caches of a fixed capacity: TensorScatter writes them from `write_indices` on,
    and Attention reads the first `nonpad_kv_seqlen` keys of each sequence. mode: of TensorScatter.
    """
    g = _Graph(np.random.default_rng(seed))
    x = _add_embedding(g, size)
    at = g.input("write_indices", I64, "batch_size")
    valid = g.input("nonpad_kv_seqlen", I64, "batch_size")
    for n in range(size.layers):

        def attend(q: str, k: str, v: str, n: int = n) -> str:
            both = []
            for name, new in (("key", k), ("value", v)):
                dims = ("batch_size", size.heads, capacity, size.head)
                old = g.input(f"past_key_values.{n}.{name}", F32, *dims)
                cache = g.op("TensorScatter", old, new, at, axis=2, mode=mode)
                both.append(g.output(cache, f"present.{n}.{name}", *dims))
            causal = int(mode == "linear")  # places in a circular cache are in no order
            return g.op("Attention", q, *both, "", "", "", valid, is_causal=causal)

        x = _layer(g, size, x, attend)
    _finish(g, size, x)
    return g.model("tensor_scatter", CACHE_OPSET, CACHE_IR_VERSION)


def group_query_decoder(
    size: Size = Size(), seed: int = 0, capacity: int | str = "capacity", from_mask: bool = False
) -> onnx.ModelProto:
    """A decoder with caches of a fixed capacity in GroupQueryAttention. from_mask: lengths are
    computed from an attention mask, as exports for onnxruntime-genai do."""
    g = _Graph(np.random.default_rng(seed))
    x = _add_embedding(g, size)
    if from_mask:
        mask = g.input("attention_mask", I64, "batch_size", "total_sequence_length")
        count = g.op("ReduceSum", mask, g.integers(1), keepdims=0)
        last = g.op("Cast", g.op("Sub", count, g.integers(1)), to=I32)
        total = g.op("Cast", g.op("Gather", g.op("Shape", mask), g.constant(np.int64(1))), to=I32)
    else:
        last = g.input("seqlens_k", I32, "batch_size")
        total = g.input("total_sequence_length", I32)
    for n in range(size.layers):

        def attend(q: str, k: str, v: str, n: int = n) -> str:
            dims = ("batch_size", size.heads, capacity, size.head)
            names = [f"{n}.key", f"{n}.value"]
            old = [g.input(f"past_key_values.{name}", F32, *dims) for name in names]
            flat = (_join_heads(g, size, x) for x in (q, k, v))
            y, *both = g.ops(
                "GroupQueryAttention", (*flat, *old, last, total), 3, domain="com.microsoft",
                num_heads=size.heads, kv_num_heads=size.heads,
            )  # fmt: skip
            for name, cache in zip(names, both, strict=True):
                g.output(cache, f"present.{name}", *dims)
            dims_of_heads = (
                g.size(y, 0),
                g.size(y, 1),
                g.integers(size.heads),
                g.integers(size.head),
            )
            return g.op("Transpose", g.reshape(y, *dims_of_heads), perm=[0, 2, 1, 3])

        x = _layer(g, size, x, attend)
    _finish(g, size, x)
    return g.model("group_query")


def _join_heads(g: _Graph, size: Size, x: str) -> str:
    """[batch, heads, seq, head] as [batch, seq, width]."""
    y = g.op("Transpose", x, perm=[0, 2, 1, 3])
    return g.reshape(y, g.size(y, 0), g.size(y, 1), g.integers(size.width))


def _add_embedding(g: _Graph, size: Size) -> str:
    """The sum of the embeddings of tokens and positions."""
    ids = g.input("input_ids", I64, "batch_size", "sequence_length")
    positions = g.input("position_ids", I64, "batch_size", "sequence_length")
    table = g.random(size.vocabulary, size.width, scale=1.0)
    places = g.random(size.positions, size.width, scale=1.0)
    return g.op("Add", g.op("Gather", table, ids), g.op("Gather", places, positions))


def _layer(g: _Graph, size: Size, x: str, attend: Callable[[str, str, str], str]) -> str:
    wide = size.width
    qkv = g.dense(g.norm(x, wide), wide, 3 * wide, size)
    q, k, v = (
        g.heads(part, size)
        for part in g.ops("Split", [qkv, g.integers(wide, wide, wide)], 3, axis=2)
    )
    y = _join_heads(g, size, attend(q, k, v))
    x = g.op("Add", g.dense(y, wide, wide, size), x)
    y = g.gelu(g.dense(g.norm(x, wide), wide, 4 * wide, size))
    return g.op("Add", x, g.dense(y, 4 * wide, wide, size))


def _finish(g: _Graph, size: Size, x: str) -> None:
    """The logits. Their weights are not those of the embedding: a decoder would repeat a token."""
    x = g.norm(x, size.width)
    if size.block:
        logits = g.nbits(x, size.width, size.vocabulary, size)
    else:
        weight = g.random(size.width, size.vocabulary, scale=size.width**-0.5)
        logits = g.op("MatMul", x, weight)
    g.output(logits, "logits", "batch_size", "sequence_length", size.vocabulary)
    g.outputs.insert(0, g.outputs.pop())
