"""Pack parts of a model that onnx_ir cannot represent into parts that it preserves.

Map types (results of scikit-learn classifiers), sparse initializers and sparse attributes become
strings on import and are restored on export. So do attributes that are long lists, for which
onnx_ir creates a Python object per entry; `list_attribute` reads them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from superopt.onnx_io.read.protos import all_bodies

_PACKED_PREFIX = "superopt.packed:"  # begins a denotation, or the name of an attribute
_PACKED_INITIALIZER = f"{_PACKED_PREFIX}initializer"
_PACKED_LIST_PREFIX = (
    f"{_PACKED_PREFIX}list:"  # begins the name of an attribute that is a long list
)
_SPARSE, _STRING = onnx.AttributeProto.SPARSE_TENSOR, onnx.AttributeProto.STRING
# Lists of ai.onnx's own operators are short, and many functions read them (Constant's are tensors).
_DEFAULT_DOMAINS = ("", "ai.onnx")
MAX_UNPACKED_ENTRIES = 1024  # entries


def pack_unsupported(model: onnx.ModelProto) -> None:
    """Pack in place. Sparse initializers become Constant nodes before all others."""
    for place in all_bodies(model):
        for n in place.body.node:
            for a in n.attribute:
                if a.type == _SPARSE:
                    packed = a.sparse_tensor.SerializeToString()
                    a.ClearField("sparse_tensor")
                    a.name, a.type, a.s = _PACKED_PREFIX + a.name, _STRING, base64.b64encode(packed)
                elif (
                    n.domain not in _DEFAULT_DOMAINS
                    and max(len(a.floats), len(a.ints), len(a.strings)) > MAX_UNPACKED_ENTRIES
                ):
                    name, packed = _PACKED_LIST_PREFIX + a.name, a.SerializeToString()
                    a.Clear()
                    a.name, a.type, a.s = name, _STRING, base64.b64encode(packed)
        if isinstance(place.body, onnx.GraphProto):
            _pack_initializers(place.body)
    for kind in _value_types(model):
        if _has_map_type(kind):
            packed = kind.SerializeToString()
            kind.Clear()
            kind.tensor_type.elem_type = onnx.TensorProto.UNDEFINED
            kind.denotation = _PACKED_PREFIX + base64.b64encode(packed).decode()


def unpack_unsupported(model: onnx.ModelProto) -> None:
    """Restore in place what `pack_unsupported` packed."""
    for kind in _value_types(model):
        if kind.denotation.startswith(_PACKED_PREFIX):
            packed = base64.b64decode(kind.denotation.removeprefix(_PACKED_PREFIX))
            kind.Clear()
            kind.ParseFromString(packed)
    for place in all_bodies(model):
        if isinstance(place.body, onnx.GraphProto):
            _unpack_initializers(place.body)
        for n in place.body.node:
            for a in n.attribute:
                if a.name.startswith(_PACKED_LIST_PREFIX):
                    a.ParseFromString(base64.b64decode(a.s))
                elif a.name.startswith(_PACKED_PREFIX):
                    a.sparse_tensor.ParseFromString(base64.b64decode(a.s))
                    a.ClearField("s")
                    a.name, a.type = a.name.removeprefix(_PACKED_PREFIX), _SPARSE


def unpack_sparse(name: str, text: str) -> onnx.SparseTensorProto | None:
    """Return the sparse tensor packed in a string attribute of this name, or None."""
    if name not in (f"{_PACKED_PREFIX}sparse_value", _PACKED_INITIALIZER):
        return None
    tensor = onnx.SparseTensorProto()
    tensor.ParseFromString(base64.b64decode(text))
    return tensor


def to_model_proto(model: ir.Model) -> onnx.ModelProto:
    """Return the ModelProto of an onnx_ir model, with packed parts restored."""
    proto = ir.to_proto(model)
    unpack_unsupported(proto)
    return proto


def list_attribute(n: ir.Node, name: str) -> onnx.AttributeProto | None:
    """Return an attribute of a node outside ai.onnx, packed or not; None if absent.

    Its entries are in `floats`, `ints` or `strings`, without a Python object for each.
    """
    packed = n.attributes.get(_PACKED_LIST_PREFIX + name)
    out = onnx.AttributeProto()
    if packed is not None:
        out.ParseFromString(base64.b64decode(packed.as_string()))
        return out
    found = n.attributes.get(name)
    if found is None:
        return None
    out.CopyFrom(ir.to_proto(found))
    return out


def _pack_initializers(graph: onnx.GraphProto) -> None:
    inputs = {v.name for v in graph.input}
    kept = [t for t in graph.sparse_initializer if t.values.name in inputs]
    moved = [t for t in graph.sparse_initializer if t.values.name not in inputs]
    nodes = []
    for t in moved:
        n = onnx.NodeProto(op_type="Constant", output=[t.values.name])
        packed = base64.b64encode(t.SerializeToString())
        n.attribute.add(name=_PACKED_INITIALIZER, type=_STRING, s=packed)
        nodes.append(n)
    if nodes:
        nodes += graph.node
        del graph.node[:], graph.sparse_initializer[:]
        graph.node.extend(nodes)
        graph.sparse_initializer.extend(kept)


def _unpack_initializers(graph: onnx.GraphProto) -> None:
    for n in [n for n in graph.node if any(a.name == _PACKED_INITIALIZER for a in n.attribute)]:
        t = graph.sparse_initializer.add()
        t.ParseFromString(base64.b64decode(n.attribute[0].s))
        t.values.name = n.output[0]
        graph.node.remove(n)


def _value_types(model: onnx.ModelProto) -> Iterator[onnx.TypeProto]:
    """Yield the types of values in the graph, its functions and subgraphs."""
    for place in all_bodies(model):
        infos = list(place.body.value_info)
        if isinstance(place.body, onnx.GraphProto):
            infos += [*place.body.input, *place.body.output]
        yield from (info.type for info in infos)


def _has_map_type(kind: onnx.TypeProto) -> bool:
    while True:
        match kind.WhichOneof("value"):
            case "map_type":
                return True
            case "sequence_type":
                kind = kind.sequence_type.elem_type
            case "optional_type":
                kind = kind.optional_type.elem_type
            case _:
                return False
