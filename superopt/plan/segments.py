"""Partition the nodes of a graph into segments that run as kernels and segments that fall back to
onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from weakref import WeakKeyDictionary

import numpy as np

from superopt.cost.roofline import roofline
from superopt.cost.signature import signature
from superopt.ir import graph as g
from superopt.ir.constancy import is_constant
from superopt.ir.decisions import decisive_values
from superopt.ir.substitute import substituted
from superopt.kernels.schedule import IllegalSchedule
from superopt.plan.fourier import pays
from superopt.plan.recurrent import is_recurrent, unsupported
from superopt.plan.scan import body_of, is_scan, why_no_loop
from superopt.plan.scatters import has_kernel
from superopt.te import index as ix
from superopt.te.dtype import BF16, BOOL, F16, F32, F64, DType
from superopt.te.expr import TensorType
from superopt.te.node import Expr

# The least cost of kernels between nodes in onnxruntime: two more calls, and arrays.
CHANGE_US = 20.0
BESIDE = "it has too little work to leave the surrounding onnxruntime segment"
INTEGERS = "onnxruntime multiplies integers; kernels would multiply floats"
# Errors for a node without a kernel: unsupported, too deep, empty tensors, no schedule.
NO_KERNEL = (NotImplementedError, RecursionError, ZeroDivisionError, IllegalSchedule)
INTEGER = frozenset(("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "QGemm"))
PRODUCTS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
# Limits beyond which kernels are slow: the extent of a prefix sum; the extent of a TopK axis;
# comparisons of indices for each element of the result.
PREFIXES = 16
RANKED = 64  # the extent of an axis whose largest elements are selected
COMPARED = 4
LITTLE = 1 << 12  # elements of a result that are too few to matter
# Steps to the deepest leaf for each step that a tree needs on average. Above this ratio
# onnxruntime, which stops at each leaf, is faster (300 trees of 20 levels and 4 steps: kernels have
# 0.8 times its speed; of 12 levels: 1.5 times).
UNEVEN = 4
ONCE = 1 << 27  # comparisons that are done ahead of time: about a second


_STEPS: WeakKeyDictionary[g.Node, float] = WeakKeyDictionary()


# For each node, the nodes that together replace one node of the file.
Units = Mapping[g.Node, Collection[g.Node]]
NO_UNITS: Units = MappingProxyType({})
KINDS = 2  # of segments


@dataclass(frozen=True, slots=True)
class Segment:
    """Nodes that run consecutively, as kernels (`native`) or in onnxruntime. inputs: values
    computed elsewhere, and graph inputs. outputs: values that others need. sensitive_outputs: the
    indices of the outputs that the whole graph rounds because discontinuous operators depend on
    them (ir/rounding_sensitive.py)."""

    nodes: tuple[g.Node, ...]
    native: bool
    inputs: tuple[g.Value, ...]
    outputs: tuple[g.Value, ...]
    decided: tuple[int, ...] = ()


def computes(dtype: DType | None) -> bool:
    """True if kernels support this element type."""
    if dtype is None:
        return False
    return dtype in (F16, BF16, F32, F64, BOOL) or (dtype.is_int and dtype.bits >= 8)


def why_not(n: g.Node, sizes: Mapping[str, int], max_steps: int | None = None) -> str:
    """Return why a node has no kernel; an empty string if it has one. max_steps: of a recurrent
    layer, for a target without loops."""
    written = is_recurrent(n) or is_scan(n)  # lowered to its steps
    written |= max_steps is None and has_kernel(n)
    if why := _why_no_steps(n, max_steps) if written else "":
        return why
    if n.op.opaque and not written:
        where = f" of {n.op.domain}" if n.op.domain else ""
        return f"{n.op.title}{where} has no tensor expression"
    # unused results have no type
    gives = (t for t in n.types if t.dtype is not None or not written)
    for t in (*(v.type for v in n.inputs if v is not None), *gives):
        if not computes(t.dtype):
            return f"no kernel supports {t.dtype or 'a value that is not a tensor'}"
        if not _sized(t, sizes):
            return f"a shape that is known only at run time: {t}"
    if any(_unknown(v, sizes) for _, v in n.attrs):
        return "an attribute that is known only at run time"
    if not n.op.opaque and _nowhere(n, sizes):
        return "no index can be in range"  # as in onnxruntime
    return ""


def _why_no_steps(n: g.Node, max_steps: int | None) -> str:
    """Return why the steps of a recurrent layer, a Scan or a Loop have no kernels."""
    if is_recurrent(n):
        return unsupported(n, max_steps)
    if not is_scan(n):
        return ""
    if max_steps is not None:
        return f"{n.op.name}: this target has no loops"
    if why := why_no_loop(n):
        return why
    for inner in g.nodes(body_of(n)):
        if why := why_not(inner, {}):
            return f"{n.op.name}: its body's {inner.op.name}: {why}"
    return ""


def _nowhere(n: g.Node, sizes: Mapping[str, int]) -> bool:
    """True if every index is out of range. A kernel would read beyond the tensor."""
    if n.op.name not in ("Gather", "GatherElements", "GatherND", "ScatterElements"):
        return False
    (x, indices), how = (_numbers(v.type, sizes) for v in n.inputs[:2] if v), dict(n.attrs)
    if not prod(indices) or not prod(_numbers(n.type, sizes)):
        return False
    if n.op.name == "GatherND":
        first = how["batch_dims"]
        assert isinstance(first, int)
        return not prod(x[first : first + indices[-1]])
    axis = how["axis"]
    assert isinstance(axis, int)
    beside = zip(indices, x, strict=True) if n.op.name != "Gather" else ()
    return not x[axis] or any(i > own for a, (i, own) in enumerate(beside) if a != axis)


def why_slow(n: g.Node, sizes: Mapping[str, int]) -> str:
    """Return why onnxruntime, if available, computes a node faster than its kernel; an empty string
    if it does not, or if the node is computed ahead of time."""
    match n.op.name:
        case "CumSum" if _large(n.type, sizes):
            return "a kernel would recompute each prefix sum"
        case "ScatterElements" | "ScatterND":
            result, indices = _numbers(n.type, sizes), n.inputs[1]
            assert indices is not None
            shape = _numbers(indices.type, sizes)
            places, rows = prod(result), prod(shape[:-1])
            most = COMPARED * prod(result)
            if n.op.name == "ScatterElements":
                most = COMPARED * LITTLE
                axis = dict(n.attrs)["axis"]
                assert isinstance(axis, int)
                rows = shape[axis]
            elif shape:
                places = prod(result[: shape[-1]])
            once = places * rows <= ONCE and is_constant(g.item(n, 0), {})
            if places * rows > most and not once:
                return "a kernel would compare each element with all indices"
        case "TopK":
            (x, *_), axis = n.inputs, dict(n.attrs)["axis"]
            assert x is not None
            assert isinstance(axis, int)
            if _numbers(x.type, sizes)[axis] > RANKED:
                return "a kernel would compare each element with all others"
        case "DFT" | "STFT" if _large(n.type, sizes) and not pays(n, sizes):
            return "onnxruntime's FFT needs fewer operations"
        case "Einsum" if len(n.inputs) > 2:
            return "a kernel would reduce over all indices at once"
        case "TreeWeights" if n.attr("depth") > UNEVEN * _steps(n):  # type: ignore[operator]
            return "a kernel would walk every tree to the deepest leaf"
        case "GridSample":
            return "a kernel would recompute the sampling positions for each channel"
    return ""


def _steps(n: g.Node) -> float:
    """Return the mean number of steps to a leaf, if both children of a node are equally likely."""
    if n not in _STEPS:
        depth, children, roots = n.attr("depth"), *(*n.inputs, None, None)[4:6]
        assert isinstance(depth, int)
        if not isinstance(children, g.Constant) or not isinstance(roots, g.Constant):
            return float(depth)  # complete trees
        below, first = children.load(), roots.load()
        inner = below[:, 0] != np.arange(len(below))
        inner |= below[:, 1] != np.arange(len(below))
        here: np.ndarray = np.bincount(first, minlength=len(below)) / len(first)
        total = 0.0
        for _ in range(depth):
            moving = np.where(inner, here, 0) / 2
            total += 2 * moving.sum()
            here = np.bincount(below.reshape(-1), np.repeat(moving, 2), len(below))
        _STEPS[n] = float(total)
    return _STEPS[n]


def _large(t: TensorType, sizes: Mapping[str, int]) -> bool:
    return max(_numbers(t, sizes), default=1) > PREFIXES


def integers(graph: g.Graph) -> bool:
    """True if the graph multiplies 8-bit integers, or floats that were dequantized from these."""
    return any(n.op.name in INTEGER or _quantized(n) for n in g.nodes(graph))


def _quantized(n: g.Node) -> bool:
    made = [None if v is None else g.producer(v) for v in n.inputs[:2]]
    return n.op.name in PRODUCTS and all(
        p is not None and p.op.name == "DequantizeLinear" and _byte(p.inputs[0]) for p in made
    )


def _byte(v: g.Value | None) -> bool:
    dtype = None if v is None else v.type.dtype
    return dtype is not None and dtype.is_int and dtype.bits == 8


def _numbers(t: TensorType, sizes: Mapping[str, int]) -> list[int]:
    return [ix.evaluate(d, dict(sizes)) for d in t.shape or ()]


def _sized(t: TensorType, sizes: Mapping[str, int]) -> bool:
    return t.shape is not None and all(ix.symbols(d) <= sizes.keys() for d in t.shape)


def _unknown(v: object, sizes: Mapping[str, int]) -> bool:
    if isinstance(v, tuple):
        return any(_unknown(x, sizes) for x in v)
    return isinstance(v, Expr) and not ix.symbols(v) <= sizes.keys()


def segments(
    graph: g.Graph,
    native: Callable[[g.Node], bool],
    decided: Collection[int] = (),
    units: Units = NO_UNITS,
) -> list[Segment]:
    """Return the fewest alternating segments that run each native node as kernels.
    sensitive_outputs: the indices of outputs on which discontinuous operators outside of the graph
    depend. units: nodes that together replace one node of the file, which onnxruntime runs in one
    segment."""
    order = g.nodes(graph)
    done: set[g.Node] = set()
    groups: list[tuple[bool, list[g.Node]]] = []

    def ready(n: g.Node, whole: bool) -> bool:
        unit = units.get(n, (n,)) if whole and not native(n) else (n,)
        needed = (_producer(v) for m in unit for v in m.inputs)
        inside = () if len(unit) == 1 else unit
        return all(p is None or p in done or p in inside for p in needed)

    kind = bool(order) and native(order[0])
    idle = 0  # segments since the last node; units that share nodes may wait for each other
    while len(done) < len(order):
        group = []
        for n in order:
            if n not in done and native(n) == kind and ready(n, idle < KINDS):
                group.append(n)
                done.add(n)
        if group:
            groups.append((kind, group))
        idle = 0 if group else idle + 1
        kind = not kind
    outside = [graph.outputs[k] for k in decided]
    decisive = decisive_values(graph, outside) if len(groups) > 1 or outside else set()
    return [_bounded(graph, kind, group, decisive) for kind, group in groups]


def worthwhile(
    graph: g.Graph,
    native: Callable[[g.Node], bool],
    sizes: Mapping[str, int],
    units: Units = NO_UNITS,
) -> list[Segment]:
    """Return segments in which kernels between onnxruntime nodes must have enough work to pay for
    the switch; otherwise these nodes run in onnxruntime, too. A unit of which one node runs there
    runs there as a whole."""
    small: set[g.Node] = set()

    def large(n: g.Node) -> bool:
        return all(m not in small and native(m) for m in units.get(n, (n,)))

    while True:
        some = segments(graph, large, units=units)
        if all(s.native for s in some):
            return some
        more = {n for s in some if s.native and _work(s, sizes) < CHANGE_US for n in s.nodes}
        if not more:
            return some
        small |= more


def _work(s: Segment, sizes: Mapping[str, int]) -> float:
    """Return the estimated microseconds, by the roofline and call cost of each node."""
    total = 0.0
    for n in s.nodes:
        fixed = tuple(v is None or isinstance(v, g.Constant) for v in n.inputs)
        known = signature(n, sizes, fixed)
        total += CHANGE_US if known is None else roofline(known)
    return total


def _producer(v: g.Value | None) -> g.Node | None:
    return None if v is None else g.producer(v)


def _bounded(
    graph: g.Graph, native: bool, group: list[g.Node], decisive: Collection[g.Value]
) -> Segment:
    own = set(group)
    given = [
        v for n in group for v in n.inputs
        if v is not None and not isinstance(v, g.Constant) and _producer(v) not in own
    ]  # fmt: skip
    wanted = set(graph.outputs)
    for n in g.nodes(graph):
        if n not in own:
            wanted |= {v for v in n.inputs if v is not None}
    out = [v for n in group for v in g.results(n) if v in wanted]
    decided = tuple(k for k, v in enumerate(out) if v in decisive)
    return Segment(tuple(group), native, tuple(dict.fromkeys(given)), tuple(out), decided)


def graph_of(s: Segment) -> g.Graph:
    """Return the segment as a graph, with inputs for its input values."""
    names = _names(len(s.inputs))
    change = {
        v: v if isinstance(v, g.Input) else g.Input(name, v.type)
        for v, name in zip(s.inputs, names, strict=True)
    }
    inner = g.Graph(tuple(change.values()), s.outputs)
    return substituted(inner, change, inside=False)[0]


def _names(count: int) -> Iterator[str]:
    return (f"given{n}" for n in range(count))


def fallen(some: Collection[Segment]) -> list[g.Node]:
    """Return the nodes that run in onnxruntime."""
    return [n for s in some if not s.native for n in s.nodes]
