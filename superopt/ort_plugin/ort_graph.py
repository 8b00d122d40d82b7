"""Models from onnxruntime's graphs (OrtGraph): what a provider sees of a model."""

from __future__ import annotations

from ctypes import addressof, c_char_p, c_int64, c_size_t, c_void_p, string_at
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from superopt.onnx_io.read.skeleton import MAX_INLINE_BYTES
from superopt.onnx_io.read.source import Source, read_parts
from superopt.ort_plugin import ort_table as slots
from superopt.ort_plugin.ort_table import Handle, OrtTable

# OrtOpAttrType
INT, INTS, FLOAT, FLOATS, STRING, STRINGS, GRAPH, TENSOR = range(1, 9)
OPAQUE_DOMAIN = "superopt.subgraph"  # of nodes that stay in onnxruntime


@dataclass(frozen=True, slots=True)
class GraphReader:
    """Reads a graph. api: onnxruntime's functions."""

    api: OrtTable

    def model(self, graph: Handle) -> tuple[Source, list[Handle]]:
        """Return the graph as a model with copies of its constant initializers, and its nodes in
        the model's order. A node with subgraphs has another domain: it is not described."""
        api = self.api
        handles = api.handles(slots.NODE_COUNT, slots.NODES, graph)
        nodes = [self._node(n) for n in handles]
        values = {
            self._name(v): v
            for n in handles
            for count, listed in (
                (slots.NODE_INPUT_COUNT, slots.NODE_INPUTS),
                (slots.NODE_OUTPUT_COUNT, slots.NODE_OUTPUTS),
            )
            for v in api.handles(count, listed, n)
            if v
        }
        inputs = api.handles(slots.INPUT_COUNT, slots.INPUTS, graph)
        outputs = api.handles(slots.OUTPUT_COUNT, slots.OUTPUTS, graph)
        constants = {
            self._name(v): v
            for v in api.handles(slots.INITIALIZER_COUNT, slots.INITIALIZERS, graph)
            if api.number(slots.IS_CONSTANT_INITIALIZER, v)
        }
        large: dict[str, bytes] = {}
        tensors = [self._initializer(name, v, large) for name, v in constants.items()]
        made = helper.make_graph(
            nodes, "graph",
            [self._value(v) for v in inputs if self._name(v) not in constants],
            [self._value(v) for v in outputs], tensors,
            value_info=[
                info for name, v in values.items()
                if name not in constants and (info := self._value(v)).HasField("type")
            ],
        )  # fmt: skip
        opsets = self._opsets(graph)
        opsets[OPAQUE_DOMAIN] = 1
        model = helper.make_model(
            made,
            ir_version=max(api.number(slots.IR_VERSION, graph, c_int64), 4),
            opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()],
        )
        return read_parts(model, large), handles

    def names(self, node: Handle, outputs: bool = False) -> list[str]:
        """Return the names of a node's inputs or outputs."""
        pair = (
            (slots.NODE_OUTPUT_COUNT, slots.NODE_OUTPUTS)
            if outputs
            else (slots.NODE_INPUT_COUNT, slots.NODE_INPUTS)
        )
        return [self._name(v) if v else "" for v in self.api.handles(*pair, node)]

    def _name(self, value: Handle) -> str:
        return self.api.text(slots.VALUE_NAME, value)

    def _opsets(self, graph: Handle) -> dict[str, int]:
        count = self.api.size(slots.OPSET_COUNT, graph)
        domains, versions = (c_char_p * max(count, 1))(), (c_int64 * max(count, 1))()
        self.api.call(
            slots.OPSETS, c_void_p(graph), c_void_p(addressof(domains)),
            c_void_p(addressof(versions)), c_size_t(count),
        )  # fmt: skip
        found = zip(domains[:count], versions[:count], strict=True)
        return {(d or b"").decode(): v for d, v in found if d not in (b"ai.onnx",)}

    def _node(self, node: Handle) -> onnx.NodeProto:
        api = self.api
        domain = api.text(slots.OPERATOR_DOMAIN, node)
        out = onnx.NodeProto(
            op_type=api.text(slots.OPERATOR_TYPE, node),
            domain="" if domain == "ai.onnx" else domain,
            name=api.text(slots.NODE_NAME, node),
            input=self.names(node),
            output=self.names(node, outputs=True),
        )
        if api.size(slots.SUBGRAPH_COUNT, node):
            out.domain = OPAQUE_DOMAIN
            return out
        for a in api.handles(slots.ATTRIBUTE_COUNT, slots.ATTRIBUTES, node):
            if a:
                out.attribute.append(self._attribute(a))
        return out

    def _attribute(self, handle: Handle) -> onnx.AttributeProto:
        api = self.api
        name, kind = (
            api.text(slots.ATTRIBUTE_NAME, handle),
            api.number(slots.ATTRIBUTE_TYPE, handle),
        )
        if kind == TENSOR:
            tensor = api.handle(slots.ATTRIBUTE_TENSOR, c_void_p(handle))
            try:
                value, content = self._tensor("", tensor)
                value.raw_data = content
                return helper.make_attribute(name, value)
            finally:
                api.release(slots.RELEASE_VALUE, tensor)
        data = api.attribute_bytes(handle, kind)
        match kind:
            case 1:
                return helper.make_attribute(name, int(np.frombuffer(data, np.int64)[0]))
            case 2:
                made = onnx.AttributeProto(name=name, type=onnx.AttributeProto.INTS)
                made.ints.extend(np.frombuffer(data, np.int64).tolist())
                return made
            case 3:
                return helper.make_attribute(name, float(np.frombuffer(data, np.float32)[0]))
            case 4:
                made = onnx.AttributeProto(name=name, type=onnx.AttributeProto.FLOATS)
                made.floats.extend(np.frombuffer(data, np.float32).tolist())
                return made
            case 5:
                return onnx.AttributeProto(name=name, type=onnx.AttributeProto.STRING, s=data)
            case 6:
                made = onnx.AttributeProto(name=name, type=onnx.AttributeProto.STRINGS)
                made.strings.extend(data.split(b"\0")[:-1])
                return made
        raise NotImplementedError(f"the attribute {name} has type {kind}")

    def _value(self, value: Handle) -> onnx.ValueInfoProto:
        """Return the declaration of a value; without a type if it is no tensor."""
        api, name = self.api, self._name(value)
        kind = api.handle(slots.VALUE_TYPE, c_void_p(value))
        if not kind:
            return onnx.ValueInfoProto(name=name)
        info = api.handle(slots.TENSOR_INFO_OF_TYPE, c_void_p(kind))
        if not info:
            return onnx.ValueInfoProto(name=name)
        rank = api.size(slots.DIMENSION_COUNT, info)
        dims, names = (c_int64 * max(rank, 1))(), (c_char_p * max(rank, 1))()
        for slot, out in ((slots.DIMENSIONS, dims), (slots.SYMBOLIC_DIMENSIONS, names)):
            api.call(slot, c_void_p(info), c_void_p(addressof(out)), c_size_t(rank))
        shape = [
            d if d >= 0 else (names[n] or b"").decode() or f"{name}_axis{n}"
            for n, d in enumerate(dims[:rank])
        ]
        element = api.number(slots.ELEMENT_TYPE, info)
        # Without axes it is a scalar, or its shape is unknown: its readers decide.
        return helper.make_tensor_value_info(name, element, shape or None)

    def _initializer(self, name: str, value: Handle, large: dict[str, bytes]) -> onnx.TensorProto:
        """Return an initializer; if it is large, without its data, which is added to `large`."""
        tensor = self.api.handle(slots.INITIALIZER_VALUE, c_void_p(value))
        made, data = self._tensor(name, tensor)
        if len(data) > MAX_INLINE_BYTES:
            large[name] = data
        else:
            made.raw_data = data
        return made

    def _tensor(self, name: str, value: Handle) -> tuple[onnx.TensorProto, bytes]:
        """Return a tensor's name, type and shape, and a copy of its data."""
        api = self.api
        info = api.handle(slots.SHAPE_OF_VALUE, c_void_p(value))
        try:
            rank = api.size(slots.DIMENSION_COUNT, info)
            dims = (c_int64 * max(rank, 1))()
            api.call(slots.DIMENSIONS, c_void_p(info), c_void_p(addressof(dims)), c_size_t(rank))
            kind = api.number(slots.ELEMENT_TYPE, info)
        finally:
            api.release(slots.RELEASE_SHAPE, info)
        if kind == onnx.TensorProto.STRING:
            raise NotImplementedError(f"{name} is a tensor of strings")
        at = api.handle(slots.TENSOR_DATA, c_void_p(value))
        data = string_at(at, api.size(slots.TENSOR_BYTES, value)) if at else b""
        return onnx.TensorProto(name=name, dims=dims[:rank], data_type=kind), data
