"""Write the nodes and constants of one graph as ONNX, under planned names."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as oir

from superopt.ir import graph as ir_graph
from superopt.ir.op import Attr, InferError
from superopt.onnx_io.export.node_attributes import node_attributes
from superopt.onnx_io.export.node_order import CircularSizes, write_order
from superopt.onnx_io.export.operand_forms import attribute_forms, constant_array, operand_dtype
from superopt.onnx_io.export.runtime_sizes import SizeEmitter
from superopt.onnx_io.import_.constants import rename_tensor, tensor_from_constant
from superopt.onnx_io.import_.dtypes import onnx_dtype
from superopt.onnx_io.import_.model import Origin, file_node
from superopt.onnx_io.import_.older_opsets import OlderForm, older_form
from superopt.onnx_io.import_.schema import FormalOperand, NotExpressible, Schema, schema
from superopt.onnx_io.import_.subgraphs import (
    captured_values,
    clone_node,
    node_like,
    rename_subgraph_values,
    subgraph_names,
    subgraphs,
)
from superopt.te.expr.dtype import I64

STANDALONE_INITIALIZERS_SINCE_IR_VERSION = (
    4  # before this IR version an initializer has to be an input as well
)


class ExportError(ValueError):
    """The graph has a node that this opset cannot express."""


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """What an exported model has beside its graph.

    origins, replaced_origins: the file's node of each node, and of each node that replaces another
    one (only name and documentation are kept). initializer_names, value_info_names: names of the
    file's initializers, and of values in its value_info. constant_bases: the name of a constant
    without a name, to which a number is added if it is taken. The rest is as in `Model`.
    """

    opset: int
    ir_version: int
    names: Mapping[ir_graph.Value, str] = field(default_factory=dict)
    origins: Mapping[ir_graph.Node, Origin] = field(default_factory=dict)
    replaced_origins: Mapping[ir_graph.Node, Origin] = field(default_factory=dict)
    tensors: Mapping[ir_graph.Constant, oir.TensorProtocol] = field(default_factory=dict)
    constant_nodes: Mapping[ir_graph.Constant, Origin] = field(default_factory=dict)
    declared_values: Mapping[ir_graph.Value, oir.Value] = field(default_factory=dict)
    size_producers: Mapping[str, ir_graph.Node] = field(default_factory=dict)
    initializer_names: frozenset[str] = frozenset()
    value_info_names: frozenset[str] = frozenset()
    constant_bases: Mapping[ir_graph.Constant, str] = field(default_factory=dict)


def copy_value(v: oir.Value, name: str | None = None) -> oir.Value:
    """Return a copy of `v` with its type, shape, documentation and annotations."""
    made = oir.Value(
        name=v.name if name is None else name,
        type=v.type,
        shape=None if v.shape is None else v.shape.copy(),
        doc_string=v.doc_string,
        metadata_props=dict(v.metadata_props),
    )
    made.meta.update(v.meta)
    return made


class GraphWriter:
    """Writes one graph; single use. Afterwards `nodes`, `initializers` and `outputs` are its parts.

    inputs: the ONNX value of each graph input. outputs: name and type of each result.
    """

    def __init__(
        self,
        target: ExportTarget,
        graph: ir_graph.Graph,
        inputs: Mapping[ir_graph.Input, oir.Value],
        outputs: Sequence[oir.Value],
    ) -> None:
        self.nodes: list[oir.Node] = []
        self.initializers: list[oir.Value] = []
        self.outputs: list[oir.Value] = []
        self._target = target
        self._graph = graph
        self._written: dict[ir_graph.Value, oir.Value] = {}
        self._output_values: dict[
            ir_graph.Value, oir.Value
        ] = {}  # what a value is called as an output
        self._name_counts: dict[str, int] = {}
        self._node_name_counts: dict[str, int] = {}
        self._node_names = {
            o.node.name for o in (*target.origins.values(), *target.constant_nodes.values())
        }
        self._input_names = {v.name or "" for v in inputs.values()}
        self._used_names = {v.name for v in (*inputs.values(), *outputs) if v.name}
        self._sizes = SizeEmitter(target.opset, self._emit_node, self._shared_constant)
        known = (*target.replaced_origins.items(), *target.origins.items())
        self._positions = {n: origin.position for n, origin in known}
        try:
            self._order = write_order(graph, target.size_producers, self._positions)
        except CircularSizes as e:
            raise ExportError(str(e)) from None
        self._used_values: set[ir_graph.Value] = {
            v for n in self._order for v in n.inputs if v is not None
        }
        self._used_values.update(graph.outputs)
        self._reserved_names = set(target.names.values())  # they may still be wanted
        for n in self._order:
            if n.op.opaque:
                self._reserved_names |= subgraph_names(file_node(n))
        for i, made in inputs.items():
            self._written[i] = made
            self._sizes.add_source(i.type, made)
        for v, said in zip(graph.outputs, outputs, strict=True):
            own = self._written.get(v)
            if said.name in self._input_names and (own is None or own.name != said.name):
                raise ExportError(f"{said.name} is both an input and an output, of other values")
            if own is None:
                self._output_values.setdefault(v, said)
        self._write(outputs)

    def _write(self, outputs: Sequence[oir.Value]) -> None:
        literals = deque(sorted(self._constant_nodes(), key=lambda row: row[0]))
        for n in self._order:
            while literals and literals[0][0] < self._positions.get(n, -1):
                self._written_value(literals.popleft()[1])
            node = self._opaque_node(n) if n.op.opaque else self._operator_node(n)
            self.nodes.append(node)
            for v, out in zip(ir_graph.results(n), node.outputs, strict=False):
                if out.name:
                    self._written[v] = out
                    self._sizes.add_source(v.type, out)
        self.outputs = [
            self._write_output(v, said)
            for v, said in zip(self._graph.outputs, outputs, strict=True)
        ]
        before = {*self._input_names, *(v.name or "" for v in self.initializers)}
        for node in self.nodes:
            if next(subgraphs(node), None) is not None:
                rename_subgraph_values(node, before, self._used_names)
            before.update(v.name for v in node.outputs if v.name)

    def _constant_nodes(self) -> Iterator[tuple[int, ir_graph.Constant]]:
        """Yield the used constants that are Constant nodes in the file, with their positions."""
        read = set(self._used_values)
        for n in self._order:
            origin = self._target.origins.get(n)
            if origin is not None and origin.is_verbatim and not n.op.opaque:
                read.update(origin.bound_operands.values())
        for c, origin in self._target.constant_nodes.items():
            if c in read:
                yield origin.position, c

    # --- names and values -------------------------------------------------------------------------

    def _unique_name(self, base: str) -> str:
        """Return a value name that neither the output nor the file uses."""
        name, n = base, self._name_counts.get(base, 0)
        while name in self._used_names or name in self._reserved_names:
            n += 1
            name = f"{base}_{n}"
        self._name_counts[base] = n
        self._used_names.add(name)
        return name

    def _unique_node_name(self, base: str) -> str:
        """Return a unique node name."""
        name, n = base, self._node_name_counts.get(base, 0)
        while name in self._node_names:
            n += 1
            name = f"{base}_{n}"
        self._node_name_counts[base] = n
        self._node_names.add(name)
        return name

    def value_name(self, v: ir_graph.Value) -> str:
        """Return the name of a written value; empty if it was not written."""
        made = self._written.get(v)
        return "" if made is None else made.name or ""

    def _result_value(self, v: ir_graph.Value, base: str) -> oir.Value:
        """Return the ONNX value that a node will produce for `v`."""
        said = self._output_values.get(v)
        if said is not None:
            return copy_value(said)
        wanted = self._target.names.get(v)
        if wanted is None or wanted in self._used_names:
            return oir.Value(name=self._unique_name(base))
        self._used_names.add(wanted)
        declared = self._target.declared_values.get(v)
        return oir.Value(name=wanted) if declared is None else copy_value(declared, wanted)

    def _written_value(self, v: ir_graph.Value) -> oir.Value:
        made = self._written.get(v)
        if made is None:
            if not isinstance(v, ir_graph.Constant):
                raise ExportError(f"{self._target.names.get(v, v)} is not a value of the graph")
            base = self._target.constant_bases.get(v, "weight")
            made = self._write_constant(v, self._result_value(v, base))
            self._written[v] = made
        return made

    def _write_constant(self, c: ir_graph.Constant, result: oir.Value) -> oir.Value:
        """Write a constant under the name of `result`, in the form that the file had."""
        name = result.name or ""
        literal = self._target.constant_nodes.get(c)
        if literal is not None:
            self.nodes.append(
                clone_node(literal.node, [], [result], {}, self._target.value_info_names)
            )
            return result
        tensor = self._target.tensors.get(c) or tensor_from_constant(c)
        if tensor.name != name:
            tensor = rename_tensor(tensor, name)
        old = self._target.ir_version < STANDALONE_INITIALIZERS_SINCE_IR_VERSION
        if old and name not in self._target.initializer_names:  # it would be one more input
            value = oir.AttrTensor("value", tensor)
            self.nodes.append(oir.Node("", "Constant", [], [value], outputs=[result], name=""))
            return result
        if (
            c not in self._output_values and name not in self._target.value_info_names
        ):  # it would become so
            result.type = result.shape = None
        result.const_value = tensor
        self.initializers.append(result)
        return result

    def _write_output(self, v: ir_graph.Value, said: oir.Value) -> oir.Value:
        """Return the output described by `said`; a second name for a value is an Identity."""
        made = self._written_value(v)
        if made.name == said.name:
            return made
        result = copy_value(said)
        if isinstance(v, ir_graph.Constant):
            return self._write_constant(v, result)
        name = self._unique_node_name(f"{said.name}_identity")
        self.nodes.append(oir.Node("", "Identity", [made], outputs=[result], name=name))
        return result

    def _shared_constant(self, array: np.ndarray, hint: str) -> oir.Value:
        """Return a constant with this content; equal constants are shared."""
        c = ir_graph.constant(array)
        made = self._written.get(c)
        if made is None:
            made = self._written[c] = self._write_constant(c, self._result_value(c, hint))
        return made

    def _emit_node(self, op_type: str, inputs: Sequence[oir.Value], **attrs: int) -> oir.Value:
        """Emit an ONNX node that computes a size."""
        base = op_type.lower()
        n = oir.Node(
            "",
            op_type,
            inputs,
            [oir.AttrInt64(k, v) for k, v in attrs.items()],
            outputs=[oir.Value(name=self._unique_name(f"{base}_out"))],
            name=self._unique_node_name(base),
        )
        self.nodes.append(n)
        return n.outputs[0]

    # --- nodes ------------------------------------------------------------------------------------

    def _opaque_node(self, n: ir_graph.Node) -> oir.Node:
        theirs = file_node(n)
        own = len(theirs.inputs)
        read = [None if v is None else self._written_value(v) for v in n.inputs]
        outer = {
            a: b for a, b in zip(captured_values(theirs), read[own:], strict=True) if b is not None
        }
        outputs = [
            self._result_value(v, theirs.op_type.lower()) if said.name else oir.Value(name="")
            for v, said in zip(ir_graph.results(n), theirs.outputs, strict=True)
        ]
        return clone_node(theirs, read[:own], outputs, outer, self._target.value_info_names)

    def _operator_node(self, n: ir_graph.Node) -> oir.Node:
        op = n.op
        s = schema(op.name, self._target.opset, op.domain or "") if op.domain is not None else None
        how = None if s is None else older_form(op, s.since)
        if s is None or how is None:
            raise ExportError(f"{op.name} is not in opset {self._target.opset}")
        origin = self._target.origins.get(n)
        try:
            if origin is not None and origin.is_verbatim:
                inputs = self._operand_values(
                    n, s, how, lambda formal: self._file_operand(origin, formal)
                )
                attributes = list(origin.node.attributes.values())
            else:
                values = attribute_forms(n, self._target.opset)
                inputs = self._operand_values(
                    n, s, how, lambda formal: self._attribute_operand(n, formal, values)
                )
                attributes = node_attributes(n, s, how, values, self._target.opset)
        except (NotExpressible, InferError) as e:
            raise ExportError(f"{op.name}: {e}") from None
        said = origin or self._target.replaced_origins.get(n)
        outputs = self._result_values(n, s, said)
        if said is not None:
            return node_like(said.node, op.name, inputs, attributes, outputs)
        name = self._unique_node_name(op.name.lower())
        return oir.Node(op.domain or "", op.name, inputs, attributes, outputs=outputs, name=name)

    def _result_values(self, n: ir_graph.Node, s: Schema, said: Origin | None) -> list[oir.Value]:
        """Return a value for each result that is used or was named; others are omitted if
        possible."""
        values = ir_graph.results(n)
        named = [bool(v.name) for v in said.node.outputs] if said is not None else []
        wanted = [
            v in self._used_values
            or (i < len(named) and named[i])
            or i < s.min_outputs
            or (n.op.name == "Split" and said is None)
            for i, v in enumerate(values)
        ]
        count = max((i + 1 for i, w in enumerate(wanted) if w), default=1)
        return [
            self._result_value(v, f"{n.op.title.lower()}_out")
            if w or not _is_optional_result(s, i)
            else oir.Value(name="")
            for i, (v, w) in enumerate(zip(values[:count], wanted, strict=False))
        ]

    def _operand_values(
        self,
        n: ir_graph.Node,
        s: Schema,
        old_form: OlderForm,
        bound: Callable[[FormalOperand], oir.Value | None],
    ) -> list[oir.Value | None]:
        """Return the operands in ONNX's order; `bound` gives those that are attributes of ours."""
        rest = list(n.inputs)
        if old_form.attribute_operands:
            was = old_form.attribute_operands.values()
            rest = [v for name, v in zip(n.op.inputs, rest, strict=False) if name not in was]
        out: list[oir.Value | None] = []
        for formal in s.operands:
            if formal.variadic:
                out += [None if v is None else self._written_value(v) for v in rest]
                rest = []
            elif formal.name in n.op.attrs:
                out.append(bound(formal))
            elif rest:
                v = rest.pop(0)
                out.append(None if v is None else self._written_value(v))
            else:
                out.append(None)
        if rest:
            raise NotExpressible(
                f"{len(n.inputs)} operands, and opset {self._target.opset} has fewer"
            )
        while out and out[-1] is None:
            out.pop()
        return out

    def _file_operand(self, origin: Origin, formal: FormalOperand) -> oir.Value | None:
        """Return the file's constant for an operand that is an attribute of ours."""
        found = origin.bound_operands.get(formal.name)
        return None if found is None else self._written_value(found)

    def _attribute_operand(
        self, n: ir_graph.Node, formal: FormalOperand, values: Mapping[str, Attr]
    ) -> oir.Value | None:
        """Return an attribute of ours as an operand, computed at run time if it is symbolic."""
        value = values[formal.name]
        if value is None:
            if formal.optional:
                return None
            value = ()  # Resize's before opset 13: an empty tensor is none
        dtype = operand_dtype(n, formal)
        array = constant_array(value, dtype)
        if array is not None:
            return self._shared_constant(array, formal.name)
        size = self._sizes.size_tensor(value)  # type: ignore[arg-type]
        return size if dtype == I64 else self._emit_node("Cast", [size], to=int(onnx_dtype(dtype)))


def _is_optional_result(s: Schema, index: int) -> bool:
    return index < len(s.optional) and s.optional[index]
