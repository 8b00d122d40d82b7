"""The sizes that calls of a decoder have after a call, so that their programs can be compiled with
that of the first call.

A decoder is found by its types: an output is an input that has grown along one axis, from `past` to
past + sequence. The next call takes it as its past, with one more token. Or states are named, and
the call writes some elements into caches of a fixed capacity: the next one writes one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from superopt.ir import graph
from superopt.onnx_io.import_.model import Model
from superopt.plan.lowering.updated_states import match_cache_write
from superopt.te.expr import index
from superopt.te.expr.node import Expr, Size
from superopt.te.expr.symbolic_int import SIZE_LEVELS
from superopt.te.expr.tensor import TensorType

StateNames = tuple[tuple[str, str], ...]  # of outputs, each with the input that it continues


def decode_sizes(
    model: Model, sizes: Mapping[str, int], states: StateNames = ()
) -> list[dict[str, int]]:
    """Return the sizes of calls with one more token after a call at these sizes: of the next call,
    and with a long past. None if the model is not a decoder, or these are its sizes already."""
    found = next(_growing_inputs(model.graph), None)
    if found is None:
        tokens = _token_sizes(model, states)
        written = {sizes[name] for name in tokens if sizes[name] > 1}
        masks = _call_sizes(model.graph, states) - tokens  # their lengths grow
        longer = {name: sizes[name] + (sizes[name] in written) for name in masks}
        return [{**sizes, **longer, **dict.fromkeys(tokens, 1)}] if written else []
    past, sequence, totals = _decoder_sizes(model, sizes, *found)
    total = sizes[past] + sizes[sequence]
    longest = max(total, SIZE_LEVELS[-1])
    return [
        {**sizes, past: n, sequence: 1, **dict.fromkeys(totals, n + 1)} for n in (total, longest)
    ]


def prefill_sizes(model: Model, sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """Return the sizes of a first call with as many tokens. None if the model is not a decoder
    whose past grows."""
    found = next(_growing_inputs(model.graph), None)
    if found is None:
        return []
    past, sequence, totals = _decoder_sizes(model, sizes, *found)
    return [{**sizes, past: 0, **dict.fromkeys(totals, sizes[sequence])}]


def _decoder_sizes(
    model: Model, sizes: Mapping[str, int], past: str, sequence: str, kept: Collection[str]
) -> tuple[str, str, list[str]]:
    """Return the names of the past, of the sequence, and of sizes that are their sum: the length of
    an attention mask may have a name of its own."""
    total = sizes[past] + sizes[sequence]
    others = model.size_bindings.keys() - {past, sequence} - {*kept}
    return past, sequence, [n for n, size in sizes.items() if size == total and n in others]


def is_decode_step(model: Model, sizes: Mapping[str, int], states: StateNames = ()) -> bool:
    """True if these are the sizes of a decoder's call with one more token after others."""
    found = next(_growing_inputs(model.graph), None)
    if found is None:
        tokens = _token_sizes(model, states)
        return bool(tokens) and all(sizes[name] == 1 for name in tokens)
    return sizes[found[0]] > 0 and sizes[found[1]] == 1


def _token_sizes(model: Model, states: StateNames) -> set[str]:
    """Return the symbolic sizes by which caches of a fixed capacity are written in a call."""
    names = [v.name for v in model.source.model.graph.outputs]
    values = (model.graph.outputs[names.index(output)] for output, _ in states)
    writes = (w for v in values if (w := match_cache_write(v)) is not None)
    dims = (w.new.type.shape[w.axis] for w in writes if w.new.type.shape is not None)
    return set[str]().union(*map(index.symbols, dims))


def _call_sizes(g: graph.Graph, states: StateNames) -> set[str]:
    """Return the symbolic sizes that only inputs have that are no states."""
    held = {name for _, name in states}
    used: dict[bool, set[str]] = {True: set(), False: set()}
    for i in g.inputs:
        used[i.name in held].update(*map(index.symbols, i.type.shape or ()))
    return used[False] - used[True]


def _growing_inputs(g: graph.Graph) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield for each input that an output continues: the size of its past, by how much it grows,
    and its other sizes."""
    for value in g.outputs:
        for given in g.inputs:
            grown = _grown_axis(given.type, value.type)
            if grown is not None:
                past, sequence = grown
                others = (index.symbols(d) for d in given.type.shape or ())
                yield past, sequence, frozenset().union(*others) - {past}


def _grown_axis(a: TensorType, b: TensorType) -> tuple[str, str] | None:
    """Return the size of the axis along which `b` is larger than `a`, and by which size; None if
    they differ in another way."""
    if a.dtype != b.dtype or a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return None
    pairs = [(x, y) for x, y in zip(a.shape, b.shape, strict=True) if x != y]
    match pairs:
        case [(Size(past), Expr() as end)]:
            more = index.dim(end - Size(past))
            if isinstance(more, Size) and more.name != past:
                return past, more.name
    return None
