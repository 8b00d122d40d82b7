"""ONNX's tensors as constants of the graph: lazily read, equal contents shared."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as oir

from superopt.ir import graph as g
from superopt.onnx_io.types import dtype_of, onnx_dtype
from superopt.te.dtype import DType, to_numpy
from superopt.te.expr import TensorType

SMALL = 4096  # bytes below which a tensor is compared by content at once
_PROBE = 1024  # elements at either end that are compared before a whole tensor is read


class ConstantPool:
    """Constants by content. A large tensor is read only when another begins and ends alike."""

    def __init__(self) -> None:
        self.tensors: dict[g.Constant, oir.TensorProtocol] = {}
        self._made: dict[int, g.Constant] = {}
        self._kept: list[oir.TensorProtocol] = []
        self._groups: dict[object, list[oir.TensorProtocol]] = {}

    def add(self, tensors: Iterable[oir.TensorProtocol]) -> None:
        """Announce tensors, so that equal ones among them are found."""
        for t in tensors:
            self._kept.append(t)  # keeps id() unique
            if t.nbytes > SMALL:
                self._groups.setdefault(_probe(t), []).append(t)

    def constant(self, t: oir.TensorProtocol) -> g.Constant:
        """The constant of `t` (which was added)."""
        made = self._made.get(id(t))
        if made is None:
            made = self._build(t)
            self._made[id(t)] = made
            self.tensors.setdefault(made, t)
        return made

    def of_array(self, values: np.ndarray, dtype: DType) -> g.Constant:
        """The constant of an array."""
        array = values.astype(to_numpy(dtype))
        made = g.constant(array)
        if made not in self.tensors:
            self.tensors[made] = oir.Tensor(made.load(), dtype=onnx_dtype(dtype))
        return made

    def _build(self, t: oir.TensorProtocol) -> g.Constant:
        dtype = dtype_of(t.dtype)
        shape = tuple(int(d) for d in t.shape)  # type: ignore[arg-type]
        kind = TensorType(dtype, shape)

        def load() -> np.ndarray:
            array = t.numpy()
            if dtype is not None and array.dtype != to_numpy(dtype):
                array = array.astype(to_numpy(dtype))
            return array

        if t.nbytes <= SMALL:
            key: object = g.content_key(load())
        elif len(self._groups[_probe(t)]) > 1:
            key = g.content_key(load())
        else:
            key = ("tensor", id(self), id(t))
        return g.constant(type=kind, key=key, load=load, nbytes=t.nbytes)


def _probe(t: oir.TensorProtocol) -> object:
    flat = t.numpy().reshape(-1)
    ends = np.concatenate([flat[:_PROBE], flat[len(flat) // 2 :][:_PROBE], flat[-_PROBE:]])
    return (int(t.dtype), tuple(map(str, t.shape)), g.content_key(ends))
