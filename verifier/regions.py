"""Two graphs piece by piece: what seems to be equal in both is proved, and then taken as given.

Both are evaluated on one random input; values that are alike there are candidates. In the order of
the second graph each candidate is proved equal to its partner, first from the nearest values that
both share, then from further down. What is proved becomes one value, so that what is computed of it
is one, too. So a graph of a thousand nodes is a row of small proofs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from superopt.ir import graph as g
from superopt.ir.evaluate import evaluate
from superopt.ir.op import InferError
from superopt.te import index as ix
from superopt.te.domain import Reals
from superopt.te.dtype import BOOL, F64, to_numpy
from superopt.verifier.graphs import proved_equal
from superopt.verifier.prove import Limits
from superopt.verifier.verdict import Proved, Unknown

DEPTHS = (1, 2, 4, 8, 64)  # operators between a value and what is taken as given
DIGITS = 9  # to which two values are alike, of their largest element
PRIMES = (5, 3, 7, 11, 13, 2)


@dataclass(frozen=True, slots=True)
class Region:
    """A value of the second graph that is one of the first, and what is said of that."""

    first: g.Value
    second: g.Value
    verdict: Proved | Unknown


@dataclass(frozen=True, slots=True)
class Compared:
    """What was found of each output, in order; None: it is the same value. regions: what was proved
    on the way."""

    outputs: tuple[Proved | Unknown | None, ...]
    regions: tuple[Region, ...]


def compared(
    a: g.Graph,
    b: g.Graph,
    limits: Limits,
    seconds: float,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> Compared:
    """Are the outputs of `b` those of `a`? Both are over the same inputs.

    limits: of one proof; seconds: of all of them; stop: asked between proofs whether to prove no
    more.
    """
    end = time.monotonic() + seconds
    work = _Work(a, limits, end, stop)
    work.partners = _partners(a, b, seed)
    for n in g.nodes(b):
        work.take(n)
    outputs: list[Proved | Unknown | None] = []
    for x, y in zip(a.outputs, b.outputs, strict=True):
        mine = work.value(y)
        if mine is x:
            proofs = [r.verdict for r in work.regions if r.first is x]
            outputs.append(proofs[-1] if proofs else None)
        else:
            outputs.append(work.prove(x, mine))
    return Compared(tuple(outputs), tuple(work.regions))


@dataclass(slots=True)
class _Work:
    """The second graph, rebuilt on values of the first."""

    a: g.Graph
    limits: Limits
    end: float
    stop: Callable[[], bool]
    partners: dict[g.Value, g.Value] = field(default_factory=dict)
    made: dict[g.Value, g.Value] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    shared: set[g.Value] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.shared = set(self.a.inputs) | set(g.constants(self.a)) | set(g.walk(self.a))

    def value(self, v: g.Value) -> g.Value:
        return self.made.get(v, v)

    def take(self, n: g.Node) -> None:
        """Rebuild a node, and prove its results to be their partners."""
        inputs = tuple(None if v is None else self.value(v) for v in n.inputs)
        again = g.intern_node(n.op, inputs, n.attrs, n.types)
        for old, new in zip(g.results(n), g.results(again), strict=True):
            partner = self.partners.get(old)
            self.made[old] = new
            if partner is None or new in self.shared or time.monotonic() > self.end:
                continue
            verdict = self.prove(partner, new)
            if isinstance(verdict, Proved):
                self.regions.append(Region(partner, old, verdict))
                self.made[old] = partner

    def prove(self, x: g.Value, y: g.Value) -> Proved | Unknown:
        """Is y == x? From what is near first."""
        found: Proved | Unknown = Unknown("the time is over", 0.0)
        before: frozenset[g.Value] | None = None
        for depth in DEPTHS:
            given = frozenset(self.near(x, y, depth))
            if given == before:
                continue
            before = given
            left = self.end - time.monotonic()
            if left <= 0 or self.stop():
                return found
            limit = replace(self.limits, seconds=min(self.limits.seconds, left))
            found = proved_equal(x, y, given, limit)
            if isinstance(found, Proved):
                return found
        return found

    def near(self, x: g.Value, y: g.Value, depth: int) -> Iterator[g.Value]:
        """Values of the first graph, at least so many operators before both, that cut both off."""
        stack = [(v, 0) for v in (x, y)]
        seen: dict[g.Value, int] = {}
        while stack:
            v, far = stack.pop()
            if seen.get(v, 1 << 30) <= far:
                continue
            seen[v] = far
            if far >= depth and v in self.shared and v is not x:
                continue
            stack += [(w, far + 1) for w in g.operands(v)]
        for v, far in seen.items():
            if far >= depth and v in self.shared and v is not x:
                yield v


def _partners(a: g.Graph, b: g.Graph, seed: int) -> dict[g.Value, g.Value]:
    """For each value of `b` one of `a` that is alike on random inputs."""
    names = sorted({s for i in a.inputs for d in i.type.shape or () for s in ix.symbols(d)})
    sizes = {name: PRIMES[k % len(PRIMES)] for k, name in enumerate(names)}
    feeds: dict[str, np.ndarray] = {}
    for k, i in enumerate(a.inputs):
        if i.type.dtype is None or i.type.shape is None:
            return {}
        rng = np.random.default_rng((seed, k))
        shape = tuple(ix.evaluate(d, sizes) for d in i.type.shape)
        if i.type.dtype.is_float:
            feeds[i.name] = rng.standard_normal(shape).astype(to_numpy(i.type.dtype))
        elif i.type.dtype == BOOL:
            feeds[i.name] = rng.integers(0, 2, shape).astype(bool)
        else:
            feeds[i.name] = rng.integers(0, 3, shape).astype(to_numpy(i.type.dtype))
    known: dict[object, g.Value] = {}
    found: dict[g.Value, g.Value] = {}

    def first(v: g.Value, array: np.ndarray) -> None:
        known.setdefault(_print(v, array), v)

    def second(v: g.Value, array: np.ndarray) -> None:
        other = known.get(_print(v, array))
        if other is not None and other is not v:
            found[v] = other

    try:
        with np.errstate(all="ignore"):
            evaluate(a, feeds, Reals(F64), keep=first)
            evaluate(b, feeds, Reals(F64), keep=second)
    except (ValueError, TypeError, IndexError, InferError, MemoryError):
        return {}
    return found


def _print(v: g.Value, array: np.ndarray) -> object:
    """What is equal where two values are alike."""
    if array.dtype.kind not in "fc":
        return str(v.type), array.tobytes()
    with np.errstate(all="ignore"):
        finite = array[np.isfinite(array)]
        top = float(np.max(np.abs(finite))) if finite.size else 0.0
        step = 10.0 ** (np.floor(np.log10(top)) - DIGITS) if top else 1.0
        return str(v.type), (np.round(array / step) + 0.0).tobytes()
