"""Products with weights of few bits, and their float64 results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROUNDING_BOUND = 4e-6  # of sums of float32, relative to the sum of magnitudes


@dataclass
class NBitsProduct:
    """A MatMulNBits node with weights drawn at random. zero: "", "packed" or "float" points."""

    k: int
    n: int
    block: int = 32
    bits: int = 4
    zero: str = ""
    bias: bool = False
    kind: int = TensorProto.FLOAT
    level: int = 0
    arrays: dict[str, np.ndarray] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng((self.k, self.n, self.block, self.bits))
        real = helper.tensor_dtype_to_np_dtype(self.kind)
        blocks = -(-self.k // self.block)
        self.arrays = {
            "b": rng.integers(0, 256, (self.n, blocks, self.block * self.bits // 8), np.uint8),
            "s": rng.uniform(0.001, 0.01, (self.n, blocks)).astype(real),
        }
        if self.zero == "packed":
            count = -(-blocks * self.bits // 8)
            self.arrays["z"] = rng.integers(0, 256, (self.n, count), np.uint8)
        elif self.zero:
            top = 1 << self.bits
            self.arrays["z"] = rng.uniform(0, top, (self.n, blocks)).astype(real)
        if self.bias:
            self.arrays["c"] = rng.standard_normal(self.n).astype(real)

    def node(self, a: str, y: str) -> onnx.NodeProto:
        names = [a, "b", "s", "z" if self.zero else "", "", "c" if self.bias else ""]
        while not names[-1]:
            names.pop()
        return helper.make_node(
            "MatMulNBits", names, [y], domain="com.microsoft", K=self.k, N=self.n, bits=self.bits,
            block_size=self.block, accuracy_level=self.level,
        )  # fmt: skip

    def model(self, lead: Sequence[int | str], drop: Sequence[str] = ()) -> onnx.ModelProto:
        """The node alone. lead: sizes before K. drop: constants that are inputs instead."""
        given = {"a": (self.kind, [*lead, self.k])}
        for name in drop:
            x = self.arrays[name]
            given[name] = (helper.np_dtype_to_tensor_dtype(x.dtype), [*x.shape])
        graph = helper.make_graph(
            [self.node("a", "y")], "g",
            [helper.make_tensor_value_info(name, *t) for name, t in given.items()],
            [helper.make_tensor_value_info("y", self.kind, [*lead, self.n])],
            [numpy_helper.from_array(x, k) for k, x in self.arrays.items() if k not in drop],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def draw_rows(self, lead: Sequence[int]) -> np.ndarray:
        rng = np.random.default_rng(tuple(lead))
        real = helper.tensor_dtype_to_np_dtype(self.kind)
        return rng.standard_normal((*lead, self.k)).astype(real)

    @cached_property
    def weights(self) -> np.ndarray:
        """The dequantized weights, [k, n]."""
        blocks = -(-self.k // self.block)
        q = self._fields(self.arrays["b"]).reshape(self.n, blocks, self.block)
        z: np.ndarray = np.full((self.n, blocks), float(1 << (self.bits - 1)))
        if self.zero == "packed":
            z = self._fields(self.arrays["z"])[:, :blocks].astype(np.float64)
        elif self.zero:
            z = self.arrays["z"].astype(np.float64)
        w = (q - z[:, :, None]) * self.arrays["s"].astype(np.float64)[:, :, None]
        return w.reshape(self.n, -1)[:, : self.k].T

    def _fields(self, packed: np.ndarray) -> np.ndarray:
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        fields = packed[..., None] >> shifts & np.uint8((1 << self.bits) - 1)
        return fields.reshape(*packed.shape[:-1], -1)

    def check(self, a: np.ndarray, y: np.ndarray) -> None:
        """Compare with the float64 result, within the rounding of float32 sums."""
        w, x = self.weights, a.astype(np.float64)
        c = self.arrays["c"].astype(np.float64) if self.bias else 0.0
        assert y.shape == (*a.shape[:-1], self.n)
        assert y.dtype == a.dtype
        wanted = x @ w + c
        error = np.abs(y - wanted)
        bound = ROUNDING_BOUND * (np.abs(x) @ np.abs(w) + np.abs(c))
        if y.dtype != np.float32:
            bound = bound + float(ml_dtypes.finfo(y.dtype).eps) * np.abs(wanted)
        assert (error <= bound).all(), float((error / bound).max())
