"""The part of a graph whose kernels may differ after a rewrite, with stand-ins for the rest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from superopt.cost.graph_cost import GraphIndex, Replacement
from superopt.ir import graph as ir_graph
from superopt.ir.stand_ins import constant_stand_in, numbered_input
from superopt.ir.substitute import replace_all

MARK = "p"  # of the stand-ins here, which replace those of pieces
MAX_NEIGHBORS = 32  # nodes beyond those that the rewrite removes
MAX_FUSED_STEPS = 4  # fused nodes that are followed from a rewritten one

IsConstant = Callable[[ir_graph.Node], bool]


def is_fused(n: ir_graph.Node) -> bool:
    """True if a compiler may compute `n` within the kernel of another node."""
    laws = n.op.laws
    return "elementwise" in laws or "data" in laws or n.op.name == "BatchNormalization"


def find_neighborhood(r: Replacement, is_constant: IsConstant) -> list[ir_graph.Node]:
    """Return the nodes of the graph whose kernels may differ after a rewrite, in order: those that
    it removes, those next to added or removed ones, and on from there through fused nodes."""

    def makers(values: Iterable[ir_graph.Value | None]) -> Iterable[ir_graph.Node]:
        for v in values:
            p = None if v is None else ir_graph.producer(v)
            if p is not None and p in r.ctx.position:
                yield p

    def readers(values: Iterable[ir_graph.Value]) -> Iterable[ir_graph.Node]:
        return (u for v in values for u in r.ctx.users.get(v, ()))

    found = dict.fromkeys(r.removed)
    edge = dict.fromkeys(readers(r.change))
    read = [v for n in (*r.added, *r.removed) for v in n.inputs]
    for p in makers((*r.change, *r.change.values(), *read)):
        edge[p] = None
        if is_fused(p):  # one more reader or less decides whether it is
            edge.update(dict.fromkeys(readers(ir_graph.results(p))))
    limit = len(found) + MAX_NEIGHBORS
    for _ in range(MAX_FUSED_STEPS):
        new = [n for n in edge if n not in found and not n.op.opaque and not is_constant(n)]
        if not new or len(found) + len(new) > limit:
            break
        found.update(dict.fromkeys(new))
        fused = [n for n in new if is_fused(n)]
        edge = dict.fromkeys(p for n in fused for p in makers(n.inputs))
        edge.update(dict.fromkeys(readers(v for n in fused for v in ir_graph.results(n))))
    some = (n for n in found if not n.op.opaque and not is_constant(n))
    return sorted(some, key=r.ctx.position.__getitem__)


def outer_values(ctx: GraphIndex, nodes: Sequence[ir_graph.Node]) -> tuple[ir_graph.Value, ...]:
    """Return the results of these nodes that are outputs of the graph or that others read."""
    inside = set(nodes)
    return tuple(
        r
        for n in nodes
        for r in ir_graph.results(n)
        if r in ctx.outputs or any(u not in inside for u in ctx.users.get(r, ()))
    )


def with_stand_ins(
    outputs: Sequence[Sequence[ir_graph.Value]],
    kept: Collection[ir_graph.Node],
    members: Collection[ir_graph.Node],
    is_constant: IsConstant,
) -> list[ir_graph.Graph]:
    """Return a graph of each of these outputs, of nodes that are kept or are no members. The same
    stand-ins take the place of what they read, and of values computed from constants."""
    roots = [v for some in outputs for v in some]
    stand: dict[ir_graph.Value, ir_graph.Value] = {}
    inputs: list[ir_graph.Input] = []
    done: set[ir_graph.Node] = set()
    stack = [p for v in reversed(roots) if (p := ir_graph.producer(v)) is not None]
    while stack:
        n = stack.pop()
        if n in done:
            continue
        done.add(n)
        for v in n.inputs:
            if v is None or v in stand:
                continue
            p = ir_graph.producer(v)
            if isinstance(v, ir_graph.Constant) or (p is not None and is_constant(p)):
                made = constant_stand_in(v, len(stand), MARK)
                if made is not v:
                    stand[v] = made
                elif p is not None:
                    stack.append(p)
            elif p is not None and (p in kept or p not in members):
                stack.append(p)
            else:
                stand[v] = numbered_input(len(stand), v.type, MARK)
                inputs.append(stand[v])  # type: ignore[arg-type]
    given = tuple(inputs)
    replaced = iter(replace_all(ir_graph.Graph((), tuple(roots)), stand).outputs)
    return [ir_graph.Graph(given, tuple(next(replaced) for _ in some)) for some in outputs]
