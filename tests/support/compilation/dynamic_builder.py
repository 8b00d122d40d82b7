"""Random ONNX models under construction, whose values have symbolic sizes n and m."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

import numpy as np
import onnx
from onnx import helper, numpy_helper

Dim = int | str  # a number, or a formula of n and m


@dataclass(frozen=True, slots=True)
class Tensor:
    """A float32 value. is_bounded: its elements are small."""

    name: str
    shape: tuple[Dim, ...]
    is_bounded: bool = False


def value(d: Dim, sizes: Mapping[str, int]) -> int:
    """Return a dimension at given sizes."""
    return d if isinstance(d, int) else eval(d, {"max": max}, dict(sizes))  # type: ignore[no-any-return]


@dataclass(slots=True)
class Builder:
    """A model under construction."""

    random: Random
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    pool: list[Tensor] = field(default_factory=list)

    def name(self) -> str:
        return f"v{len(self.nodes)}_{len(self.constants)}"

    def constant(self, x: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(x, name))
        return name

    def floats(self, *shape: int, scale: float = 1.0) -> str:
        rng = np.random.default_rng(self.random.getrandbits(32))
        return self.constant((scale * rng.standard_normal(shape)).astype(np.float32))

    def ints(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def node(self, op: str, *inputs: str, outputs: int = 1, **attrs: object) -> list[str]:
        names = [f"{self.name()}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attrs))
        return names

    def add(
        self, op: str, shape: tuple[Dim, ...], *inputs: str, bounded: bool = False, **attrs: object
    ) -> Tensor:
        """Add a node with one result, which later nodes may read."""
        (name,) = self.node(op, *inputs, **attrs)
        self.pool.append(Tensor(name, shape, bounded))
        return self.pool[-1]

    def pick(self, fits: Callable[[Tensor], bool] = lambda _: True) -> Tensor | None:
        """Return a value, a late one more likely."""
        some = [t for t in self.pool if fits(t)]
        return some[max(-1 - int(self.random.expovariate(0.5)), -len(some))] if some else None


def bound_values(b: Builder, t: Tensor) -> Tensor:
    return t if t.is_bounded else b.add("Tanh", t.shape, t.name, bounded=True)


def broadcast(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    rank = max(len(a), len(b))
    out: list[Dim] = []
    for x, y in zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True):
        if x != y and 1 not in (x, y):
            return None
        out.append(y if x == 1 else x)
    return tuple(out)


def product(*dims: Dim) -> Dim:
    number, texts = 1, []
    for d in dims:
        if isinstance(d, int):
            number *= d
        else:
            texts.append(d)
    if not texts:
        return number
    return "*".join([*([str(number)] if number != 1 else []), *sorted(texts)])
