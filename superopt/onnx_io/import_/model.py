"""An imported model: a graph, and everything that ONNX keeps beside a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as oir

from superopt.ir import graph as ir_graph
from superopt.onnx_io.read.source import Source

NO_EXPRESSION = "no tensor expression"  # what is said of an operator that nobody knows


@dataclass(frozen=True, slots=True)
class Origin:
    """The file's node that a node of the graph was imported from.

    bound_operands: by name, the operands that became attributes (the shape of a Reshape). position:
    the node's position in the file.
    """

    node: oir.Node
    bound_operands: Mapping[str, ir_graph.Value]
    position: int

    @property
    def is_verbatim(self) -> bool:
        """True if the attributes can be written unchanged: no bound operand is computed."""
        return all(isinstance(v, ir_graph.Constant) for v in self.bound_operands.values())


@dataclass(frozen=True, slots=True)
class Expansion:
    """A node of the file that the graph represents by several nodes.

    carrier: the opaque node on the same operands, which is exported in their place. results: the
    values of its results in the graph. nodes: the nodes that compute them.
    """

    carrier: ir_graph.Node
    results: tuple[ir_graph.Value, ...]
    nodes: tuple[ir_graph.Node, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """A graph and everything that ONNX keeps beside it, so that export restores it.

    opset: of the default domain. names: name of each value. origins: the file's node of each node.
    tensors: the ONNX tensor of each constant. constant_nodes: the Constant node of each constant
    that is not an initializer. input_defaults: inputs with a default value. declared_values: the
    file's declaration of each value. opaque_reasons: (name, reason) of each opaque node.
    size_bindings: for each symbolic size the (input, axis) that binds it. size_producers: for each
    data-dependent size the opaque node that produces it. symbols: the file's name of each symbolic
    size to ours. expansions: the expanded nodes, in the file's order.
    """

    source: Source
    graph: ir_graph.Graph
    opset: int
    names: Mapping[ir_graph.Value, str]
    origins: Mapping[ir_graph.Node, Origin]
    tensors: Mapping[ir_graph.Constant, oir.TensorProtocol]
    constant_nodes: Mapping[ir_graph.Constant, Origin]
    input_defaults: Mapping[ir_graph.Input, oir.Value]
    declared_values: Mapping[ir_graph.Value, oir.Value]
    opaque_reasons: tuple[tuple[str, str], ...]
    size_bindings: Mapping[str, tuple[str, int]]
    size_producers: Mapping[str, ir_graph.Node]
    symbols: Mapping[str, str]
    expansions: tuple[Expansion, ...] = ()

    def expansion_units(self) -> dict[ir_graph.Node, frozenset[ir_graph.Node]]:
        """Map each node of an expansion to the set of nodes that represent the same node of the
        file."""
        out: dict[ir_graph.Node, frozenset[ir_graph.Node]] = {}
        for e in self.expansions:
            whole = frozenset(e.nodes).union(*(out.get(n, frozenset()) for n in e.nodes))
            out |= dict.fromkeys(whole, whole)
        return out


def file_node(n: ir_graph.Node) -> oir.Node:
    """Return the file's node that an opaque node carries."""
    content = n.attrs[0][1].content  # type: ignore[union-attr]
    assert isinstance(content, oir.Node)
    return content


def opaque_reason(model: Model, n: ir_graph.Node, default: str) -> str:
    """Return why a node is opaque as recorded by the importer, if that is more than a missing
    operator; else `default`."""
    if not n.op.opaque or not n.attrs or not default.endswith(NO_EXPRESSION):
        return default
    said = dict(model.opaque_reasons).get(str(n.attrs[0][1]), NO_EXPRESSION)
    return default if NO_EXPRESSION in said else said
