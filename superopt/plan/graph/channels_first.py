"""Convert channels-last regions between convolutions to channels first.

Models from channels-last frameworks (tf2onnx) have a Transpose before and after each convolution,
and operators between two convolutions use another layout than both. A Transpose to channels last is
moved behind its readers until it meets an inverse Transpose. A group of operators is converted if
this removes more Transposes than it inserts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from superopt.ir import graph as ir_graph
from superopt.ir.op import Attr
from superopt.ops import OPS

Order = tuple[int, ...]  # for each axis of a value, its axis in the converted value
AXIS_OPS = frozenset(
    ("Softmax", "LogSoftmax", "Hardmax", "Concat", "Split")
)  # operators on one axis
REDUCTION_OPS = frozenset((
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class PermutedNode:
    """A node that is computed on permuted operands: its attributes, and the permutation of its
    result."""

    attrs: Mapping[str, Attr]
    order: Order


@dataclass(slots=True)
class _Groups:
    """Union-find of nodes that are converted together or not at all, by a representative node."""

    parents: dict[ir_graph.Node, ir_graph.Node] = field(default_factory=dict)

    def find(self, n: ir_graph.Node) -> ir_graph.Node:
        while (up := self.parents.setdefault(n, n)) is not n:
            self.parents[n] = self.parents[up]
            n = up
        return n

    def union(self, nodes: Sequence[ir_graph.Node]) -> None:
        for n in nodes[1:]:
            self.parents[self.find(n)] = self.find(nodes[0])


def convert_to_channels_first(graph: ir_graph.Graph) -> ir_graph.Graph:
    moved, groups = _permutable_nodes(graph)
    if not moved:
        return graph
    fewer: dict[ir_graph.Node, int] = {}
    for n in moved:
        at = groups.find(n)
        fewer[at] = fewer.get(at, 0) + (n.op.name == "Transpose")
    for _, at in {(v, groups.find(by)) for v, by in _required_transposes(graph, moved)}:
        fewer[at] -= 1
    kept = {n: m for n, m in moved.items() if fewer[groups.find(n)] > 0}
    return _rebuild_graph(graph, kept) if kept else graph


def _permutable_nodes(graph: ir_graph.Graph) -> tuple[dict[ir_graph.Node, PermutedNode], _Groups]:
    """Return the nodes that can be computed on permuted operands."""
    moved: dict[ir_graph.Node, PermutedNode] = {}
    groups = _Groups()
    for n in ir_graph.nodes(graph):
        if n.op.domain or n.op.opaque:
            continue
        by = [p for v in n.inputs if v is not None and (p := ir_graph.producer(v)) in moved and p]
        found = _start_permutation(n) if not by else _propagate(n, moved)
        if found is not None:
            moved[n] = found
            groups.union([n, *by])
    return moved, groups


def _start_permutation(n: ir_graph.Node) -> PermutedNode | None:
    """Return the permutation of a Transpose to channels last; else None."""
    rank = len(n.types[0].shape or ())
    last = (0, *range(2, rank), 1)
    return (
        PermutedNode({}, last)
        if n.op.name == "Transpose" and rank > 2 and _permutation(n) == last
        else None
    )


def _permutation(n: ir_graph.Node) -> Order:
    perm = n.attr("perm")
    assert isinstance(perm, tuple)
    return perm  # type: ignore[return-value]


def _value_order(
    v: ir_graph.Value | None, moved: Mapping[ir_graph.Node, PermutedNode]
) -> Order | None:
    p = None if v is None else ir_graph.producer(v)
    found = None if p is None else moved.get(p)
    return None if found is None else found.order


def _propagate(
    n: ir_graph.Node, moved: Mapping[ir_graph.Node, PermutedNode]
) -> PermutedNode | None:
    """Return how the node is computed on permuted operands; None where it cannot be."""
    orders = {o for v in n.inputs if (o := _value_order(v, moved)) is not None}
    if len(orders) > 1:
        return None
    (order,) = orders
    name, attrs = n.op.name, dict(n.attrs)
    first = _value_order(n.inputs[0] if n.inputs else None, moved) is not None
    whole = all(len(t.shape or ()) == len(order) for t in n.types)
    if name == "Transpose":
        return PermutedNode({}, tuple(order[a] for a in _permutation(n)))
    if ("elementwise" in n.op.laws or name == "Concat") and whole:
        scalars = name != "Concat"
        if all(_can_permute(v, order, moved, scalars) for v in n.inputs):
            axis = {"axis": order[attrs["axis"]]} if name == "Concat" else {}  # type: ignore[index]
            return PermutedNode(attrs | axis, order)
        return None
    if not first or any(v is not None and not _is_single_element(v) for v in n.inputs[1:]):
        return None
    if name in AXIS_OPS:
        return PermutedNode(attrs | {"axis": order[attrs["axis"]]}, order)  # type: ignore[index]
    if name in REDUCTION_OPS and (attrs["axes"] or attrs["keepdims"]):
        axes = _map_axes(attrs, order)
        kept = order if attrs["keepdims"] else _drop_axes(order, attrs["axes"])  # type: ignore[arg-type]
        return PermutedNode(attrs | {"axes": axes}, kept)
    if name == "Squeeze":
        return PermutedNode({"axes": _map_axes(attrs, order)}, _drop_axes(order, attrs["axes"]))  # type: ignore[arg-type]
    if name == "Unsqueeze":
        return _insert_axes(attrs["axes"], order)  # type: ignore[arg-type]
    if name == "Slice":
        return PermutedNode(attrs | {"axes": _map_axes(attrs, order)}, order)
    if name == "Pad":
        return PermutedNode(attrs | {"pads": _map_pads(attrs["pads"], order)}, order)  # type: ignore[arg-type]
    return None


def _map_axes(attrs: Mapping[str, Attr], order: Order) -> tuple[int, ...]:
    return tuple(order[a] for a in attrs["axes"])  # type: ignore[index, union-attr]


def _map_pads(pads: Sequence[Attr], order: Order) -> tuple[Attr, ...]:
    rank = len(order)
    where = [order.index(a) for a in range(rank)]
    return (*(pads[w] for w in where), *(pads[rank + w] for w in where))


def _drop_axes(order: Order, axes: Collection[int]) -> Order:
    """Return the permutation of the remaining axes."""
    rest = [o for a, o in enumerate(order) if a not in axes]
    return tuple(sorted(rest).index(o) for o in rest)


def _insert_axes(axes: Sequence[int], order: Order) -> PermutedNode:
    """Return the node with axes inserted, each before the axis that it precedes in the original
    order."""
    out = list(order)
    new: list[int] = []
    for a in axes:
        at = out[a] if a < len(out) else len(out)
        out = [k + (k >= at) for k in out]
        new = [*(k + (k >= at) for k in new), at]
        out.insert(a, at)
    return PermutedNode({"axes": tuple(new)}, tuple(out))


def _can_permute(
    v: ir_graph.Value | None,
    order: Order,
    moved: Mapping[ir_graph.Node, PermutedNode],
    scalars: bool,
) -> bool:
    """True if the value is available in this permutation. scalars: also by broadcasting."""
    if v is None or _value_order(v, moved) is not None:
        return True
    shape = v.type.shape
    return shape is not None and (len(shape) == len(order) or (scalars and len(shape) < len(order)))


def _is_single_element(v: ir_graph.Value) -> bool:
    return all(d == 1 for d in v.type.shape or ())


def _required_transposes(
    graph: ir_graph.Graph, moved: Mapping[ir_graph.Node, PermutedNode]
) -> set[tuple[ir_graph.Value, ir_graph.Node]]:
    """Return the values that need a Transpose: those needed in their original order, and the other
    operands of converted nodes; each with a node of its group."""
    out: set[tuple[ir_graph.Value, ir_graph.Node]] = set()
    wanted = set(graph.outputs)
    for n in ir_graph.nodes(graph):
        if n not in moved:
            wanted |= {v for v in n.inputs if v is not None}
        elif n.op.name != "Transpose":
            some = [v for v in n.inputs if v is not None and _value_order(v, moved) is None]
            out |= {
                (v, n)
                for v in some
                if not (isinstance(v, ir_graph.Constant) or _is_single_element(v))
            }
    for v in wanted:
        p, order = ir_graph.producer(v), _value_order(v, moved)
        if p is not None and order is not None and order != tuple(sorted(order)):
            out.add((v, p))
    return out


def _rebuild_graph(
    graph: ir_graph.Graph, moved: Mapping[ir_graph.Node, PermutedNode]
) -> ir_graph.Graph:
    made: dict[ir_graph.Value, ir_graph.Value] = {i: i for i in graph.inputs}

    def own(v: ir_graph.Value) -> ir_graph.Value:
        """Return the value in its original order."""
        new, order = made.get(v, v), _value_order(v, moved)
        if order is None or order == tuple(sorted(order)):
            return new
        return ir_graph.node(OPS["Transpose"], [new], perm=order)

    for n in ir_graph.nodes(graph):
        if n not in moved:
            inputs = tuple(None if v is None else own(v) for v in n.inputs)
            new = n if inputs == n.inputs else ir_graph.intern_node(n.op, inputs, n.attrs, n.types)
            made |= {ir_graph.result(n, k): ir_graph.result(new, k) for k in range(len(n.types))}
        elif n.op.name == "Transpose":
            assert n.inputs[0] is not None
            made[n] = made.get(n.inputs[0], n.inputs[0])
        else:
            order = next(o for v in n.inputs if (o := _value_order(v, moved)) is not None)
            given = [_permuted_operand(v, order, made, moved) for v in n.inputs]
            new = ir_graph.node(n.op, given, **moved[n].attrs)
            made |= {ir_graph.result(n, k): ir_graph.result(new, k) for k in range(len(n.types))}
    return ir_graph.Graph(graph.inputs, tuple(own(v) for v in graph.outputs))


def _permuted_operand(
    v: ir_graph.Value | None,
    order: Order,
    new_values: Mapping[ir_graph.Value, ir_graph.Value],
    moved: Mapping[ir_graph.Node, PermutedNode],
) -> ir_graph.Value | None:
    """Return an operand in this permutation."""
    if v is None:
        return None
    new = new_values.get(v, v)
    if _value_order(v, moved) is not None or _is_single_element(v):
        return new
    ones = len(order) - len(v.type.shape or ())
    wide = ir_graph.node(OPS["Unsqueeze"], [new], axes=tuple(range(ones))) if ones else new
    back = tuple(order.index(a) for a in range(len(order)))
    return ir_graph.node(OPS["Transpose"], [wide], perm=back)
