"""Windows over pictures in a model and their mutants: where each is right, what corrects it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.generate.journal import Journal
from superopt.ir import graph as g
from superopt.ir.op import InferError
from superopt.ops import OPS
from superopt.partial.boxes import Box
from superopt.partial.cells import TooMany
from superopt.partial.correct import NoCorrection, recomputed
from superopt.partial.generalise import pair_of
from superopt.partial.moves import WINDOWS, mutants
from superopt.partial.regions import Regions, regions
from superopt.partial.sizes import Sized
from superopt.partial.symbolic import NoFormula
from superopt.te.dtype import F32
from superopt.te.expr import TensorType

LEAST = 0.5  # of a program's elements, that a mutant has right
Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Window:
    """A window over pictures: op, attrs; image: its size but for channels; kernel: that of a
    convolution's, bias: has it one? channels: of what it reads and gives, where it is in a model,
    None where they are a part of it (groups)."""

    op: str
    attrs: tuple[tuple[str, Any], ...]
    image: tuple[int, ...]
    kernel: tuple[int, ...]
    bias: bool
    channels: tuple[int, int]

    @property
    def key(self) -> str:
        """Of windows that have the same mutants."""
        said = json.dumps((self.op, self.attrs, self.image, self.kernel, self.bias))
        return f"{said} {self.channels}" if self.fixed else said

    @property
    def fixed(self) -> bool:
        return bool(dict(self.attrs).get("group", 1) != 1)

    def at(self, c: int, o: int) -> g.Value:
        """With so many channels."""
        group = dict(self.attrs).get("group", 1)
        n, *sides = self.image
        shapes = {"x": (n, c, *sides)}
        if self.kernel:
            shapes["k"] = (o, c // group, *self.kernel)
        if self.bias:
            shapes["b"] = (o,)
        given = [g.Input(name, TensorType(F32, shape)) for name, shape in shapes.items()]
        return g.node(OPS[self.op], given, **dict(self.attrs))

    def sizes(self) -> list[dict[str, int]]:
        """At which mutants are made: what these have in common are formulas of the channels."""
        if self.fixed:
            return [{}]
        some = [
            {"c": 2, "o": 3},
            {"c": 3, "o": 7},
            {"c": 5, "o": 4},
        ]  # neither a formula of the other
        return some if self.kernel else [{"c": x["c"]} for x in some]

    def some(self) -> list[g.Value]:
        own = dict(zip("co", self.channels, strict=True))
        return [self.at(**{**own, **x}) for x in self.sizes()]


def windows_of(graph: g.Graph) -> Iterator[Window | None]:
    """The windows of a graph that compute anything; None for one of sizes that are not known, or of
    another type."""
    for n in g.nodes(graph):
        if n.op.name not in WINDOWS or n.op.domain:
            continue
        types = [v.type for v in n.inputs if v is not None]
        if any(d == 0 for t in (*types, n.type) for d in t.shape or ()):
            continue
        if not all(map(_known, (*types, n.type))) or types[0].dtype != F32:
            yield None
            continue
        image, out = ([int(d) for d in t.shape or ()] for t in (types[0], n.type))  # type: ignore[arg-type]
        kernel = tuple(int(d) for d in (types[1].shape or ())[2:]) if len(types) > 1 else ()  # type: ignore[arg-type]
        yield Window(
            n.op.name, n.attrs, (image[0], *image[2:]), kernel, len(types) > 2, (image[1], out[1])
        )


def _known(t: TensorType) -> bool:
    return t.shape is not None and all(isinstance(d, int) for d in t.shape)


def mutated(w: Window, journal: Journal, stop: Callable[[], bool]) -> list[Line] | None:
    """What is said of each mutant of a program that is right somewhere; None where it was time to
    stop. What is known of each is kept meanwhile."""
    programs = w.some()
    each = [list(mutants(p)) for p in programs]
    if len({tuple(name for name, _ in some) for some in each}) > 1:
        return [{"dropped": "other mutants at other channels"}]
    out: list[Line] = []
    seen: Counter[str] = Counter()
    for n, column in enumerate(zip(*each, strict=True)):
        key, name = f"{n} {w.key}", column[0][0]
        seen[name] += 1
        if key not in journal.known:
            if stop():
                return None
            called = f"{name}-{seen[name]}" if seen[name] > 1 else name
            told = _about(called, w.sizes(), programs, [m for _, m in column])
            journal.add(key, json.dumps(told))
        told = json.loads(journal.known[key])
        out += [] if told is None else [told]
    return out


def _about(
    name: str, sizes: Sequence[dict[str, int]], programs: Sequence[g.Value], made: Sequence[g.Value]
) -> Line | None:
    """What is said of a mutant, None of one that is hardly right."""
    try:
        found = [regions(*both) for both in zip(programs, made, strict=True)]
    except (TooMany, InferError, ValueError):
        return {"dropped": "too many break points"}
    return _said(name, sizes, programs, made, found) if found[0].share >= LEAST else None


def _said(
    name: str,
    sizes: Sequence[dict[str, int]],
    programs: Sequence[g.Value],
    made: Sequence[g.Value],
    found: Sequence[Regions],
) -> Line:
    try:
        fixed = [
            recomputed(p, m, r) if r.different else m
            for p, m, r in zip(programs, made, found, strict=True)
        ]
        pair, rule = (
            pair_of(name, [Sized(*x) for x in zip(sizes, programs, right, strict=True)])
            for right in (made, fixed)
        )
    except (NoCorrection, NoFormula):
        return {"dropped": "no correction along axes"}
    r = found[0]
    return {
        "pair": str(pair), "corrected": str(rule), "share": r.share,
        "equal": boxes(r.equal, r), "different": boxes(r.different, r),
    }  # fmt: skip


def boxes(some: Sequence[Box], r: Regions) -> list[str]:
    """As text; all of an axis as `:`, since channels are those of a sample."""

    def span(begin: int, end: int, step: int, size: int) -> str:
        if (begin, end, step) == (0, size, 1):
            return ":"
        return f"{begin}:{end}" + (f":{step}" if step > 1 else "")

    return [
        "["
        + ", ".join(span(s.begin, s.end, s.step, n) for s, n in zip(box, r.shape, strict=True))
        + "]"
        for box in some
    ]
