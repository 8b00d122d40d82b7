"""Graph to ONNX, in the opset, IR version and names of the model that it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as oir

from superopt.ir import graph as g
from superopt.ir.op import Attr, Op, canonical_attrs
from superopt.onnx_io.capture import captured, clone_node, inner_names
from superopt.onnx_io.importer import Model, NodeInfo
from superopt.onnx_io.schema import Schema, attribute, is_default, schema
from superopt.onnx_io.sizes import Runtime, as_operand, reshape_target
from superopt.onnx_io.types import onnx_dtype
from superopt.ops.slicing import onnx_bound
from superopt.te.dtype import to_numpy
from superopt.te.expr import TensorType
from superopt.te.node import Expr


class ExportError(ValueError):
    """The graph has a node that this opset cannot say."""


@dataclass(frozen=True, slots=True)
class Target:
    """What an exported model looks like beside its graph: everything but the nodes."""

    opset: int
    ir_version: int
    names: Mapping[g.Value, str] = field(default_factory=dict)
    info: Mapping[g.Node, NodeInfo] = field(default_factory=dict)
    tensors: Mapping[g.Constant, oir.TensorProtocol] = field(default_factory=dict)
    declared: Mapping[g.Value, oir.Value] = field(default_factory=dict)


def expressible(op: Op, opset: int) -> bool:
    """Can `op` be written in `opset` of its domain?"""
    if op.domain is None:
        return False
    s = schema(op.name, opset, op.domain)
    return s is not None and s.since >= op.since


def export_model(
    model: Model, graph: g.Graph | None = None, extra: Sequence[g.Value] = ()
) -> oir.Model:
    """`graph` (by default the model's own) as ONNX, with all that ONNX keeps beside a graph.

    `extra` values become outputs after the model's own, named `extra0`, `extra1`, ...
    Raises ExportError for an operator that the model's opset does not have.
    """
    theirs = model.source.model
    top = theirs.graph
    target = Target(
        model.opset, theirs.ir_version, model.names, model.info, model.tensors, model.declared
    )
    graph = graph or model.graph
    if extra:
        graph = g.Graph(graph.inputs, (*graph.outputs, *extra))
    writer = _Writer(target, graph)
    defaults: list[oir.Value] = []
    inputs: list[oir.Value] = []
    position = {i.name: i for i in graph.inputs}
    for v in top.inputs:
        if v.name not in position:
            continue  # IR 3 lists its initializers here: the writer adds those that are left
        copy = _copy_value(v)
        writer.bind(position[v.name], copy)
        inputs.append(copy)
        if v.name in top.initializers:
            copy.const_value = top.initializers[v.name].const_value
            defaults.append(copy)
    writer.run()
    more = [oir.Value(name=f"extra{n}", type=_type(v.type)) for n, v in enumerate(extra)]
    declared = [*(_copy_value(v) for v in top.outputs), *more]
    outputs = writer.outputs([v.name or "" for v in declared], declared)
    initializers = [*defaults, *writer.initializers]
    if theirs.ir_version < 4:
        inputs += writer.initializers
    new = oir.Graph(
        inputs,
        outputs,
        nodes=writer.nodes,
        initializers=initializers,
        opset_imports=dict(theirs.opset_imports),
        name=top.name,
        doc_string=top.doc_string,
        metadata_props=dict(top.metadata_props),
    )
    return oir.Model(
        new,
        ir_version=theirs.ir_version,
        producer_name=theirs.producer_name,
        producer_version=theirs.producer_version,
        domain=theirs.domain,
        model_version=theirs.model_version,
        doc_string=theirs.doc_string,
        functions=[f.clone() for f in theirs.functions.values()],
        metadata_props=dict(theirs.metadata_props),
    )


def export_plain(graph: g.Graph, *, opset: int, ir_version: int) -> oir.Model:
    """A graph without a model behind it (a node to be timed, an example) as ONNX."""
    writer = _Writer(Target(opset, ir_version), graph)
    inputs: list[oir.Value] = []
    for i in graph.inputs:
        v = oir.Value(name=i.name, type=_type(i.type), shape=_shape(i.type))
        writer.bind(i, v)
        inputs.append(v)
    writer.run()
    names = [f"y{n}" for n in range(len(graph.outputs))]
    made = [
        oir.Value(name=n, type=_type(v.type), shape=_shape(v.type))
        for n, v in zip(names, graph.outputs, strict=True)
    ]
    outputs = writer.outputs(names, made)
    new = oir.Graph(
        inputs,
        outputs,
        nodes=writer.nodes,
        initializers=writer.initializers,
        opset_imports={"": opset},
        name="superopt",
    )
    return oir.Model(new, ir_version=ir_version)


def _copy_value(v: oir.Value) -> oir.Value:
    return oir.Value(
        name=v.name,
        type=v.type,
        shape=None if v.shape is None else v.shape.copy(),
        doc_string=v.doc_string,
        metadata_props=dict(v.metadata_props),
    )


def _type(t: TensorType) -> oir.TensorType | None:
    return None if t.dtype is None else oir.TensorType(onnx_dtype(t.dtype))


def _shape(t: TensorType) -> oir.Shape | None:
    if t.shape is None:
        return None
    return oir.Shape([d if isinstance(d, int) else str(d) for d in t.shape])


class _Writer:
    """Writes the nodes of one graph, in order; single use."""

    def __init__(self, target: Target, graph: g.Graph) -> None:
        self.target = target
        self.graph = graph
        self.nodes: list[oir.Node] = []
        self.initializers: list[oir.Value] = []
        self._order = g.nodes(graph)
        self._made: dict[g.Value, oir.Value] = {}
        self._taken: set[str] = set()
        self._literals: dict[object, oir.Value] = {}
        self._count = 0
        self._runtime = Runtime(self.emit, self.literal)
        self._read: set[g.Value] = set(graph.outputs)
        for n in self._order:
            self._read.update(v for v in n.inputs if v is not None)
        for n in self._order:
            if n.op.opaque:
                self._taken |= inner_names(_payload(n))
        self._reserved = {target.names[v] for v in target.names}

    def bind(self, value: g.Value, as_: oir.Value) -> None:
        """`value` is `as_`, an input."""
        self._made[value] = as_
        self._taken.add(as_.name or "")
        self._runtime.available(value.type, as_)

    def run(self) -> None:
        """Write every node."""
        self._taken |= {self.target.names[v] for v in self.graph.outputs if v in self.target.names}
        for n in self._order:
            self._node(n)

    def outputs(self, names: list[str], declared: list[oir.Value]) -> list[oir.Value]:
        """The graph's outputs under their names; Identity where a value has another name."""
        out: list[oir.Value] = []
        done: set[oir.Value] = set()
        own = {v.name for v in self._made.values()}
        for value, name, like in zip(self.graph.outputs, names, declared, strict=True):
            made = self._value(value)
            produced = made.producer() is not None
            if produced and made.name == name and made not in done:
                made.type, made.shape, made.doc_string = like.type, like.shape, like.doc_string
                made.metadata_props.update(like.metadata_props)
                out.append(made)
                done.add(made)
            elif produced and made not in done and name not in own:
                made.name = name
                made.type, made.shape, made.doc_string = like.type, like.shape, like.doc_string
                made.metadata_props.update(like.metadata_props)
                out.append(made)
                done.add(made)
            elif (made in done and made.name == name) or (made.name == name and not produced):
                out.append(made)
            else:
                n = oir.Node("", "Identity", [made], num_outputs=1, name=self._name(f"{name}_copy"))
                v = n.outputs[0]
                v.name, v.type, v.shape, v.doc_string = name, like.type, like.shape, like.doc_string
                v.metadata_props.update(like.metadata_props)
                self.nodes.append(n)
                out.append(v)
                done.add(v)
        return out

    def emit(self, op_type: str, inputs: list[oir.Value], **attrs: Attr) -> oir.Value:
        """A node of ONNX's own that computes a shape."""
        made = [a for k, v in attrs.items() if (a := attribute(k, v)) is not None]
        n = oir.Node("", op_type, inputs, made, num_outputs=1, name=self._name(op_type.lower()))
        n.outputs[0].name = self._name(f"{op_type.lower()}_out")
        self.nodes.append(n)
        return n.outputs[0]

    def literal(self, array: np.ndarray, hint: str) -> oir.Value:
        """An initializer of this content, one for equal ones."""
        key = g.content_key(array)
        if key not in self._literals:
            tensor = oir.Tensor(array, name=self._name(hint))
            v = oir.Value(
                name=tensor.name,
                type=oir.TensorType(tensor.dtype),
                shape=oir.Shape(array.shape),
                const_value=tensor,
            )
            self.initializers.append(v)
            self._literals[key] = v
        return self._literals[key]

    def _name(self, base: str) -> str:
        name = base
        while name in self._taken or name in self._reserved:
            self._count += 1
            name = f"{base}_{self._count}"
        self._taken.add(name)
        return name

    def _value(self, v: g.Value) -> oir.Value:
        made = self._made.get(v)
        if made is not None:
            return made
        if not isinstance(v, g.Constant):
            raise ExportError(f"value {self.target.names.get(v, '?')} is no input of the graph")
        tensor = self.target.tensors.get(v)
        if tensor is None:
            array = v.load()
            assert v.type.dtype is not None
            if array.dtype != to_numpy(v.type.dtype) and array.dtype != object:
                raise ExportError(f"constant of {array.dtype} declared {v.type.dtype}")
            if array.dtype == object:
                tensor = oir.StringTensor(
                    [e if isinstance(e, bytes) else str(e).encode() for e in array.reshape(-1)],
                    shape=oir.Shape(array.shape),
                )
            else:
                tensor = oir.Tensor(array, dtype=onnx_dtype(v.type.dtype))
        wanted = self.target.names.get(v)
        name = wanted if wanted and wanted not in self._taken else self._name("weight")
        self._taken.add(name)
        if tensor.name != name:
            tensor = _renamed(tensor, name)
        made = oir.Value(
            name=name,
            type=oir.TensorType(tensor.dtype),
            shape=oir.Shape(tensor.shape),
            const_value=tensor,
        )
        self.initializers.append(made)
        self._made[v] = made
        return made

    def _node(self, n: g.Node) -> None:
        written = self._opaque(n) if n.op.opaque else self._plain(n)
        self.nodes.append(written)
        info = self.target.info.get(n)
        if info is not None:
            written.name = info.name or None
            written.doc_string = info.doc or None
            written.metadata_props.update(dict(info.props))
            self._taken.add(info.name)
        for i, v in enumerate(g.results(n)[: len(written.outputs)]):
            out = written.outputs[i]
            wanted = self.target.names.get(v)
            if n.op.opaque and not _payload(n).outputs[i].name:
                out.name = ""
                continue
            if wanted:  # unique by construction of the side table
                out.name = wanted
            else:
                out.name = self._name(n.op.name.lower())
            self._taken.add(out.name)
            self._made[v] = out
            declared = self.target.declared.get(v)
            if declared is not None and declared.type is not None:
                out.type = declared.type
                out.shape = None if declared.shape is None else declared.shape.copy()
            self._runtime.available(v.type, out)

    def _opaque(self, n: g.Node) -> oir.Node:
        payload = _payload(n)
        own = len(payload.inputs)
        outer = dict(
            zip(
                captured(payload),
                (self._value(v) for v in n.inputs[own:] if v is not None),
                strict=True,
            )
        )
        inputs = [None if v is None else self._value(v) for v in n.inputs[:own]]
        return clone_node(payload, inputs, outer)

    def _plain(self, n: g.Node) -> oir.Node:
        op = n.op
        s = schema(op.name, self.target.opset, op.domain or "") if op.domain is not None else None
        if s is None or s.since < op.since:
            raise ExportError(f"{op.name} is not in opset {self.target.opset}")
        values = dict(n.attrs)
        attributes: list[oir.Attr] = []
        for key, value in values.items():
            if key in s.attributes and not is_default(key, value, s):
                a = attribute(key, value)
                if a is not None:
                    attributes.append(a)
        inputs = self._inputs(n, s, values)
        if op.name in ("ConstantOfShape", "Range"):  # the values have this element type
            dtype = values.pop("dtype")
            if op.name == "ConstantOfShape":
                fill = np.array([values["value"]], to_numpy(dtype))  # type: ignore[arg-type]
                attributes = [oir.AttrTensor("value", oir.Tensor(fill, dtype=onnx_dtype(dtype)))]  # type: ignore[arg-type]
        unsaid = [
            k for k in values if k not in s.attributes and not any(f.name == k for f in s.operands)
        ]
        if unsaid:
            types = tuple(None if v is None else v.type for v in n.inputs)
            said = {k: v for k, v in n.attrs if k not in unsaid}
            if canonical_attrs(op, types, said) != n.attrs:
                shown = ", ".join(f"{k}={values[k]}" for k in unsaid)
                raise ExportError(f"{op.name}: {shown} has no form in opset {self.target.opset}")
        return oir.Node(
            op.domain or "",
            op.name,
            inputs,
            attributes,
            num_outputs=self._used_outputs(n, s),
            name=self._name(op.name.lower()) if n not in self.target.info else None,
        )

    def _used_outputs(self, n: g.Node, s: Schema) -> int:
        if len(n.types) == 1:
            return 1
        used = [i for i in range(len(n.types)) if g.item(n, i) in self._read]
        if n.op.name == "Split":
            return len(n.types)
        return max(max(used, default=0) + 1, s.min_outputs)

    def _inputs(self, n: g.Node, s: Schema, values: dict[str, Attr]) -> list[oir.Value | None]:
        rest = list(n.inputs)
        out: list[oir.Value | None] = []
        for formal in s.operands:
            if formal.variadic:
                out += [None if v is None else self._value(v) for v in rest]
                rest = []
            elif formal.name in n.op.attrs:
                out.append(self._operand(n, formal.name, values[formal.name]))
            elif rest:
                v = rest.pop(0)
                out.append(None if v is None else self._value(v))
            else:
                out.append(None)
        if rest:
            raise ExportError(
                f"{n.op.name} has {len(n.inputs)} operands, opset {self.target.opset} takes fewer"
            )
        while out and out[-1] is None:
            out.pop()
        return out

    def _operand(self, n: g.Node, key: str, value: Attr) -> oir.Value | None:
        if value is None:
            return None
        if n.op.name == "Reshape" and n.inputs[0] is not None:
            value = reshape_target(n.inputs[0].type.shape or (), value)  # type: ignore[arg-type]
        if n.op.name == "Slice" and key in ("starts", "ends") and n.inputs[0] is not None:
            shape, axes = n.inputs[0].type.shape or (), n.attr("axes")
            bounds = zip(value, axes, strict=True)  # type: ignore[arg-type]
            value = tuple(onnx_bound(v, shape[a]) for v, a in bounds)  # type: ignore[index, arg-type]
        ready = as_operand(value, n, key)
        if ready is not None:
            return self.literal(ready, key)
        assert isinstance(value, (tuple, Expr))
        return self._runtime.tensor(value)


def _payload(n: g.Node) -> oir.Node:
    content = n.attrs[0][1].content  # type: ignore[union-attr]
    assert isinstance(content, oir.Node)
    return content


def _renamed(t: oir.TensorProtocol, name: str) -> oir.TensorProtocol:
    """The same content under another name, still lazy."""
    if isinstance(t, oir.ExternalTensor):
        return oir.ExternalTensor(
            t.location, t.offset, t.length, t.dtype, shape=t.shape, name=name, base_dir=t.base_dir
        )
    renamed = oir.LazyTensor(lambda: t, dtype=t.dtype, shape=oir.Shape(t.shape), name=name)
    renamed.meta.update(t.meta)  # where its bytes lie in a file, so that they can be streamed
    return renamed
