"""Partition the nodes of a graph into segments that run as kernels and segments that fall back to
onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from superopt.cost.roofline import roofline_us
from superopt.cost.signature import signature
from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant
from superopt.ir.rounding_sensitive import rounding_sensitive_values
from superopt.ir.substitute import substitute_values
from superopt.kernels.loops.schedule import IllegalSchedule
from superopt.plan.graph.recurrent_layer import is_recurrent, unsupported_layer_reason
from superopt.plan.graph.scan_loop import is_scan_or_loop, loop_body, unsupported_loop_reason
from superopt.plan.graph.scatter_nodes import has_scatter_kernel
from superopt.te.analysis.bind_sizes import evaluate_shape
from superopt.te.expr import index
from superopt.te.expr.dtype import BF16, BOOL, F16, F32, F64, DType
from superopt.te.expr.node import Apply, Expr
from superopt.te.expr.tensor import TensorType

# The least cost of kernels between nodes in onnxruntime: two more calls, and arrays.
SWITCH_US = 20.0
TOO_SMALL_REASON = "it has too little work to leave the surrounding onnxruntime segment"
INTEGER_PRODUCT_REASON = "onnxruntime multiplies these integers faster"
# Errors for a node without a kernel: unsupported, too deep, empty tensors, no schedule.
NO_KERNEL_ERRORS = (NotImplementedError, RecursionError, ZeroDivisionError, IllegalSchedule)
# For each node, the nodes that together replace one node of the file.
Units = Mapping[ir_graph.Node, Collection[ir_graph.Node]]
NO_UNITS: Units = MappingProxyType({})
# Kinds of segments: in onnxruntime, as kernels, and as kernels of sizes that only a run gives.
FALLBACK, NATIVE, RUNTIME_SIZED, SEGMENT_KINDS = range(4)


@dataclass(frozen=True, slots=True)
class Segment:
    """Nodes that run consecutively, as kernels (`native`) or in onnxruntime. inputs: values
    computed elsewhere, and graph inputs. outputs: values that others need. sensitive_outputs: the
    indices of the outputs that the whole graph rounds because discontinuous operators depend on
    them (ir/rounding_sensitive.py)."""

    nodes: tuple[ir_graph.Node, ...]
    native: bool
    inputs: tuple[ir_graph.Value, ...]
    outputs: tuple[ir_graph.Value, ...]
    sensitive_outputs: tuple[int, ...] = ()


def supports_dtype(dtype: DType | None) -> bool:
    """True if kernels support this element type."""
    if dtype is None:
        return False
    return dtype in (F16, BF16, F32, F64, BOOL) or (dtype.is_int and dtype.bits >= 8)


def unsupported_reason(
    n: ir_graph.Node,
    sizes: Mapping[str, int],
    max_steps: int | None = None,
    symbolic_loops: bool = False,
) -> str:
    """Return why a node has no kernel; an empty string if it has one. max_steps: of a recurrent
    layer, for a target without loops. symbolic_loops: a recurrent layer, Scan or Loop may have
    symbolic sizes. For fixed sizes it may not: few steps are unrolled."""
    written = is_recurrent(n) or is_scan_or_loop(n)  # lowered to its steps
    written |= max_steps is None and has_scatter_kernel(n)
    why = _unsupported_steps_reason(n, sizes, max_steps, symbolic_loops) if written else ""
    if why:
        return why
    if n.op.opaque and not written:
        where = f" of {n.op.domain}" if n.op.domain else ""
        return f"{n.op.title}{where} has no tensor expression"
    # unused results have no type
    gives = (t for t in n.types if t.dtype is not None or not written)
    for t in (*(v.type for v in n.inputs if v is not None), *gives):
        if not supports_dtype(t.dtype):
            return f"no kernel supports {t.dtype or 'a value that is not a tensor'}"
        if not _has_known_shape(t, sizes):
            return f"a shape that is known only at run time: {t}"
    if any(_has_unknown_size(v, sizes) for _, v in n.attrs):
        return "an attribute that is known only at run time"
    if not n.op.opaque and _reads_out_of_range(n, sizes):
        return "no index can be in range"  # as in onnxruntime
    if not n.op.opaque and _is_cut_too_short(n, sizes):
        return "its operands do not broadcast"  # as in onnxruntime
    return ""


def _unsupported_steps_reason(
    n: ir_graph.Node, sizes: Mapping[str, int], max_steps: int | None, symbolic_loops: bool
) -> str:
    """Return why the steps of a recurrent layer, a Scan or a Loop have no kernels."""
    shapes = (v.type.shape or () for v in n.inputs if v is not None)
    symbols = frozenset[str]().union(*(index.symbols(d) for shape in shapes for d in shape))
    if not (is_recurrent(n) or is_scan_or_loop(n)):
        return ""
    if symbols and not symbolic_loops:
        return f"{n.op.name}: a shape that is known only at run time"
    if is_recurrent(n):
        return unsupported_layer_reason(n, max_steps)
    if max_steps is not None:
        return f"{n.op.name}: this target has no loops"
    if why := unsupported_loop_reason(n):
        return why
    for inner in ir_graph.nodes(loop_body(n)):
        # a size that the body alone knows may have the name of another one outside
        if why := unsupported_reason(inner, {k: sizes[k] for k in symbols & sizes.keys()}):
            return f"{n.op.name}: its body's {inner.op.name}: {why}"
    return ""


def _reads_out_of_range(n: ir_graph.Node, sizes: Mapping[str, int]) -> bool:
    """True if every index is out of range. A kernel would read beyond the tensor."""
    if n.op.name not in ("Gather", "GatherElements", "GatherND", "ScatterElements"):
        return False
    (x, indices), how = (evaluate_shape(v.type, sizes) for v in n.inputs[:2] if v), dict(n.attrs)
    if not prod(indices) or not prod(evaluate_shape(n.type, sizes)):
        return False
    if n.op.name == "GatherND":
        first = how["batch_dims"]
        assert isinstance(first, int)
        return not prod(x[first : first + indices[-1]])
    axis = how["axis"]
    assert isinstance(axis, int)
    beside = zip(indices, x, strict=True) if n.op.name != "Gather" else ()
    return not x[axis] or any(i > own for a, (i, own) in enumerate(beside) if a != axis)


def _is_cut_too_short(n: ir_graph.Node, sizes: Mapping[str, int]) -> bool:
    """True if an operand has min(n, c) elements along an axis of the result, which has n, and they
    differ: shape inference takes them to be equal (ops/shared/broadcasting.py, `broadcast`)."""
    for v in n.inputs:
        pairs = zip(
            reversed((v and v.type.shape) or ()), reversed(n.types[0].shape or ()), strict=False
        )
        for d, result in pairs:
            is_cut = isinstance(d, Apply) and d.fn == "min" and result in d.args
            if is_cut and index.evaluate(d, dict(sizes)) != index.evaluate(result, dict(sizes)):
                return True
    return False


def _has_known_shape(t: TensorType, sizes: Mapping[str, int]) -> bool:
    return t.shape is not None and all(index.symbols(d) <= sizes.keys() for d in t.shape)


def _has_unknown_size(v: object, sizes: Mapping[str, int]) -> bool:
    if isinstance(v, tuple):
        return any(_has_unknown_size(x, sizes) for x in v)
    return isinstance(v, Expr) and not index.symbols(v) <= sizes.keys()


def partition(
    graph: ir_graph.Graph,
    kind_of: Callable[[ir_graph.Node], int],
    sensitive_outputs: Collection[int] = (),
    units: Units = NO_UNITS,
) -> list[Segment]:
    """Return alternating segments of nodes of one kind (FALLBACK, NATIVE or RUNTIME_SIZED).
    sensitive_outputs: the indices of outputs on which discontinuous operators outside of the graph
    depend. units: nodes that together replace one node of the file, which onnxruntime runs in one
    segment."""
    order = ir_graph.nodes(graph)
    done: set[ir_graph.Node] = set()
    groups: list[tuple[int, list[ir_graph.Node]]] = []

    def ready(n: ir_graph.Node, whole: bool) -> bool:
        # a node that several units share may wait for one of them: the others wait for it
        if any(p is not None and p not in done for p in map(_producer, n.inputs)):
            return False
        unit = units.get(n, (n,)) if whole and not kind_of(n) else (n,)
        needed = (_producer(v) for m in unit for v in m.inputs)
        inside = () if len(unit) == 1 else unit
        return all(p is None or p in done or p in inside for p in needed)

    kind = kind_of(order[0]) if order else NATIVE
    idle = 0  # segments since the last node; units that share nodes may wait for each other
    while len(done) < len(order):
        group = []
        for n in order:
            if n not in done and kind_of(n) == kind and ready(n, idle < SEGMENT_KINDS):
                group.append(n)
                done.add(n)
        if group and groups and groups[-1][0] == kind:  # after units that waited for each other
            groups[-1][1].extend(group)
        elif group:
            groups.append((kind, group))
        idle = 0 if group else idle + 1
        kind = (kind + 1) % SEGMENT_KINDS
    moved = _constants_at_readers(graph, order, groups) if len(groups) > 1 else {}
    for k, (_, group) in enumerate(groups):
        own = set(group)
        group[:] = [n for n in order if (k in moved[n] if n in moved else n in own)]
    outside = [graph.outputs[k] for k in sensitive_outputs]
    decisive = rounding_sensitive_values(graph, outside) if len(groups) > 1 or outside else set()
    return [
        _make_segment(graph, bool(kind), group, decisive, moved) for kind, group in groups if group
    ]


def _constants_at_readers(
    graph: ir_graph.Graph,
    order: Sequence[ir_graph.Node],
    groups: Sequence[tuple[int, list[ir_graph.Node]]],
) -> dict[ir_graph.Node, set[int]]:
    """Return nodes that are computed from constants, with the numbers of the groups that read them,
    all of kernels. In each of these they are computed ahead of time, and packed; from another
    segment they would be copied in each call."""
    places = {n: {k} for k, (_, group) in enumerate(groups) for n in group}
    readers, known = ir_graph.users(graph), dict[ir_graph.Node, bool]()
    moved: dict[ir_graph.Node, set[int]] = {}
    for n in reversed(order):
        values = ir_graph.results(n)
        found = {k for v in values for m in readers.get(v, ()) for k in places[m]}
        if found == places[n] or not found or any(v in graph.outputs for v in values):
            continue
        if all(groups[k][0] for k in found | places[n]) and is_constant(values[0], known):
            places[n] = moved[n] = found
    return moved


def partition_by_cost(
    graph: ir_graph.Graph,
    kind_of: Callable[[ir_graph.Node], int],
    sizes: Mapping[str, int],
    units: Units = NO_UNITS,
) -> list[Segment]:
    """Return segments in which kernels between onnxruntime nodes must have enough work to pay for
    the switch; otherwise these nodes run in onnxruntime, too. A unit of which one node runs there
    runs there as a whole."""
    small: set[ir_graph.Node] = set()

    def large(n: ir_graph.Node) -> int:
        unit = units.get(n, (n,))
        return kind_of(n) if all(m not in small and kind_of(m) for m in unit) else FALLBACK

    while True:
        some = partition(graph, large, units=units)
        if all(s.native for s in some):
            return some
        more = {
            n
            for s in some
            if s.native and estimated_us(s.nodes, sizes) < SWITCH_US
            for n in s.nodes
        }
        if not more:
            return some
        small |= more


def estimated_us(nodes: Iterable[ir_graph.Node], sizes: Mapping[str, int]) -> float:
    """Return the estimated microseconds, by the roofline and call cost of each node."""
    total = 0.0
    for n in nodes:
        fixed = tuple(v is None or isinstance(v, ir_graph.Constant) for v in n.inputs)
        known = signature(n, sizes, fixed)
        total += SWITCH_US if known is None else roofline_us(known)
    return total


def _producer(v: ir_graph.Value | None) -> ir_graph.Node | None:
    return None if v is None else ir_graph.producer(v)


def _make_segment(
    graph: ir_graph.Graph,
    native: bool,
    group: list[ir_graph.Node],
    sensitive: Collection[ir_graph.Value],
    moved: Collection[ir_graph.Node],
) -> Segment:
    """moved: nodes that are in each group that reads them."""
    own = set(group)
    given = [
        v for n in group for v in n.inputs
        if v is not None and not isinstance(v, ir_graph.Constant) and _producer(v) not in own
    ]  # fmt: skip
    wanted = set(graph.outputs)
    for n in ir_graph.nodes(graph):
        if n not in own:
            wanted |= {v for v in n.inputs if v is not None}
    out = [v for n in group if n not in moved for v in ir_graph.results(n) if v in wanted]
    decided = tuple(k for k, v in enumerate(out) if v in sensitive)
    return Segment(tuple(group), native, tuple(dict.fromkeys(given)), tuple(out), decided)


def segment_graph(s: Segment) -> ir_graph.Graph:
    """Return the segment as a graph, with inputs for its input values."""
    names = _input_names(len(s.inputs))
    change = {
        v: v if isinstance(v, ir_graph.Input) else ir_graph.Input(name, v.type)
        for v, name in zip(s.inputs, names, strict=True)
    }
    inner = ir_graph.Graph(tuple(change.values()), s.outputs)
    return substitute_values(inner, change, recursive=False)[0]


def _input_names(count: int) -> Iterator[str]:
    return (f"given{n}" for n in range(count))


def fallback_nodes(parts: Collection[Segment]) -> list[ir_graph.Node]:
    """Return the nodes that run in onnxruntime."""
    return [n for s in parts if not s.native for n in s.nodes]
