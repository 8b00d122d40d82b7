"""The nets that bench_gpu.py measures, as torch would define them, with drawn weights; and four
Llama layers as an ONNX model, whose numbers are those of the issue (d 2048, 16 heads, ffn 5632)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

VISION = ("resnet18", "resnet50", "squeezenet1_1", "mobilenet_v2", "inception_v3")
SIDES = {"inception_v3": 299}
LAYERS, WIDTH, HEADS, INNER, LENGTH = 4, 2048, 16, 5632, 256


def net(name: str, batch: int, kind: Any, device: str = "cuda") -> tuple[Any, tuple[Any, ...]]:
    """A module of torch on the device, and its inputs there; pictures with channels last. Needs
    torchvision, and transformers for BERT. kind: torch's type of floats.

    Raises KeyError for another name."""
    import torch

    torch.manual_seed(0)
    on: Any = {"device": device, "dtype": kind}
    if name in VISION or name == "csrnet":
        made = _vision(name)
        made = made.eval().to(**on, memory_format=torch.channels_last)
        side = SIDES.get(name, 224)
        x = torch.randn(batch, 3, side, side, **on)
        return made, (x.contiguous(memory_format=torch.channels_last),)
    if name == "bert_base_12l":
        from transformers import BertConfig, BertModel

        made = BertModel(BertConfig(), add_pooling_layer=True).eval().to(**on)
        ids = torch.randint(0, 2, (batch, 128), device=device)
        return made, (ids, torch.ones_like(ids), torch.zeros_like(ids))
    if name == "llama_layers":
        made = _Layers().eval().to(**on)
        return made, (torch.randn(batch, LENGTH, WIDTH, **on),)
    if name == "nasrnn":
        made = _NasRnn().eval().to(**on)
        return made, (torch.randn(batch, 5, 512, **on),)
    raise KeyError(name)


def _vision(name: str) -> Any:
    import torchvision
    from torch import nn

    if name != "csrnet":
        more = {"init_weights": False} if name == "inception_v3" else {}
        return getattr(torchvision.models, name)(weights=None, **more)
    layers: list[Any] = []
    wide = 3
    for c in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512):
        layers += [nn.Conv2d(wide, c, 3, padding=1), nn.ReLU()] if c else [nn.MaxPool2d(2)]
        wide = c or wide
    for c in (512, 512, 512, 256, 128, 64):
        layers += [nn.Conv2d(wide, c, 3, padding=2, dilation=2), nn.ReLU()]
        wide = c
    return nn.Sequential(*layers, nn.Conv2d(wide, 1, 1))


try:
    import torch
    from torch import nn
    from torch.nn import functional as fn
except ImportError:  # the ONNX model needs none of it
    pass
else:

    class _Layers(nn.Module):  # type: ignore[misc, unused-ignore]
        """Norm, attention of turned heads, norm, gated product; four times."""

        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ParameterList([nn.Parameter(torch.ones(WIDTH)) for _ in range(8)])
            sizes = [(WIDTH, WIDTH)] * 4 + [(INNER, WIDTH)] * 2 + [(WIDTH, INNER)]
            self.w = nn.ModuleList(
                [nn.Linear(i, o, bias=False) for _ in range(LAYERS) for o, i in sizes]
            )
            cos, sin = (torch.from_numpy(x) for x in angles())
            self.register_buffer("cos", cos)
            self.register_buffer("sin", sin)

        def forward(self, x: Any) -> Any:
            b = x.shape[0]

            def heads(y: Any) -> Any:
                return y.view(b, LENGTH, HEADS, -1).transpose(1, 2)

            def turned(y: Any) -> Any:
                first, last = y.chunk(2, -1)
                return y * self.cos + torch.cat((-last, first), -1) * self.sin

            for n in range(LAYERS):
                q, k, v, o, gate, up, down = self.w[7 * n : 7 * n + 7]
                y = self._norm(x, self.norms[2 * n])
                a = fn.scaled_dot_product_attention(
                    turned(heads(q(y))), turned(heads(k(y))), heads(v(y)), is_causal=True
                )
                x = x + o(a.transpose(1, 2).reshape(b, LENGTH, WIDTH))
                y = self._norm(x, self.norms[2 * n + 1])
                x = x + down(fn.silu(gate(y)) * up(y))
            return x

        def _norm(self, x: Any, weight: Any) -> Any:
            y = x.float()
            y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
            return y.to(x.dtype) * weight

    class _NasRnn(nn.Module):  # type: ignore[misc, unused-ignore]
        """Five steps of the cell that Zoph and Le's search found (arXiv:1611.01578), as in TASO."""

        def __init__(self) -> None:
            super().__init__()
            self.w = nn.ModuleList([nn.Linear(512, 512, bias=False) for _ in range(8)])
            self.u = nn.ModuleList([nn.Linear(512, 512, bias=False) for _ in range(8)])
            self.register_buffer("first", torch.zeros(1, 512))

        def forward(self, x: Any) -> Any:
            h = self.first
            sigmoid, tanh, relu = torch.sigmoid, torch.tanh, torch.relu
            for n in range(x.shape[1]):
                g = [w(x[:, n]) + u(h) for w, u in zip(self.w, self.u, strict=True)]
                a = tanh(relu(g[0]) + sigmoid(g[3]))
                b = sigmoid(sigmoid(g[1]) + tanh(g[2]))
                c = tanh(sigmoid(g[4]) * tanh(g[5]))
                d = tanh(sigmoid(g[6]) * relu(g[7]))
                h = tanh(tanh(b + c) * tanh(a * d))
            return h


def angles() -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines of positions."""
    d = WIDTH // HEADS
    turn = np.arange(LENGTH)[:, None] / 10000.0 ** (np.arange(0, d, 2) / d)
    both = np.concatenate((turn, turn), -1)
    return np.cos(both).astype(np.float32), np.sin(both).astype(np.float32)


def llama_layers(path: Path, batch: int) -> None:
    """Write the ONNX model; its weights lie beside it."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    d = WIDTH // HEADS
    cos, sin = angles()
    known: dict[str, np.ndarray] = {
        "cos": cos, "sin": sin, "eps": np.float32(1e-5), "two": np.float32(2),
        "one": np.float32(1), "scale": np.float32(d**-0.5), "zero": np.array([0]),
        "half": np.array([d // 2]), "end": np.array([d]), "last": np.array([-1]),
        "split": np.array([0, 0, HEADS, d]), "joined": np.array([0, 0, WIDTH]),
        "mask": np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1),
    }  # fmt: skip
    nodes: list[Any] = []

    def add(op: str, *names: str, **how: Any) -> str:
        out = f"v{len(nodes)}"
        nodes.append(helper.make_node(op, names, [out], **how))
        return out

    def weight(o: int, i: int) -> str:
        name = f"w{len(known)}"
        known[name] = rng.standard_normal((i, o), np.float32) / np.float32(np.sqrt(i))
        return name

    def norm(x: str) -> str:
        known.setdefault("ones", np.ones(WIDTH, np.float32))
        mean = add("ReduceMean", add("Pow", x, "two"), axes=[-1])
        return add("Mul", add("Div", x, add("Sqrt", add("Add", mean, "eps"))), "ones")

    def heads(y: str) -> str:
        return add("Transpose", add("Reshape", y, "split"), perm=[0, 2, 1, 3])

    def turned(y: str) -> str:
        first = add("Slice", y, "zero", "half", "last")
        rest = add("Neg", add("Slice", y, "half", "end", "last"))
        other = add("Concat", rest, first, axis=-1)
        return add("Add", add("Mul", y, "cos"), add("Mul", other, "sin"))

    x = "x"
    for _ in range(LAYERS):
        y = norm(x)
        q, k, v = (heads(add("MatMul", y, weight(WIDTH, WIDTH))) for _ in range(3))
        scores = add("MatMul", turned(q), add("Transpose", turned(k), perm=[0, 1, 3, 2]))
        p = add("Softmax", add("Add", add("Mul", scores, "scale"), "mask"), axis=-1)
        a = add("Transpose", add("MatMul", p, v), perm=[0, 2, 1, 3])
        x = add("Add", x, add("MatMul", add("Reshape", a, "joined"), weight(WIDTH, WIDTH)))
        y = norm(x)
        gate, up = (add("MatMul", y, weight(INNER, WIDTH)) for _ in range(2))
        z = add("Mul", add("Mul", gate, add("Sigmoid", gate)), up)
        x = add("Add", x, add("MatMul", z, weight(WIDTH, INNER)))
    shape = [batch, LENGTH, WIDTH]
    graph = helper.make_graph(
        nodes, "llama_layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in known.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, path)
