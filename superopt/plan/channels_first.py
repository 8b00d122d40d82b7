"""Convert channels-last regions between convolutions to channels first.

Models from channels-last frameworks (tf2onnx) have a Transpose before and after each convolution,
and operators between two convolutions use another layout than both. A Transpose to channels last is
moved behind its readers until it meets an inverse Transpose. A group of operators is converted if
this removes more Transposes than it inserts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from superopt.ir import graph as g
from superopt.ir.op import Attr
from superopt.ops import OPS

Order = tuple[int, ...]  # for each axis of a value, its axis in the converted value
ALONG = frozenset(("Softmax", "LogSoftmax", "Hardmax", "Concat", "Split"))  # operators on one axis
REDUCED = frozenset((
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Moved:
    """A node that is computed on permuted operands: its attributes, and the permutation of its
    result."""

    attrs: Mapping[str, Attr]
    order: Order


@dataclass(slots=True)
class _Groups:
    """Union-find of nodes that are converted together or not at all, by a representative node."""

    of: dict[g.Node, g.Node] = field(default_factory=dict)

    def first(self, n: g.Node) -> g.Node:
        while (up := self.of.setdefault(n, n)) is not n:
            self.of[n] = self.of[up]
            n = up
        return n

    def join(self, some: Sequence[g.Node]) -> None:
        for n in some[1:]:
            self.of[self.first(n)] = self.first(some[0])


def channels_first(graph: g.Graph) -> g.Graph:
    moved, groups = _moves(graph)
    if not moved:
        return graph
    fewer: dict[g.Node, int] = {}
    for n in moved:
        at = groups.first(n)
        fewer[at] = fewer.get(at, 0) + (n.op.name == "Transpose")
    for _, at in {(v, groups.first(by)) for v, by in _turned(graph, moved)}:
        fewer[at] -= 1
    kept = {n: m for n, m in moved.items() if fewer[groups.first(n)] > 0}
    return _built(graph, kept) if kept else graph


def _moves(graph: g.Graph) -> tuple[dict[g.Node, Moved], _Groups]:
    """Return the nodes that can be computed on permuted operands."""
    moved: dict[g.Node, Moved] = {}
    groups = _Groups()
    for n in g.nodes(graph):
        if n.op.domain or n.op.opaque:
            continue
        by = [p for v in n.inputs if v is not None and (p := g.producer(v)) in moved and p]
        found = _starts(n) if not by else _through(n, moved)
        if found is not None:
            moved[n] = found
            groups.join([n, *by])
    return moved, groups


def _starts(n: g.Node) -> Moved | None:
    """Return the permutation of a Transpose to channels last; else None."""
    rank = len(n.types[0].shape or ())
    last = (0, *range(2, rank), 1)
    return Moved({}, last) if n.op.name == "Transpose" and rank > 2 and _perm(n) == last else None


def _perm(n: g.Node) -> Order:
    perm = n.attr("perm")
    assert isinstance(perm, tuple)
    return perm  # type: ignore[return-value]


def _order(v: g.Value | None, moved: Mapping[g.Node, Moved]) -> Order | None:
    p = None if v is None else g.producer(v)
    found = None if p is None else moved.get(p)
    return None if found is None else found.order


def _through(n: g.Node, moved: Mapping[g.Node, Moved]) -> Moved | None:
    """Return how the node is computed on permuted operands; None where it cannot be."""
    orders = {o for v in n.inputs if (o := _order(v, moved)) is not None}
    if len(orders) > 1:
        return None
    (order,) = orders
    name, attrs = n.op.name, dict(n.attrs)
    first = _order(n.inputs[0] if n.inputs else None, moved) is not None
    whole = all(len(t.shape or ()) == len(order) for t in n.types)
    if name == "Transpose":
        return Moved({}, tuple(order[a] for a in _perm(n)))
    if ("elementwise" in n.op.laws or name == "Concat") and whole:
        scalars = name != "Concat"
        if all(_fits(v, order, moved, scalars) for v in n.inputs):
            axis = {"axis": order[attrs["axis"]]} if name == "Concat" else {}  # type: ignore[index]
            return Moved(attrs | axis, order)
        return None
    if not first or any(v is not None and not _one(v) for v in n.inputs[1:]):
        return None
    if name in ALONG:
        return Moved(attrs | {"axis": order[attrs["axis"]]}, order)  # type: ignore[index]
    if name in REDUCED and (attrs["axes"] or attrs["keepdims"]):
        axes = _axes(attrs, order)
        kept = order if attrs["keepdims"] else _without(order, attrs["axes"])  # type: ignore[arg-type]
        return Moved(attrs | {"axes": axes}, kept)
    if name == "Squeeze":
        return Moved({"axes": _axes(attrs, order)}, _without(order, attrs["axes"]))  # type: ignore[arg-type]
    if name == "Unsqueeze":
        return _widened(attrs["axes"], order)  # type: ignore[arg-type]
    if name == "Slice":
        return Moved(attrs | {"axes": _axes(attrs, order)}, order)
    if name == "Pad":
        return Moved(attrs | {"pads": _pads(attrs["pads"], order)}, order)  # type: ignore[arg-type]
    return None


def _axes(attrs: Mapping[str, Attr], order: Order) -> tuple[int, ...]:
    return tuple(order[a] for a in attrs["axes"])  # type: ignore[index, union-attr]


def _pads(pads: Sequence[Attr], order: Order) -> tuple[Attr, ...]:
    rank = len(order)
    where = [order.index(a) for a in range(rank)]
    return (*(pads[w] for w in where), *(pads[rank + w] for w in where))


def _without(order: Order, axes: Collection[int]) -> Order:
    """Return the permutation of the remaining axes."""
    rest = [o for a, o in enumerate(order) if a not in axes]
    return tuple(sorted(rest).index(o) for o in rest)


def _widened(axes: Sequence[int], order: Order) -> Moved:
    """Return the node with axes inserted, each before the axis that it precedes in the original
    order."""
    out = list(order)
    new: list[int] = []
    for a in axes:
        at = out[a] if a < len(out) else len(out)
        out = [k + (k >= at) for k in out]
        new = [*(k + (k >= at) for k in new), at]
        out.insert(a, at)
    return Moved({"axes": tuple(new)}, tuple(out))


def _fits(v: g.Value | None, order: Order, moved: Mapping[g.Node, Moved], scalars: bool) -> bool:
    """True if the value is available in this permutation. scalars: also by broadcasting."""
    if v is None or _order(v, moved) is not None:
        return True
    shape = v.type.shape
    return shape is not None and (len(shape) == len(order) or (scalars and len(shape) < len(order)))


def _one(v: g.Value) -> bool:
    return all(d == 1 for d in v.type.shape or ())


def _turned(graph: g.Graph, moved: Mapping[g.Node, Moved]) -> set[tuple[g.Value, g.Node]]:
    """Return the values that need a Transpose: those needed in their original order, and the other
    operands of converted nodes; each with a node of its group."""
    out: set[tuple[g.Value, g.Node]] = set()
    wanted = set(graph.outputs)
    for n in g.nodes(graph):
        if n not in moved:
            wanted |= {v for v in n.inputs if v is not None}
        elif n.op.name != "Transpose":
            some = [v for v in n.inputs if v is not None and _order(v, moved) is None]
            out |= {(v, n) for v in some if not (isinstance(v, g.Constant) or _one(v))}
    for v in wanted:
        p, order = g.producer(v), _order(v, moved)
        if p is not None and order is not None and order != tuple(sorted(order)):
            out.add((v, p))
    return out


def _built(graph: g.Graph, moved: Mapping[g.Node, Moved]) -> g.Graph:
    made: dict[g.Value, g.Value] = {i: i for i in graph.inputs}

    def own(v: g.Value) -> g.Value:
        """Return the value in its original order."""
        new, order = made.get(v, v), _order(v, moved)
        if order is None or order == tuple(sorted(order)):
            return new
        return g.node(OPS["Transpose"], [new], perm=order)

    for n in g.nodes(graph):
        if n not in moved:
            inputs = tuple(None if v is None else own(v) for v in n.inputs)
            new = n if inputs == n.inputs else g.intern_node(n.op, inputs, n.attrs, n.types)
            made |= {g.item(n, k): g.item(new, k) for k in range(len(n.types))}
        elif n.op.name == "Transpose":
            assert n.inputs[0] is not None
            made[n] = made.get(n.inputs[0], n.inputs[0])
        else:
            order = next(o for v in n.inputs if (o := _order(v, moved)) is not None)
            given = [_given(v, order, made, moved) for v in n.inputs]
            new = g.node(n.op, given, **moved[n].attrs)
            made |= {g.item(n, k): g.item(new, k) for k in range(len(n.types))}
    return g.Graph(graph.inputs, tuple(own(v) for v in graph.outputs))


def _given(
    v: g.Value | None,
    order: Order,
    made: Mapping[g.Value, g.Value],
    moved: Mapping[g.Node, Moved],
) -> g.Value | None:
    """Return an operand in this permutation."""
    if v is None:
        return None
    new = made.get(v, v)
    if _order(v, moved) is not None or _one(v):
        return new
    ones = len(order) - len(v.type.shape or ())
    wide = g.node(OPS["Unsqueeze"], [new], axes=tuple(range(ones))) if ones else new
    back = tuple(order.index(a) for a in range(len(order)))
    return g.node(OPS["Transpose"], [wide], perm=back)
