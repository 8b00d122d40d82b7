"""An imported model: a graph, and everything that ONNX keeps beside a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as oir

from superopt.ir import graph as g
from superopt.onnx_io.source import Source

NONE = "no tensor expression"  # what is said of an operator that nobody knows


@dataclass(frozen=True, slots=True)
class Origin:
    """The file's node that a node of the graph was imported from.

    bound_operands: by name, the operands that became attributes (the shape of a Reshape). position:
    the node's position in the file.
    """

    node: oir.Node
    bound: Mapping[str, g.Value]
    position: int

    @property
    def verbatim(self) -> bool:
        """True if the attributes can be written unchanged: no bound operand is computed."""
        return all(isinstance(v, g.Constant) for v in self.bound.values())


@dataclass(frozen=True, slots=True)
class Expansion:
    """A node of the file that the graph represents by several nodes.

    carrier: the opaque node on the same operands, which is exported in their place. results: the
    values of its results in the graph. nodes: the nodes that compute them.
    """

    carrier: g.Node
    results: tuple[g.Value, ...]
    nodes: tuple[g.Node, ...]


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
    graph: g.Graph
    opset: int
    names: Mapping[g.Value, str]
    origins: Mapping[g.Node, Origin]
    tensors: Mapping[g.Constant, oir.TensorProtocol]
    literals: Mapping[g.Constant, Origin]
    overridable: Mapping[g.Input, oir.Value]
    declared: Mapping[g.Value, oir.Value]
    opaque: tuple[tuple[str, str], ...]
    sizes: Mapping[str, tuple[str, int]]
    born: Mapping[str, g.Node]
    symbols: Mapping[str, str]
    expansions: tuple[Expansion, ...] = ()

    def units(self) -> dict[g.Node, frozenset[g.Node]]:
        """Map each node of an expansion to the set of nodes that represent the same node of the
        file."""
        out: dict[g.Node, frozenset[g.Node]] = {}
        for e in self.expansions:
            whole = frozenset(e.nodes).union(*(out.get(n, frozenset()) for n in e.nodes))
            out |= dict.fromkeys(whole, whole)
        return out


def payload(n: g.Node) -> oir.Node:
    """Return the file's node that an opaque node carries."""
    content = n.attrs[0][1].content  # type: ignore[union-attr]
    assert isinstance(content, oir.Node)
    return content


def why_opaque(model: Model, n: g.Node, why: str) -> str:
    """Return why a node is opaque as recorded by the importer, if that is more than a missing
    operator; else `default`."""
    if not n.op.opaque or not n.attrs or not why.endswith(NONE):
        return why
    said = dict(model.opaque).get(str(n.attrs[0][1]), NONE)
    return why if NONE in said else said
