"""ONNX tensors as constants of the graph: read lazily, equal contents shared."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from itertools import count

import numpy as np
import onnx
import onnx_ir as oir
from onnx import numpy_helper

from superopt import guard
from superopt.ir import graph
from superopt.onnx_io.import_.dtypes import dtype_of, onnx_dtype
from superopt.onnx_io.read.mapped_file import Region
from superopt.onnx_io.read.packed_parts import unpack_sparse
from superopt.onnx_io.read.region_tensors import region_of, tensor_from_region
from superopt.onnx_io.read.skeleton import stub_index
from superopt.te.expr.dtype import DType, to_numpy
from superopt.te.expr.tensor import TensorType

MAX_DENSE_ELEMENTS = 1 << 24  # of a sparse tensor that is read as a dense one
SMALL_TENSOR_BYTES = 4096  # bytes below which a tensor is compared by content at once
_PROBE_BYTES = 1024  # bytes at three places that are compared before a whole tensor is read
_POOL_NUMBERS = count()  # numbers of pools: an address would come back once a pool is gone


class ConstantPool:
    """Constants by content. A large tensor is read only if the beginning and end of another are
    equal."""

    def __init__(self) -> None:
        self.tensors: dict[graph.Constant, oir.TensorProtocol] = {}
        self._number = next(_POOL_NUMBERS)
        self._constants: dict[int, graph.Constant] = {}
        self._kept: list[oir.TensorProtocol] = []  # alive, so that id() is theirs alone
        self._groups: dict[object, int] = {}

    def announce(self, tensors: Iterable[oir.TensorProtocol]) -> None:
        """Announce tensors, so that equal ones among them are found."""
        for t in tensors:
            guard.check_time("reading a model")
            self._kept.append(t)
            if t.nbytes > SMALL_TENSOR_BYTES:
                probe = _probe(t)
                self._groups[probe] = self._groups.get(probe, 0) + 1

    def constant(self, t: oir.TensorProtocol) -> graph.Constant:
        """Return the constant of a tensor that was announced."""
        made = self._constants.get(id(t))
        if made is None:
            guard.check_time("reading a model")
            made = self._build(t)
            self._constants[id(t)] = made
            self.tensors.setdefault(made, t)
        return made

    def unshared_constant(self, t: oir.TensorProtocol) -> graph.Constant:
        """Return a constant that is never merged with another: the file writes its tensor in
        another form."""
        self._kept.append(t)
        key = ("unshared", self._number, len(self._kept))
        made = graph.constant(
            type=TensorType(dtype_of(t.dtype), tensor_dims(t)),
            key=key,
            load=t.numpy,
            nbytes=t.nbytes,
        )
        self.tensors[made] = t
        return made

    def array_constant(self, values: np.ndarray, dtype: DType) -> graph.Constant:
        """Return the constant of an array."""
        made = graph.constant(values.astype(to_numpy(dtype)))
        self.tensors.setdefault(made, tensor_from_constant(made))
        return made

    def _build(self, t: oir.TensorProtocol) -> graph.Constant:
        dtype = dtype_of(t.dtype)
        kind = TensorType(dtype, tensor_dims(t))

        def load() -> np.ndarray:
            array = t.numpy()
            if dtype is not None and array.dtype != to_numpy(dtype):
                array = array.astype(to_numpy(dtype))
            return array

        if t.nbytes <= SMALL_TENSOR_BYTES:
            key: object = graph.content_key(load())
        elif self._groups[_probe(t)] > 1:
            key = (str(t.dtype), tensor_dims(t), _digest(t))
        else:
            key = ("tensor", self._number, len(self._constants))
        return graph.constant(type=kind, key=key, load=load, nbytes=t.nbytes)


def constant_node_tensor(n: oir.Node) -> oir.TensorProtocol | None:
    """Return the tensor of a Constant node; None for a sparse tensor, a reference to a function
    attribute, or several attributes.

    The tensor keeps its own name, which is not the result's.
    """
    if len(n.attributes) != 1:
        return None
    (a,) = n.attributes.values()
    match a.name:
        case _ if a.is_ref():
            return None
        case "value":
            t = a.as_tensor()
            return None if t.dtype == oir.DataType.UNDEFINED else t
        case "value_float":
            return oir.Tensor(np.array(a.as_float(), np.float32))
        case "value_floats":
            return oir.Tensor(np.array(a.as_floats(), np.float32))
        case "value_int":
            return oir.Tensor(np.array(a.as_int(), np.int64))
        case "value_ints":
            return oir.Tensor(np.array(a.as_ints(), np.int64))
        case "value_string":
            return oir.StringTensor([a.as_string().encode()], shape=oir.Shape(()))
        case "value_strings":
            strings = [s.encode() for s in a.as_strings()]
            return oir.StringTensor(strings, shape=oir.Shape((len(strings),)))
        case _:
            return None


def sparse_constant_node_tensor(n: oir.Node) -> oir.TensorProtocol | None:
    """Return the sparse tensor of a Constant node as a dense one; None if there is none, or if it
    has more than MAX_DENSE_ELEMENTS."""
    for a in n.attributes.values():
        if not a.is_ref() and a.type == oir.AttributeType.STRING:
            sparse = unpack_sparse(a.name, a.as_string())
            return None if sparse is None else _densify(sparse)
    return None


def _densify(t: onnx.SparseTensorProto) -> oir.TensorProtocol | None:
    shape = tuple(t.dims)
    if math.prod(shape) > MAX_DENSE_ELEMENTS or stub_index(t.values) is not None:
        return None
    values = numpy_helper.to_array(t.values)
    if values.dtype == object:
        return None
    places = numpy_helper.to_array(t.indices)
    at = np.ravel_multi_index(tuple(places.T), shape) if places.ndim == 2 else places
    flat = np.zeros(math.prod(shape), values.dtype)
    flat[at] = values
    return oir.Tensor(flat.reshape(shape), dtype=oir.DataType(t.values.data_type))


def tensor_dims(t: oir.TensorProtocol) -> tuple[int, ...]:
    """Return the static shape of a tensor."""
    return tuple(int(d) for d in t.shape)  # type: ignore[arg-type]


def tensor_from_constant(c: graph.Constant) -> oir.TensorProtocol:
    """Return the ONNX tensor of a constant; it is read lazily."""
    assert c.type.dtype is not None
    dtype = onnx_dtype(c.type.dtype)
    shape = oir.Shape(tuple(int(d) for d in c.type.shape or ()))  # type: ignore[arg-type]
    if dtype != oir.DataType.STRING:
        return oir.LazyTensor(lambda: oir.Tensor(c.load(), dtype=dtype), dtype=dtype, shape=shape)
    flat = [e if isinstance(e, bytes) else str(e).encode() for e in c.load().reshape(-1)]
    return oir.StringTensor(flat, shape=shape)


def rename_tensor(t: oir.TensorProtocol, name: str) -> oir.TensorProtocol:
    """Return the tensor under another name; a tensor in a file stays there."""
    about = (name, t.doc_string, dict(t.metadata_props))
    region = region_of(t)
    if region is not None:
        return tensor_from_region(region, t.dtype, tensor_dims(t), *about)
    if t.dtype == oir.DataType.STRING:
        flat = [e if isinstance(e, bytes) else str(e).encode() for e in t.numpy().reshape(-1)]
        shape = oir.Shape(tensor_dims(t))
        return oir.StringTensor(
            flat, shape=shape, name=name, doc_string=about[1], metadata_props=about[2]
        )
    return oir.LazyTensor(
        lambda: t,
        dtype=t.dtype,
        shape=oir.Shape(tensor_dims(t)),
        name=name,
        doc_string=about[1],
        metadata_props=about[2],
    )


def _probe(t: oir.TensorProtocol) -> object:
    """Return a cheap key that equal tensors share."""
    region = region_of(t)
    if region is None:
        flat = np.ascontiguousarray(t.numpy()).reshape(-1)
        if flat.dtype == object:
            return (int(t.dtype), tensor_dims(t), tuple(map(str, flat[:16])))
        view = flat.view(np.uint8).data
    else:
        view = region.view()
    middle = len(view) // 2
    ends = (
        bytes(view[:_PROBE_BYTES]),
        bytes(view[middle : middle + _PROBE_BYTES]),
        bytes(view[-_PROBE_BYTES:]),
    )
    if region is not None:  # else what the system read around these pieces stays in memory
        region.backing.release(region.offset, region.size)
    return (int(t.dtype), tensor_dims(t), ends)


def _digest(t: oir.TensorProtocol) -> bytes:
    digest = hashlib.sha256()
    region: Region | None = region_of(t)
    if region is not None:
        region.update_hash(digest)  # a piece at a time: memory stays small
    elif t.dtype == oir.DataType.STRING:
        digest.update(repr(t.numpy().tolist()).encode())
    else:
        digest.update(t.tobytes())
    return digest.digest()
