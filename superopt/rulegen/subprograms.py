"""The subprograms of a model whose mutants are enumerated: up to three windows or products, and the
linear operators between them.

They are cut at non-linear operators: single ones; those that read the same tensor or kernel; those
of different tensors of the same shape; those that are concatenated or added directly after; the
parts of a Split before them; and two of which one reads the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant
from superopt.ir.op import InferError
from superopt.ops import OPS
from superopt.partial.enumerate.hints import PRODUCT_OPS
from superopt.partial.enumerate.program import Program
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

MAX_PRODUCTS = 3  # products of a subprogram
MAX_COMBINATIONS = 12  # subprograms of products that read one tensor
MAX_PAIR_DISTANCE = 4  # distance in products, of those that share no operand
ACTIVATION_NAMES, WEIGHT_NAMES = ("x", "y", "z", "x1", "y1", "z1"), "klmnpqrstuv"
LINEAR_OPS = ("Mul", "Add", "Identity", "Dropout")  # between two products, with constants
MOVE_OPS = ("Reshape", "Transpose")
OPS_WITH_BIAS = ("Conv", "Gemm")  # operators that add a third operand


def find_subprograms(graph: ir_graph.Graph) -> list[Program]:
    """Return each distinct subprogram once."""
    found: dict[str, Program] = {}
    for p in _all_subprograms(_Model(graph)):
        try:
            _ = p.joined_output
        except InferError:
            continue
        found.setdefault(p.key, p)
    return list(found.values())


@dataclass(slots=True)
class _Model:
    graph: ir_graph.Graph
    users: dict[ir_graph.Value, list[ir_graph.Node]] = field(init=False)
    products: list[ir_graph.Node] = field(init=False)
    constant_memo: dict[ir_graph.Node, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.users = ir_graph.users(self.graph)
        self.products = [n for n in ir_graph.nodes(self.graph) if self.is_product(n)]

    def is_known(self, v: ir_graph.Value | None) -> bool:
        return v is not None and is_constant(v, self.constant_memo)

    def is_product(self, n: ir_graph.Node) -> bool:
        """True if it multiplies an activation by constants, or two computed matrices."""
        if n.op.name not in PRODUCT_OPS or n.op.domain or self.is_known(n.inputs[0]):
            return False
        types = [v.type for v in n.inputs if v is not None]
        if not all(map(_is_static_float32, (*types, n.type))):
            return False
        if n.op.name == "MatMul":
            return min(len(t.shape or ()) for t in types) > 1
        return all(map(self.is_known, n.inputs[1:])) and (n.op.name != "Gemm" or _is_plain_gemm(n))

    def only_user(self, v: ir_graph.Value) -> ir_graph.Node | None:
        """Return the only node that reads a value; None if there are several, or it is an
        output."""
        some = self.users.get(v, [])
        return some[0] if len(some) == 1 and v not in self.graph.outputs else None


def _is_static_float32(t: TensorType) -> bool:
    return t.dtype == F32 and bool(t.shape) and all(isinstance(d, int) and d for d in t.shape or ())


def _is_plain_gemm(n: ir_graph.Node) -> bool:
    """True if a Gemm is a plain product, at most with a bias for each column."""
    bias = n.inputs[2] if len(n.inputs) > 2 else None
    fine = (n.attr("alpha"), n.attr("beta"), n.attr("transA")) == (1, 1, 0)
    return fine and (bias is None or bias.type.shape == (n.type.shape or ())[1:])


def _all_subprograms(m: _Model) -> Iterator[Program]:
    for n in m.products:
        yield from _make_programs(m, [n], [n])
    reading: dict[ir_graph.Value | None, list[ir_graph.Node]] = defaultdict(list)
    kernels: dict[ir_graph.Value | None, list[ir_graph.Node]] = defaultdict(list)
    for n in m.products:
        reading[n.inputs[0]].append(n)
        kernels[n.inputs[1]].append(n)
    for some in (*reading.values(), *kernels.values()):
        for several in _combinations(some):
            yield from _make_programs(m, [_last_move(m, n) for n in several], several)
    for k, a in enumerate(m.products):
        for b in m.products[k + 1 : k + 1 + MAX_PAIR_DISTANCE]:
            if _are_stackable(a, b) and not ir_graph.depends_on([b], [a]):
                yield from _make_programs(m, [a, b], [a, b])
    for n in ir_graph.nodes(m.graph):
        behind = [p for v in n.inputs if (p := _producer(v)) in m.products and p is not None]
        if n.op.name in ("Concat", "Add") and len(behind) == len(n.inputs) in range(
            2, MAX_PRODUCTS + 1
        ):
            yield from _make_programs(m, [n], [*behind, n])
    for n in m.products:
        for v in n.inputs[:2]:
            before, between = _producing_product(m, v)
            if before is not None:
                yield from _make_programs(m, [n], [before, *between, n])


def _combinations(nodes: Sequence[ir_graph.Node]) -> Iterator[tuple[ir_graph.Node, ...]]:
    made: Iterable[tuple[ir_graph.Node, ...]] = (
        some for count in range(MAX_PRODUCTS, 1, -1) for some in combinations(nodes, count)
    )
    for number, some in enumerate(made):
        if number >= MAX_COMBINATIONS:
            return
        if len({n.op for n in some}) == 1:
            yield some


def _are_stackable(a: ir_graph.Node, b: ir_graph.Node) -> bool:
    """True if two products use the same operator on different operands, of which one pair has the
    same shape."""
    if a.op != b.op or a.inputs[0] is b.inputs[0] or a.inputs[1] is b.inputs[1]:
        return False
    if len(a.type.shape or ()) != len(b.type.shape or ()):
        return False
    return any(_shape(x) == _shape(y) for x, y in zip(a.inputs[:2], b.inputs[:2], strict=True))


def _shape(v: ir_graph.Value | None) -> object:
    return None if v is None else v.type.shape


def _producer(v: ir_graph.Value | None) -> ir_graph.Node | None:
    return None if v is None else ir_graph.producer(v)


def _last_move(m: _Model, n: ir_graph.Node) -> ir_graph.Node:
    """Return a product, or the node that moves its elements if nothing else reads them."""
    while (
        (after := m.only_user(n)) is not None
        and after.op.name in MOVE_OPS
        and _is_static_float32(after.type)
    ):
        n = after
    return n


def _producing_product(
    m: _Model, operand: ir_graph.Value | None
) -> tuple[ir_graph.Node | None, list[ir_graph.Node]]:
    """Return the product that another one reads as this operand, and the linear operators between
    them."""
    between: list[ir_graph.Node] = []
    while (
        operand is not None
        and m.only_user(operand) is not None
        and (p := ir_graph.producer(operand)) is not None
    ):
        if p in m.products:
            return p, between
        if p.op.name not in LINEAR_OPS or not all(map(m.is_known, p.inputs[1:])):
            break
        between.append(p)
        operand = p.inputs[0]
    return None, between


def _make_programs(
    m: _Model, outputs: Sequence[ir_graph.Node], inner_nodes: Sequence[ir_graph.Node]
) -> Iterator[Program]:
    """Yield the program of these nodes, with the nodes that move elements between them and their
    results, and Splits before them; joined along each useful axis."""
    within = set(inner_nodes)
    for o in outputs:
        at: ir_graph.Node | None = o
        while at is not None and at not in within:
            within.add(at)
            at = _producer(at.inputs[0])
    before = [p for n in inner_nodes if (p := _producer(n.inputs[0])) is not None]
    split = {p for p in before if p.op.name == "Split"}
    if len(split) == 1 and sum(p in split for p in before) > 1:
        within |= split
    biased = [
        n for n in outputs if n.op.name in OPS_WITH_BIAS and n.inputs[2:] not in ((), (None,))
    ]
    if biased and len(biased) < len(outputs):
        return  # a joined output needs biases for all results or for none
    names = {False: iter(ACTIVATION_NAMES), True: iter(WEIGHT_NAMES)}
    made: dict[ir_graph.Value, ir_graph.Value] = {}
    known: list[str] = []
    for n in ir_graph.nodes(outputs):
        if n not in within:
            continue
        if n.op.opaque:
            return
        given: list[ir_graph.Value] = []
        for v in n.inputs[:2] if n in biased else n.inputs:
            if v is None:
                return
            if v not in made:
                name = next(names[m.is_known(v)], None)
                if name is None or not _is_static_float32(v.type):
                    return
                known += [name] if m.is_known(v) else []
                made[v] = ir_graph.Input(name, v.type)
            given.append(made[v])
        again = ir_graph.node(OPS[n.op.name], given, **dict(n.attrs))
        made.update(zip(ir_graph.results(n), ir_graph.results(again), strict=True))
    roots = tuple(made[n] for n in outputs)
    for axis in _join_axes(roots, biased):
        yield Program(roots, frozenset(known), axis, bool(biased))


def _join_axes(
    roots: Sequence[ir_graph.Value], nodes_with_bias: Sequence[ir_graph.Node]
) -> tuple[int, ...]:
    """Return the axes along which several results are joined: channels, or rows."""
    rank = len(roots[0].type.shape or ())
    if len(roots) == 1:
        return (0,)
    image = any(n.op.name == "Conv" for n in ir_graph.nodes(roots))
    read = {v for n in ir_graph.nodes(roots) for v in n.inputs[1:2]}
    if image:
        return (0,) if len(read) == 1 and not nodes_with_bias else (1,)
    if rank == 4:
        return (1,)  # attention heads
    image_inputs = {
        v for n in ir_graph.nodes(roots) if n.op.name in PRODUCT_OPS for v in n.inputs[:1]
    }
    return (rank - 1,) if len(image_inputs) == 1 else (0,)
