"""Windows over images in a model, and their mutants: where each is equal, and its correction."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.generate.engine.journal import Journal
from superopt.ir import graph as ir_graph
from superopt.ir.op import InferError
from superopt.ops import OPS
from superopt.partial.correct.corrections import NoCorrection, recompute
from superopt.partial.correct.generalize import pair_from_sizes
from superopt.partial.correct.sized_pairs import SizedPair
from superopt.partial.correct.symbolic_boxes import NoFormula
from superopt.partial.enumerate.axis_moves import WINDOW_OPS, window_mutants
from superopt.partial.regions.boxes import Box
from superopt.partial.regions.cells import TooManyCells
from superopt.partial.regions.find import Regions, find_regions
from superopt.rules.lang.rule import Rule
from superopt.te.expr import index
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Dim, TensorType

MIN_EQUAL_SHARE = 0.5  # minimum share of a program's elements that a mutant computes equally
Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Window:
    """A window over images: op, attrs; batch: None for any number; spatial_shape: of an image;
    kernel_shape: of a convolution, has_bias: whether it has a bias. channels: read and written, in
    the model, None if it has groups. priced_batch: the batch for which it is priced."""

    op: str
    attrs: tuple[tuple[str, Any], ...]
    batch: int | None
    spatial_shape: tuple[int, ...]
    kernel_shape: tuple[int, ...]
    has_bias: bool
    channels: tuple[int, int]
    priced_batch: int = 1

    @property
    def key(self) -> str:
        """The key of windows that have the same mutants."""
        said = json.dumps(
            (self.op, self.attrs, self.batch, self.spatial_shape, self.kernel_shape, self.has_bias)
        )
        return f"{said} {self.channels}" if self.has_groups else said

    @property
    def has_groups(self) -> bool:
        return bool(dict(self.attrs).get("group", 1) != 1)

    @property
    def fixed_axes(self) -> tuple[int, ...]:
        """Axes along which nothing moves: with a variable batch there are no equal parts."""
        return (0,) if self.batch is None else ()

    def value_at(self, c: int, o: int, n: int) -> ir_graph.Value:
        """Return the window with so many channels and images."""
        group = dict(self.attrs).get("group", 1)
        shapes = {"x": (n, c, *self.spatial_shape)}
        if self.kernel_shape:
            shapes["k"] = (o, c // group, *self.kernel_shape)
        if self.has_bias:
            shapes["b"] = (o,)
        given = [ir_graph.Input(name, TensorType(F32, shape)) for name, shape in shapes.items()]
        return ir_graph.node(OPS[self.op], given, **dict(self.attrs))

    def model_sizes(self) -> dict[str, int]:
        """Return its sizes in the model, for those that its mutants name."""
        found = dict(zip("con", (*self.channels, self.priced_batch), strict=True))
        return {name: found[name] for name in self.sample_sizes()[0]}

    def sample_sizes(self) -> list[dict[str, int]]:
        """Return the sizes at which mutants are made: what they have in common are formulas of the
        channels and the batch. No size is a formula of the others."""
        names = "" if self.has_groups else "co" if self.kernel_shape else "c"
        names += "n" if self.batch is None else ""
        some = ({"c": 2, "o": 3, "n": 3}, {"c": 3, "o": 7, "n": 2}, {"c": 5, "o": 4, "n": 4})
        return [{name: at[name] for name in names} for at in some] if names else [{}]

    def sample_values(self) -> list[ir_graph.Value]:
        own = {**dict(zip("co", self.channels, strict=True)), "n": self.batch or self.priced_batch}
        return [self.value_at(**{**own, **x}) for x in self.sample_sizes()]


def find_windows(
    graph: ir_graph.Graph, sizes: Mapping[str, int] | None = None
) -> Iterator[Window | None]:
    """Yield the windows of a graph; None for one of unknown sizes, except for the batch, or of
    another type. sizes: at which windows are priced."""
    for n in ir_graph.nodes(graph):
        if n.op.name not in WINDOW_OPS or n.op.domain or n.op.opaque:
            continue
        types = [v.type for v in n.inputs if v is not None]
        if any(d == 0 for t in (*types, n.type) for d in t.shape or ()):
            continue
        x, out = types[0].shape, n.type.shape
        if x is None or out is None or x[0] != out[0] or types[0].dtype != F32:
            yield None
            continue
        known = [_static_sizes(dims) for dims in (x[1:], out[1:], *(t.shape for t in types[1:]))]
        if any(dims is None for dims in known):
            yield None
            continue
        (c, *sides), (o, *_), *operands = (dims for dims in known if dims is not None)
        kernel = tuple(operands[0][2:]) if operands else ()
        batch, priced = (
            (x[0], x[0]) if isinstance(x[0], int) else (None, _size_or_one(x[0], sizes or {}))
        )
        yield Window(
            n.op.name, n.attrs, batch, tuple(sides), kernel, len(operands) > 1, (c, o), priced
        )


def _static_sizes(dims: Sequence[Dim] | None) -> list[int] | None:
    """Return the sizes if all are known."""
    out = [d for d in dims or () if isinstance(d, int)]
    return out if dims is not None and len(out) == len(dims) else None


def _size_or_one(d: Expr, sizes: Mapping[str, int]) -> int:
    """Return the value of a size at these sizes; 1 if it is unknown."""
    return index.evaluate(d, dict(sizes)) if index.symbols(d) <= sizes.keys() else 1


def mutate_window(window: Window, journal: Journal, stop: Callable[[], bool]) -> list[Line] | None:
    """Return the entry of each mutant of a window that is equal somewhere; None if stopped. Entries
    are stored as they are computed."""
    programs = window.sample_values()
    each = [list(window_mutants(p, window.fixed_axes)) for p in programs]
    if len({tuple(name for name, _ in some) for some in each}) > 1:
        return [{"dropped": "other mutants at other sizes"}]
    out: list[Line] = []
    seen: Counter[str] = Counter()
    for n, column in enumerate(zip(*each, strict=True)):
        key, name = f"{n} {window.key}", column[0][0]
        seen[name] += 1
        if key not in journal.known:
            if stop():
                return None
            called = f"{name}-{seen[name]}" if seen[name] > 1 else name
            told = _mutant_line(called, window.sample_sizes(), programs, [m for _, m in column])
            journal.add(key, json.dumps(told))
        told = json.loads(journal.known[key])
        out += [] if told is None else [told]
    return out


def _mutant_line(
    name: str,
    sizes: Sequence[dict[str, int]],
    programs: Sequence[ir_graph.Value],
    mutants: Sequence[ir_graph.Value],
) -> Line | None:
    """Return the entry of a mutant; None for one that is equal almost nowhere."""
    try:
        found = [find_regions(*both) for both in zip(programs, mutants, strict=True)]
    except (TooManyCells, InferError, ValueError):
        return {"dropped": "too many break points"}
    return (
        _corrected_line(name, sizes, programs, mutants, found)
        if found[0].equal_share >= MIN_EQUAL_SHARE
        else None
    )


def _corrected_line(
    name: str,
    sizes: Sequence[dict[str, int]],
    programs: Sequence[ir_graph.Value],
    mutants: Sequence[ir_graph.Value],
    regions: Sequence[Regions],
) -> Line:
    try:
        fixed = [
            recompute(p, m, r) if r.different else m
            for p, m, r in zip(programs, mutants, regions, strict=True)
        ]
        pair, rule = (
            pair_from_sizes(name, [SizedPair(*x) for x in zip(sizes, programs, right, strict=True)])
            for right in (mutants, fixed)
        )
    except (NoCorrection, NoFormula):
        return {"dropped": "no correction along axes"}
    return line_data(pair, rule, regions[0])


def line_data(pair: Rule, rule: Rule, regions: Regions) -> Line:
    """Return the entry of a mutant and its correction; its boxes are those of a sample."""
    return {
        "pair": str(pair), "corrected": str(rule), "share": regions.equal_share,
        "equal": box_texts(regions.equal, regions),
        "different": box_texts(regions.different, regions), "exact": regions.is_exact,
    }  # fmt: skip


def box_texts(region_boxes: Sequence[Box], regions: Regions) -> list[str]:
    """Return boxes as text; a whole axis is `:`, since channels are those of a sample."""

    def span(begin: int, end: int, step: int, size: int) -> str:
        if (begin, end, step) == (0, size, 1):
            return ":"
        return f"{begin}:{end}" + (f":{step}" if step > 1 else "")

    return [
        "["
        + ", ".join(
            span(s.begin, s.end, s.step, n) for s, n in zip(box, regions.shape, strict=True)
        )
        + "]"
        for box in region_boxes
    ]
