"""Write the nodes and constants of one graph as ONNX, under planned names."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as oir

from superopt.ir import graph as g
from superopt.ir.op import Attr, InferError, canonical_attrs
from superopt.onnx_io.capture import (
    captured,
    clone_node,
    inner_names,
    like_node,
    rename_inner,
    subgraphs,
)
from superopt.onnx_io.model import Origin, payload
from superopt.onnx_io.older import Older, older
from superopt.onnx_io.operands import array_of, element_type, forms
from superopt.onnx_io.order import Circular, ordered
from superopt.onnx_io.schema import Formal, Schema, Unsayable, attribute, is_default, schema
from superopt.onnx_io.sizes import Runtime
from superopt.onnx_io.tensors import renamed, tensor_from
from superopt.onnx_io.types import onnx_dtype
from superopt.te.dtype import I64, DType

INPUTS_TOO = 4  # before this IR version an initializer has to be an input as well


class ExportError(ValueError):
    """The graph has a node that this opset cannot express."""


@dataclass(frozen=True, slots=True)
class Target:
    """What an exported model has beside its graph.

    origins, replaced_origins: the file's node of each node, and of each node that replaces another
    one (only name and documentation are kept). initializer_names, value_info_names: names of the
    file's initializers, and of values in its value_info. The rest is as in `Model`.
    """

    opset: int
    ir_version: int
    names: Mapping[g.Value, str] = field(default_factory=dict)
    origins: Mapping[g.Node, Origin] = field(default_factory=dict)
    doubles: Mapping[g.Node, Origin] = field(default_factory=dict)
    tensors: Mapping[g.Constant, oir.TensorProtocol] = field(default_factory=dict)
    literals: Mapping[g.Constant, Origin] = field(default_factory=dict)
    declared: Mapping[g.Value, oir.Value] = field(default_factory=dict)
    born: Mapping[str, g.Node] = field(default_factory=dict)
    initializers: frozenset[str] = frozenset()
    described: frozenset[str] = frozenset()


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


class Writer:
    """Writes one graph; single use. Afterwards `nodes`, `initializers` and `outputs` are its parts.

    inputs: the ONNX value of each graph input. outputs: name and type of each result.
    """

    def __init__(
        self,
        target: Target,
        graph: g.Graph,
        inputs: Mapping[g.Input, oir.Value],
        outputs: Sequence[oir.Value],
    ) -> None:
        self.nodes: list[oir.Node] = []
        self.initializers: list[oir.Value] = []
        self.outputs: list[oir.Value] = []
        self._target = target
        self._graph = graph
        self._made: dict[g.Value, oir.Value] = {}
        self._final: dict[g.Value, oir.Value] = {}  # what a value is called as an output
        self._numbers: dict[str, int] = {}
        self._node_numbers: dict[str, int] = {}
        self._node_names = {
            o.node.name for o in (*target.origins.values(), *target.literals.values())
        }
        self._input_names = {v.name or "" for v in inputs.values()}
        self._taken = {v.name for v in (*inputs.values(), *outputs) if v.name}
        self._runtime = Runtime(target.opset, self._emit, self._literal)
        known = (*target.doubles.items(), *target.origins.items())
        self._positions = {n: origin.position for n, origin in known}
        try:
            self._order = ordered(graph, target.born, self._positions)
        except Circular as e:
            raise ExportError(str(e)) from None
        self._read: set[g.Value] = {v for n in self._order for v in n.inputs if v is not None}
        self._read.update(graph.outputs)
        self._avoided = set(target.names.values())  # they may still be wanted
        for n in self._order:
            if n.op.opaque:
                self._avoided |= inner_names(payload(n))
        for i, made in inputs.items():
            self._made[i] = made
            self._runtime.available(i.type, made)
        for v, said in zip(graph.outputs, outputs, strict=True):
            own = self._made.get(v)
            if said.name in self._input_names and (own is None or own.name != said.name):
                raise ExportError(f"{said.name} is both an input and an output, of other values")
            if own is None:
                self._final.setdefault(v, said)
        self._write(outputs)

    def _write(self, outputs: Sequence[oir.Value]) -> None:
        literals = deque(sorted(self._literals(), key=lambda row: row[0]))
        for n in self._order:
            while literals and literals[0][0] < self._positions.get(n, -1):
                self._value(literals.popleft()[1])
            node = self._opaque(n) if n.op.opaque else self._plain(n)
            self.nodes.append(node)
            for v, out in zip(g.results(n), node.outputs, strict=False):
                if out.name:
                    self._made[v] = out
                    self._runtime.available(v.type, out)
        self.outputs = [
            self._output(v, said) for v, said in zip(self._graph.outputs, outputs, strict=True)
        ]
        before = {*self._input_names, *(v.name or "" for v in self.initializers)}
        for node in self.nodes:
            if next(subgraphs(node), None) is not None:
                rename_inner(node, before, self._taken)
            before.update(v.name for v in node.outputs if v.name)

    def _literals(self) -> Iterator[tuple[int, g.Constant]]:
        """Yield the used constants that are Constant nodes in the file, with their positions."""
        read = set(self._read)
        for n in self._order:
            origin = self._target.origins.get(n)
            if origin is not None and origin.verbatim and not n.op.opaque:
                read.update(origin.bound.values())
        for c, origin in self._target.literals.items():
            if c in read:
                yield origin.position, c

    # --- names and values -------------------------------------------------------------------------

    def _name(self, base: str) -> str:
        """Return a value name that neither the output nor the file uses."""
        name, n = base, self._numbers.get(base, 0)
        while name in self._taken or name in self._avoided:
            n += 1
            name = f"{base}_{n}"
        self._numbers[base] = n
        self._taken.add(name)
        return name

    def _node_name(self, base: str) -> str:
        """Return a unique node name."""
        name, n = base, self._node_numbers.get(base, 0)
        while name in self._node_names:
            n += 1
            name = f"{base}_{n}"
        self._node_numbers[base] = n
        self._node_names.add(name)
        return name

    def _result(self, v: g.Value, base: str) -> oir.Value:
        """Return the ONNX value that a node will produce for `v`."""
        said = self._final.get(v)
        if said is not None:
            return copy_value(said)
        wanted = self._target.names.get(v)
        if wanted is None or wanted in self._taken:
            return oir.Value(name=self._name(base))
        self._taken.add(wanted)
        declared = self._target.declared.get(v)
        return oir.Value(name=wanted) if declared is None else copy_value(declared, wanted)

    def _value(self, v: g.Value) -> oir.Value:
        made = self._made.get(v)
        if made is None:
            if not isinstance(v, g.Constant):
                raise ExportError(f"{self._target.names.get(v, v)} is no value of the graph")
            made = self._constant(v, self._result(v, "weight"))
            self._made[v] = made
        return made

    def _constant(self, c: g.Constant, result: oir.Value) -> oir.Value:
        """Write a constant under the name of `result`, in the form that the file had."""
        name = result.name or ""
        literal = self._target.literals.get(c)
        if literal is not None:
            self.nodes.append(clone_node(literal.node, [], [result], {}, self._target.described))
            return result
        tensor = self._target.tensors.get(c) or tensor_from(c)
        if tensor.name != name:
            tensor = renamed(tensor, name)
        old = self._target.ir_version < INPUTS_TOO
        if old and name not in self._target.initializers:  # it would be one more input
            value = oir.AttrTensor("value", tensor)
            self.nodes.append(oir.Node("", "Constant", [], [value], outputs=[result], name=""))
            return result
        if c not in self._final and name not in self._target.described:  # it would become so
            result.type = result.shape = None
        result.const_value = tensor
        self.initializers.append(result)
        return result

    def _output(self, v: g.Value, said: oir.Value) -> oir.Value:
        """Return the output described by `said`; a second name for a value is an Identity."""
        made = self._value(v)
        if made.name == said.name:
            return made
        result = copy_value(said)
        if isinstance(v, g.Constant):
            return self._constant(v, result)
        name = self._node_name(f"{said.name}_identity")
        self.nodes.append(oir.Node("", "Identity", [made], outputs=[result], name=name))
        return result

    def _literal(self, array: np.ndarray, hint: str) -> oir.Value:
        """Return a constant with this content; equal constants are shared."""
        c = g.constant(array)
        made = self._made.get(c)
        if made is None:
            made = self._made[c] = self._constant(c, self._result(c, hint))
        return made

    def _emit(self, op_type: str, inputs: Sequence[oir.Value], **attrs: int) -> oir.Value:
        """Emit an ONNX node that computes a size."""
        base = op_type.lower()
        n = oir.Node(
            "",
            op_type,
            inputs,
            [oir.AttrInt64(k, v) for k, v in attrs.items()],
            outputs=[oir.Value(name=self._name(f"{base}_out"))],
            name=self._node_name(base),
        )
        self.nodes.append(n)
        return n.outputs[0]

    # --- nodes ------------------------------------------------------------------------------------

    def _opaque(self, n: g.Node) -> oir.Node:
        theirs = payload(n)
        own = len(theirs.inputs)
        read = [None if v is None else self._value(v) for v in n.inputs]
        outer = {a: b for a, b in zip(captured(theirs), read[own:], strict=True) if b is not None}
        outputs = [
            self._result(v, theirs.op_type.lower()) if said.name else oir.Value(name="")
            for v, said in zip(g.results(n), theirs.outputs, strict=True)
        ]
        return clone_node(theirs, read[:own], outputs, outer, self._target.described)

    def _plain(self, n: g.Node) -> oir.Node:
        op = n.op
        s = schema(op.name, self._target.opset, op.domain or "") if op.domain is not None else None
        how = None if s is None else older(op, s.since)
        if s is None or how is None:
            raise ExportError(f"{op.name} is not in opset {self._target.opset}")
        origin = self._target.origins.get(n)
        try:
            if origin is not None and origin.verbatim:
                inputs = self._inputs(n, s, how, lambda formal: self._again(origin, formal))
                attributes = list(origin.node.attributes.values())
            else:
                values = forms(n, self._target.opset)
                inputs = self._inputs(n, s, how, lambda formal: self._operand(n, formal, values))
                attributes = self._attributes(n, s, how, values)
        except (Unsayable, InferError) as e:
            raise ExportError(f"{op.name}: {e}") from None
        said = origin or self._target.doubles.get(n)
        outputs = self._results(n, s, said)
        if said is not None:
            return like_node(said.node, op.name, inputs, attributes, outputs)
        name = self._node_name(op.name.lower())
        return oir.Node(op.domain or "", op.name, inputs, attributes, outputs=outputs, name=name)

    def _results(self, n: g.Node, s: Schema, said: Origin | None) -> list[oir.Value]:
        """Return a value for each result that is used or was named; others are omitted if
        possible."""
        values = g.results(n)
        named = [bool(v.name) for v in said.node.outputs] if said is not None else []
        wanted = [
            v in self._read
            or (i < len(named) and named[i])
            or i < s.min_outputs
            or (n.op.name == "Split" and said is None)
            for i, v in enumerate(values)
        ]
        count = max((i + 1 for i, w in enumerate(wanted) if w), default=1)
        return [
            self._result(v, f"{n.op.title.lower()}_out")
            if w or not _optional(s, i)
            else oir.Value(name="")
            for i, (v, w) in enumerate(zip(values[:count], wanted, strict=False))
        ]

    def _inputs(
        self, n: g.Node, s: Schema, how: Older, bound: Callable[[Formal], oir.Value | None]
    ) -> list[oir.Value | None]:
        """Return the operands in ONNX's order; `bound` gives those that are attributes of ours."""
        rest = list(n.inputs)
        if how.operands:
            was = how.operands.values()
            rest = [v for name, v in zip(n.op.inputs, rest, strict=False) if name not in was]
        out: list[oir.Value | None] = []
        for formal in s.operands:
            if formal.variadic:
                out += [None if v is None else self._value(v) for v in rest]
                rest = []
            elif formal.name in n.op.attrs:
                out.append(bound(formal))
            elif rest:
                v = rest.pop(0)
                out.append(None if v is None else self._value(v))
            else:
                out.append(None)
        if rest:
            raise Unsayable(f"{len(n.inputs)} operands, and opset {self._target.opset} has fewer")
        while out and out[-1] is None:
            out.pop()
        return out

    def _again(self, origin: Origin, formal: Formal) -> oir.Value | None:
        """Return the file's constant for an operand that is an attribute of ours."""
        found = origin.bound.get(formal.name)
        return None if found is None else self._value(found)

    def _operand(self, n: g.Node, formal: Formal, values: Mapping[str, Attr]) -> oir.Value | None:
        """Return an attribute of ours as an operand, computed at run time if it is symbolic."""
        value = values[formal.name]
        if value is None:
            return None
        dtype = element_type(n, formal)
        array = array_of(value, dtype)
        if array is not None:
            return self._literal(array, formal.name)
        size = self._runtime.tensor(value)  # type: ignore[arg-type]
        return size if dtype == I64 else self._emit("Cast", [size], to=int(onnx_dtype(dtype)))

    def _attributes(
        self, n: g.Node, s: Schema, how: Older, values: Mapping[str, Attr]
    ) -> list[oir.Attr]:
        """Return the attributes that differ from ONNX's defaults.

        Raises NotExpressible for one that this opset does not have, unless it is implied.
        """
        kind = values.get("dtype")
        like = kind if isinstance(kind, DType) else None
        out = [
            attribute(key, value, s.attributes[key].kind, like)
            for key, value in values.items()
            if key in s.attributes
            and value is not None
            and not is_default(key, n.op.name, value, s.attributes[key])
        ]
        for key, name in how.operands.items():
            v = dict(zip(n.op.inputs, n.inputs, strict=False)).get(name)
            if isinstance(v, g.Constant) and (number := v.load()).size == 1:
                out.append(attribute(key, float(number.item()), s.attributes[key].kind, None))
            elif v is not None:
                raise Unsayable(f"{key} is computed, and a number in opset {self._target.opset}")
        operands = {formal.name for formal in s.operands}
        unsaid = [k for k in values if k not in s.attributes and k not in operands]
        unsaid = [k for k in unsaid if k not in how.attrs or how.attrs[k] != values[k]]
        if n.op.name in ("Range", "ConstantOfShape"):
            unsaid = [k for k in unsaid if k != "dtype"]  # the operands or `value` say it
        if unsaid:
            types = tuple(None if v is None else v.type for v in n.inputs)
            said = {k: v for k, v in n.attrs if k not in unsaid}
            if canonical_attrs(n.op, types, said) != n.attrs:
                shown = ", ".join(f"{k}={dict(n.attrs)[k]}" for k in unsaid)
                raise Unsayable(f"{shown} has no form in opset {self._target.opset}")
        return out


def _optional(s: Schema, index: int) -> bool:
    return index < len(s.optional) and s.optional[index]
