"""Random inputs for the numerical check: normal, uniform and adversarial values by dtype."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from superopt import guard
from superopt.check.quantized_inputs import (
    input_quantization,
    integer_range,
    is_quantized,
    quantized_floats,
    takes_all_integers,
    with_extremes,
)
from superopt.ir import graph as ir_graph
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, STRING, DType, to_numpy
from superopt.te.expr.tensor import TensorType

INPUT_KINDS = ("normal", "adversarial", "uniform")  # in the order of how many errors they find
# Of models with quantized values; the sets of the other kinds stay as they are.
QUANTIZED_INPUT_KINDS = ("normal", "extreme", "adversarial", "uniform")
_KIND_NUMBERS = {"normal": 0, "adversarial": 1, "uniform": 2, "extreme": 3}  # of random streams
_INDEX_CARRIERS = frozenset({"Cast", "Unsqueeze", "Squeeze", "Reshape", "Identity", "Flatten",
                             "Gather", "Slice", "Transpose", "Concat", "Split",
                             "Expand"})  # fmt: skip
_MAX_DRAWN_INTEGER = 100  # the bound of drawn integers other than indices
MAX_INPUT_BYTES = 4 << 30  # of one set of inputs
DRAW_BYTES_PER_ELEMENT = 16  # per element while it is drawn: a float64, and the element type


@dataclass(frozen=True, slots=True)
class Feeds:
    """One set of inputs: its kind, the arrays by input name, and the symbolic sizes."""

    kind: str
    arrays: Mapping[str, np.ndarray]
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class IndexLimit:
    """The range of an integer input: indices are below `extent` (None: not known to be an
    index). is_number: any integer is valid, as only arithmetic reads it."""

    extent: int | None
    is_number: bool = False


def input_kinds(graph: ir_graph.Graph) -> Sequence[str]:
    """Return the kinds of inputs to check a graph on."""
    return QUANTIZED_INPUT_KINDS if is_quantized(graph) else INPUT_KINDS


def random_feeds(
    graph: ir_graph.Graph,
    sizes: Mapping[str, int],
    seed: int,
    kinds: Sequence[str] | None = None,
    *,
    zero_integers: bool = False,
) -> Iterator[Feeds]:
    """Yield one set of inputs of each kind at `sizes`, by default of those of `input_kinds`; with
    `zero_integers` all integers are 0.

    Raises TypeError for an input that is not a tensor or has no shape, KeyError for a symbolic
    dimension without a value, MemoryError for more than MAX_INPUT_BYTES.
    """
    size = sum(_nbytes(concrete_type(i.type, sizes)) for i in graph.inputs)
    if size > MAX_INPUT_BYTES:
        raise MemoryError(f"the inputs take {size / 1e9:.1f} GB")
    bounds = {i: index_limit(graph, i, sizes) for i in graph.inputs}
    for kind in input_kinds(graph) if kinds is None else kinds:
        rng = np.random.default_rng((seed, _KIND_NUMBERS[kind]))
        arrays: dict[str, np.ndarray] = {}
        for i in graph.inputs:
            array = _input_array(graph, i, concrete_type(i.type, sizes), kind, bounds[i], rng)
            integer = i.type.dtype is not None and i.type.dtype.is_int
            arrays[i.name] = np.zeros_like(array) if zero_integers and integer else array
        yield Feeds(f"{kind}, integers 0" if zero_integers else kind, arrays, sizes)


def _input_array(
    graph: ir_graph.Graph,
    i: ir_graph.Input,
    t: TensorType,
    kind: str,
    limit: IndexLimit,
    rng: np.random.Generator,
) -> np.ndarray:
    if kind == "extreme" and t.dtype is not None and t.dtype.is_float and t.shape is not None:
        quantization = input_quantization(graph, i)
        if quantization is not None:
            shape = tuple(int(d) for d in t.shape)  # type: ignore[arg-type]
            guard.require_memory(
                DRAW_BYTES_PER_ELEMENT * math.prod(shape), f"an input of shape {list(shape)}"
            )
            return quantized_floats(shape, quantization, t.dtype, rng)
    return random_array(t, kind, limit, rng)


UNDECLARED_SHAPE = (2, 4)  # of an input without a declared shape


def concrete_type(t: TensorType, sizes: Mapping[str, int]) -> TensorType:
    """Return `t` at `sizes`, with UNDECLARED_SHAPE if it has no shape; KeyError names a symbolic
    dimension without a value."""
    if t.shape is None:
        return t if t.dtype is None else TensorType(t.dtype, UNDECLARED_SHAPE)
    return TensorType(t.dtype, tuple(index.evaluate(d, dict(sizes)) for d in t.shape))


def _nbytes(t: TensorType) -> int:
    dims = [int(d) for d in t.shape or ()]  # type: ignore[arg-type]
    return math.prod(dims) * (1 if t.dtype in (None, STRING) else to_numpy(t.dtype).itemsize)


def random_array(
    t: TensorType, kind: str, limit: IndexLimit, rng: np.random.Generator
) -> np.ndarray:
    """Return a random array of type `t`; TypeError if the type has no values."""
    if t.dtype is None or t.shape is None:
        raise TypeError(f"cannot draw random values of type {t}")
    shape = tuple(int(d) for d in t.shape)  # type: ignore[arg-type]
    guard.require_memory(
        DRAW_BYTES_PER_ELEMENT * math.prod(shape), f"an input of shape {list(shape)}"
    )
    if t.dtype == STRING:
        return rng.choice(np.array(["a", "b", "superopt"], object), shape)
    if t.dtype == BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if t.dtype.is_int:
        low, high = _integer_range(kind, limit, t.dtype)
        wide = np.int64 if high <= 1 << 63 else np.uint64
        array = rng.integers(low, high, shape, wide)
        if high - low >= 256 and kind in ("extreme", "adversarial") and limit.extent is None:
            array = with_extremes(array, low, high - 1, rng)
        return array.astype(to_numpy(t.dtype))
    if not t.dtype.is_float:
        raise TypeError(f"cannot draw random values of type {t}")
    drawn = rng.random(shape) if kind == "uniform" else rng.standard_normal(shape)
    if kind in ("adversarial", "extreme"):
        # zeros, ties, and magnitudes over six decades, for cancellation and overflow
        scale = 10.0 ** rng.integers(-4, 3, shape)
        drawn = np.where(rng.random(shape) < 0.1, 0.0, np.round(drawn, 1) * scale)
    if t.dtype.bits < 16:
        drawn = np.clip(drawn, -4, 4)
    return np.asarray(drawn).astype(to_numpy(t.dtype))


def _integer_range(kind: str, limit: IndexLimit, dtype: DType) -> tuple[int, int]:
    """Return the range of drawn integers, without its end.

    Adversarial indices also count from the end. Small types (pixels, quantized values) take all
    their values; other integers are 0 or 1 (masks, types), or adversarial ones of both signs, over
    the whole range if only arithmetic reads them.
    """
    adversarial = kind in ("adversarial", "extreme")
    signed = dtype.kind == "i"
    if limit.extent is not None:
        return (-limit.extent if adversarial and signed else 0), max(limit.extent, 1)
    if dtype.bits <= 16 or (adversarial and limit.is_number):
        low, high = integer_range(dtype)
        return low, high + 1
    if not adversarial:
        return 0, 2
    return (-_MAX_DRAWN_INTEGER if signed else 0), _MAX_DRAWN_INTEGER + 1


def index_limit(graph: ir_graph.Graph, i: ir_graph.Input, sizes: Mapping[str, int]) -> IndexLimit:
    """Return the index limit of an input: the least extent that it indexes."""
    if i.type.dtype is None or not i.type.dtype.is_int:
        return IndexLimit(None)
    users = ir_graph.users(graph)
    least: int | None = None
    stack: list[ir_graph.Value] = [i]
    seen: set[ir_graph.Value] = set()
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        for n in users.get(v, []):
            if n.op.name.startswith("Gather") and len(n.inputs) > 1 and n.inputs[1] is v:
                extent = _gathered_extent(n, sizes)
                least = extent if least is None else min(least, extent or least)
            elif n.op.name in _INDEX_CARRIERS:
                stack.extend(ir_graph.results(n))
    return IndexLimit(least, is_number=least is None and takes_all_integers(graph, i))


def _gathered_extent(n: ir_graph.Node, sizes: Mapping[str, int]) -> int | None:
    """Return the extent that a Gather indexes; for GatherND the least of the indexed axes."""
    table = n.inputs[0]
    attrs = dict(n.attrs)
    if table is None or table.type.shape is None:
        return None
    axis = attrs.get("axis", 0)
    axes = table.type.shape[axis : axis + 1] if isinstance(axis, int) else ()
    if n.op.name == "GatherND":
        axes = table.type.shape
    try:
        return min(index.evaluate(d, dict(sizes)) for d in axes)
    except (KeyError, ValueError):
        return None
