"""A model of one operator of com.microsoft on quantized values, and random operands."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

Rng = np.random.Generator
Array = np.ndarray
DOMAIN = "com.microsoft"
OPSET = 21
MAX_PRODUCT_WEIGHT = 63  # products of pairs of such weights and bytes fit into 16 bits


@dataclass(slots=True)
class Case:
    """A model of one operator. inputs: what is computed from; wanted: the results by the
    definition."""

    op: str
    operands: list[tuple[str, Array | None]] = field(default_factory=list)
    attrs: dict[str, object] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    wanted: list[Array] = field(default_factory=list)

    def model(self, batch: str | None = None) -> onnx.ModelProto:
        """Return the model. batch: the name of the first size of each input, if it is symbolic."""
        names = [name if a is not None else "" for name, a in self.operands]
        while names and not names[-1]:
            names.pop()
        results = [f"y{k}" for k in range(len(self.wanted))]
        node = helper.make_node(self.op, names, results, domain=DOMAIN, **self.attrs)
        arrays = {name: np.asarray(a) for name, a in self.operands if a is not None}
        kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in arrays.items()}
        graph = helper.make_graph(
            [node], "g",
            [helper.make_tensor_value_info(
                n, kinds[n], [batch if batch and not k else d for k, d in enumerate(a.shape)]
            ) for n, a in arrays.items() if n in self.inputs],
            [helper.make_tensor_value_info(
                n, helper.np_dtype_to_tensor_dtype(a.dtype), [None] * a.ndim
            ) for n, a in zip(results, self.wanted, strict=True)],
            [numpy_helper.from_array(a, n) for n, a in arrays.items() if n not in self.inputs],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def feeds(self) -> dict[str, Array]:
        return {n: np.asarray(a) for n, a in self.operands if n in self.inputs and a is not None}


def draw_type(rng: Rng) -> np.dtype:
    return np.dtype(rng.choice([np.uint8, np.int8]))


def draw_bytes(rng: Rng, shape: tuple[int, ...], dtype: np.dtype, most: int = 255) -> Array:
    """Return integers of the whole range, the ends more often; or at most `most` beside the
    middle."""
    ends = np.iinfo(dtype)
    middle = (ends.max + ends.min + 1) // 2
    low, high = max(ends.min, middle - most), min(ends.max, middle + most)
    drawn = rng.integers(low, high + 1, shape)
    return np.where(rng.random(shape) < 0.3, rng.choice([low, high], shape), drawn).astype(dtype)


def draw_scale(rng: Rng, shape: tuple[int, ...] = ()) -> Array:
    return (rng.random(shape) * 0.05 + 0.005).astype(np.float32)


def is_drawn(rng: Rng, share: float = 0.5) -> bool:
    return bool(rng.random() < share)


def draw_shape(rng: Rng, rank: int) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(1, 8, rank))
