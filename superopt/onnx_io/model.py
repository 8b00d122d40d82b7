"""A graph, and all that ONNX keeps beside a graph: what import gives and export takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as oir

from superopt.ir import graph as g
from superopt.onnx_io.source import Source

NONE = "no tensor expression"  # what is said of an operator that nobody knows


@dataclass(frozen=True, slots=True)
class Origin:
    """The node of the file that a node of the graph was read from.

    bound: what the operands are that we keep as attributes (the shape of a Reshape), by name;
    position: the node's place in the file's order.
    """

    node: oir.Node
    bound: Mapping[str, g.Value]
    position: int

    @property
    def verbatim(self) -> bool:
        """Can its attributes be written as they were: is no operand among them computed?"""
        return all(isinstance(v, g.Constant) for v in self.bound.values())


@dataclass(frozen=True, slots=True)
class Expansion:
    """A node of the file that the graph has as several nodes.

    carrier: the node as an opaque one, on the same operands, which is written in their place;
    results: the values that the graph has for its results; nodes: all that compute them.
    """

    carrier: g.Node
    results: tuple[g.Value, ...]
    nodes: tuple[g.Node, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """A graph and everything that ONNX keeps beside it, so that export restores it.

    opset: of the default domain; names: the name of each value; origins: the file's node of each
    node; tensors: the ONNX tensor behind each constant; literals: the Constant node of each
    constant that is no initializer; overridable: inputs with a default value; declared: what the
    file says of each value; opaque: for nodes without tensor expression, (name, why); sizes:
    symbolic size to the (input, axis) where a caller binds it; born: symbolic size to the opaque
    node whose results alone tell it; symbols: the file's name of each symbolic size to ours;
    expansions: the file's nodes that the graph has as several, in the file's order.
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
        """The nodes that stand for one of the file's, each with all of these."""
        out: dict[g.Node, frozenset[g.Node]] = {}
        for e in self.expansions:
            whole = frozenset(e.nodes).union(*(out.get(n, frozenset()) for n in e.nodes))
            out |= dict.fromkeys(whole, whole)
        return out


def payload(n: g.Node) -> oir.Node:
    """The node of the file that an opaque node carries."""
    content = n.attrs[0][1].content  # type: ignore[union-attr]
    assert isinstance(content, oir.Node)
    return content


def why_opaque(model: Model, n: g.Node, why: str) -> str:
    """What was said of an opaque node when it was read, where that is more than that there is no
    such operator; else `why`."""
    if not n.op.opaque or not n.attrs or not why.endswith(NONE):
        return why
    said = dict(model.opaque).get(str(n.attrs[0][1]), NONE)
    return why if NONE in said else said
