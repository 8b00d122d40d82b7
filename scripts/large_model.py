"""Draw a decoder of GPT-2's structure with external data, as exporters write it.

    python scripts/large_model.py model.onnx [--layers 26] [--hidden 1280] [--vocabulary 50257]

The defaults have 576 million float32 parameters: 2.3 GB.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PAGE_BYTES = 4096
HEAD_SIZE = 64
GELU = (0.044715, float(np.sqrt(2 / np.pi)))


@dataclass(slots=True)
class DecoderBuilder:
    """Nodes and initializers; `data` takes the weights."""

    data: BinaryIO
    location: str
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)

    def weight(self, name: str, *shape: int, mean: float = 0.0) -> str:
        """Add a normally distributed weight; return its name."""
        offset = -(-self.data.tell() // PAGE_BYTES) * PAGE_BYTES
        self.data.seek(offset)
        drawn = self.rng.standard_normal(shape, np.float32)
        drawn *= np.float32(0.02)
        drawn += np.float32(mean)
        self.data.write(drawn.data)
        t = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        t.data_location = TensorProto.EXTERNAL
        entries = {"location": self.location, "offset": offset, "length": drawn.nbytes}
        for key, value in entries.items():
            t.external_data.add(key=key, value=str(value))
        self.initializers.append(t)
        return name

    def constant(self, name: str, value: object, dtype: type = np.int64) -> str:
        """Add a small initializer; return its name."""
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def node(self, op: str, *inputs: str, name: str, outputs: int = 1, **attrs: object) -> str:
        """Add a node; return its result, or the common part of its results' names."""
        names = [name] if outputs == 1 else [f"{name}{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=f"{name}/{op}", **attrs))
        return name

    def linear(self, x: str, name: str, length: int, inputs: int, outputs: int) -> str:
        """Add a product with a matrix, of rows, as GPT-2's Conv1D is exported."""
        rows = self.node(
            "Reshape", x, self.constant(f"{name}.rows", [-1, inputs]), name=f"{name}/r"
        )
        w, b = self.weight(f"{name}.weight", inputs, outputs), self.weight(f"{name}.bias", outputs)
        y = self.node("Gemm", rows, w, b, name=f"{name}/g")
        shape = self.constant(f"{name}.shape", [1, length, outputs])
        return self.node("Reshape", y, shape, name=f"{name}/y")

    def norm(self, x: str, name: str, hidden: int) -> str:
        scale = self.weight(f"{name}.weight", hidden, mean=1.0)
        bias = self.weight(f"{name}.bias", hidden)
        return self.node("LayerNormalization", x, scale, bias, name=f"{name}/y", epsilon=1e-5)

    def attention(self, x: str, name: str, length: int, hidden: int) -> str:
        """Add causal attention."""
        heads = self.constant(f"{name}.heads", [1, length, hidden // HEAD_SIZE, HEAD_SIZE])
        qkv = self.linear(x, f"{name}.c_attn", length, hidden, 3 * hidden)
        self.node("Split", qkv, name=f"{name}/qkv", outputs=3, axis=2)
        parts = []
        for n, perm in enumerate(([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])):
            part = self.node("Reshape", f"{name}/qkv{n}", heads, name=f"{name}/heads{n}")
            parts.append(self.node("Transpose", part, name=f"{name}/turned{n}", perm=perm))
        scores = self.node("MatMul", parts[0], parts[1], name=f"{name}/scores")
        root = self.constant(f"{name}.root", np.sqrt(HEAD_SIZE), np.float32)
        scaled = self.node("Div", scores, root, name=f"{name}/scaled")
        least = self.constant(f"{name}.least", np.finfo(np.float32).min, np.float32)
        masked = self.node("Where", "causal", scaled, least, name=f"{name}/masked")
        p = self.node("Softmax", masked, name=f"{name}/p", axis=-1)
        mixed = self.node("MatMul", p, parts[2], name=f"{name}/mixed")
        back = self.node("Transpose", mixed, name=f"{name}/back", perm=[0, 2, 1, 3])
        flat = self.constant(f"{name}.flat", [1, length, hidden])
        y = self.node("Reshape", back, flat, name=f"{name}/flat")
        return self.linear(y, f"{name}.c_proj", length, hidden, hidden)

    def gelu(self, x: str, name: str) -> str:
        """Add GELU by tanh, as `gelu_new` is exported."""
        numbers = {"half": 0.5, "one": 1.0, "three": 3.0, "cubic": GELU[0], "root": GELU[1]}
        c = {k: self.constant(f"{name}.{k}", v, np.float32) for k, v in numbers.items()}
        cube = self.node("Pow", x, c["three"], name=f"{name}/cube")
        inner = self.node("Mul", cube, c["cubic"], name=f"{name}/m")
        inner = self.node("Add", x, inner, name=f"{name}/a")
        inner = self.node("Mul", inner, c["root"], name=f"{name}/s")
        inner = self.node("Tanh", inner, name=f"{name}/t")
        inner = self.node("Add", inner, c["one"], name=f"{name}/o")
        half = self.node("Mul", x, c["half"], name=f"{name}/h")
        return self.node("Mul", half, inner, name=f"{name}/y")


def draw_decoder(
    path: Path, layers: int = 26, hidden: int = 1280, vocabulary: int = 50257, length: int = 64
) -> int:
    """Write a decoder to `path` and its weights beside it; return the bytes of both."""
    with Path(f"{path}.data").open("wb") as data:
        b = DecoderBuilder(data, f"{path.name}.data")
        mask = np.tril(np.ones((1, 1, length, length), bool))
        b.constant("causal", mask, np.bool_)
        b.constant("positions", np.arange(length))
        wte, wpe = b.weight("wte", vocabulary, hidden), b.weight("wpe", 1024, hidden)
        x = b.node("Gather", wte, "input_ids", name="tokens")
        x = b.node("Add", x, b.node("Gather", wpe, "positions", name="places"), name="h")
        for n in range(layers):
            name = f"h.{n}"
            attended = b.attention(
                b.norm(x, f"{name}.ln_1", hidden), f"{name}.attn", length, hidden
            )
            x = b.node("Add", attended, x, name=f"{name}/mid")
            up = b.linear(
                b.norm(x, f"{name}.ln_2", hidden), f"{name}.c_fc", length, hidden, 4 * hidden
            )
            up = b.gelu(up, f"{name}.act")
            down = b.linear(up, f"{name}.c_proj", length, 4 * hidden, hidden)
            x = b.node("Add", x, down, name=f"{name}/out")
        b.node("Identity", b.norm(x, "ln_f", hidden), name="hidden_states")
    graph = helper.make_graph(
        b.nodes, "decoder",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, length])],
        [helper.make_tensor_value_info("hidden_states", TensorProto.FLOAT, [1, length, hidden])],
        b.initializers,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path.stat().st_size + Path(f"{path}.data").stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--layers", type=int, default=26)
    parser.add_argument("--hidden", type=int, default=1280)
    parser.add_argument("--vocabulary", type=int, default=50257)
    given = parser.parse_args()
    size = draw_decoder(given.path, given.layers, given.hidden, given.vocabulary)
    print(f"{given.path}: {size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
