"""Compare two graphs in pieces: values that seem equal are proved equal, and then shared.

Both graphs are evaluated on one random input; values that agree there are candidates. In the order
of the first graph, then of the second, each candidate is proved equal to its partner, an earlier
value of the first graph, from the nearest values that both share, then from values further up. A
proved value is replaced by its partner, so that its users become shared, too. So a graph of a
thousand nodes becomes a sequence of small proofs.

Each proof uses stand-ins for the shared values, so that equal layers are proved once. Weights are
arbitrary tensors first; their numbers are read only if that fails. All regions are tried with
little time, then the remaining ones with more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from superopt.ir import graph as g
from superopt.ir.standin import numbered_input
from superopt.ir.substitute import replace_all
from superopt.verifier.alike import partners
from superopt.verifier.graphs import proved_equal
from superopt.verifier.prove import Limits
from superopt.verifier.verdict import Proved, Unknown
from superopt.verifier.written import is_number, is_written

DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16, 64)  # operators between a value and the cut
PATIENCE = (0.5, 2.0, 8.0, 60.0)  # seconds for a region, by round
LOOKING = 0.5  # share of the time for finding candidates
LEAST = 0.05  # seconds for a region
OVER = "the time is over"
# The verdict on two values over stand-ins, and its seconds; inf if more time would not help.
Known = dict[tuple[g.Value, ...], tuple[Proved | Unknown, float]]


@dataclass(frozen=True, slots=True)
class Region:
    """A value of the second graph, its partner in the first, and the verdict on their equality."""

    first: g.Value
    second: g.Value
    verdict: Proved | Unknown


@dataclass(frozen=True, slots=True)
class Compared:
    """The verdict for each output in order; None if it is the same value. regions: the equalities
    proved on the way."""

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
    """Prove that the outputs of `b` equal those of `a`. Both graphs have the same inputs.

    limits: of one proof; seconds: of all proofs; stop: called between proofs, True ends the work.
    """
    end = time.monotonic() + seconds
    alike = partners(a, b, seed, end - (1 - LOOKING) * seconds)
    known: Known = {}
    for patience in PATIENCE:
        work = _Work(a, limits, end, stop, alike, known, patience)
        found = work.round(b)
        if not any(isinstance(v, Unknown) for v in found.outputs) or work.over() or not work.late:
            break
    return found


@dataclass(slots=True)
class _Work:
    """One round: both graphs, rebuilt on shared values of the first.

    known: verdicts on values over stand-ins, of all rounds; regions_left: regions to come;
    is_out_of_time: True if more time might have completed some proof.
    """

    a: g.Graph
    limits: Limits
    end: float
    stop: Callable[[], bool]
    partners: dict[g.Value, g.Value]
    known: Known
    patience: float
    made: dict[g.Value, g.Value] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    shared: set[g.Value] = field(default_factory=set)
    ahead: int = 0
    late: bool = False

    def __post_init__(self) -> None:
        self.shared |= {*self.a.inputs, *g.constants(self.a)}

    def over(self) -> bool:
        return time.monotonic() >= self.end or self.stop()

    def round(self, b: g.Graph) -> Compared:
        """Rebuild the first graph, then the second, and compare their outputs."""
        first, second = g.nodes(self.a), g.nodes(b)
        read = {v for n in (*first, *second) for v in n.inputs} | {*self.a.outputs, *b.outputs}
        self.partners = {v: w for v, w in self.partners.items() if v in read}
        self.ahead = len(self.partners) + len(b.outputs)
        for n in first:
            self.take(n)
            self.shared.update(map(self.value, g.results(n)))
        known = set(first)
        for n in second:
            if n not in known:
                self.take(n)
        outputs: list[Proved | Unknown | None] = []
        for x, y in zip(map(self.value, self.a.outputs), b.outputs, strict=True):
            mine = self.value(y)
            self.ahead = max(1, len(b.outputs) - len(outputs))
            if mine is x:
                proofs = [r.verdict for r in self.regions if r.first is x]
                outputs.append(proofs[-1] if proofs else None)
            else:
                outputs.append(self.prove(x, mine))
        return Compared(tuple(outputs), tuple(self.regions))

    def value(self, v: g.Value) -> g.Value:
        return self.made.get(v, v)

    def take(self, n: g.Node) -> None:
        """Rebuild a node, and prove that its results equal their partners."""
        inputs = tuple(None if v is None else self.value(v) for v in n.inputs)
        again = g.intern_node(n.op, inputs, n.attrs, n.types)
        for old, new in zip(g.results(n), g.results(again), strict=True):
            partner = self.value(self.partners.get(old, old))
            self.made[old] = new
            if partner is old or old not in self.partners:
                continue
            self.ahead -= 1
            if new is partner or self.over():
                continue
            verdict = self.prove(partner, new)
            if isinstance(verdict, Proved):
                self.regions.append(Region(partner, old, verdict))
                self.made[old] = partner

    def prove(self, x: g.Value, y: g.Value) -> Proved | Unknown:
        """Prove y == x, from near values first; each attempt may take half of the region's time."""
        left = self.end - time.monotonic()
        share = min(self.patience, max(LEAST, 4 * left / max(self.ahead, 1)))
        end = min(self.end, time.monotonic() + share)
        found: Proved | Unknown | None = None
        for given in self.cuts(x, y):
            left = end - time.monotonic()
            if left <= 0 or self.stop():
                self.late = True
                break
            found = self.said(x, y, given, left / 2)
            if isinstance(found, Proved):
                return found
        return Unknown(OVER, 0.0) if found is None else found

    def said(
        self, x: g.Value, y: g.Value, given: tuple[g.Value, ...], seconds: float
    ) -> Proved | Unknown:
        """Prove y == x for arbitrary given values; the cached verdict for an equal pair."""
        change: dict[g.Value, g.Value] = {
            v: numbered_input(k, v.type, "given") for k, v in enumerate(given)
        }
        first, second = pair = replace_all(g.Graph((), (x, y)), change).outputs
        known, allowed = self.known.get(pair, (None, 0.0))
        limit = replace(self.limits, seconds=min(self.limits.seconds, seconds))
        if known is not None and limit.seconds < 2 * allowed:
            self.late |= allowed < float("inf")
            return known
        until = min(self.end, time.monotonic() + 2 * seconds)
        found = proved_equal(first, second, (), limit, until)
        late = isinstance(found, Unknown) and found.late
        self.late |= late
        self.known[pair] = found, limit.seconds if late else float("inf")
        return found

    def cuts(self, x: g.Value, y: g.Value) -> Iterator[tuple[g.Value, ...]]:
        """Yield the sets of values to be assumed, near ones first; constants as arbitrary, then as
        numbers. A set is skipped unless both values depend on the same part of it: the rest would
        have to vanish."""
        seen: set[tuple[g.Value, ...]] = set()
        for numbers in (False, True):
            for depth in DEPTHS:
                given = tuple(self.near(x, y, depth, numbers))
                last = depth == DEPTHS[-1]
                if given not in seen and (last or _leaves(x, given) == _leaves(y, given)):
                    seen.add(given)
                    yield given

    def near(self, x: g.Value, y: g.Value, depth: int, numbers: bool) -> Iterator[g.Value]:
        """Yield the values of the first graph that cut off both values at this depth, and
        constants; with `numbers` only constants whose numbers are not read anyway."""
        far: dict[g.Value, int] = {x: 0, y: 0}
        front = list(far)
        while front:
            after: list[g.Value] = []
            for v in front:
                if self.cut(v, x, far[v] >= depth, numbers):
                    continue
                for w in g.operands(v):
                    if w not in far:
                        far[w] = far[v] + 1
                        after.append(w)
            front = after
        for v, k in far.items():
            if self.cut(v, x, k >= depth, numbers):
                yield v

    def cut(self, v: g.Value, x: g.Value, deep: bool, numbers: bool) -> bool:
        """True if the value is assumed."""
        if isinstance(v, g.Constant):
            return not (is_written(v) if numbers else is_number(v))
        return deep and v in self.shared and v is not x


def _leaves(v: g.Value, given: tuple[g.Value, ...]) -> set[g.Value]:
    """Return the assumed values and inputs that a value depends on, without constants."""
    ends = set(given)
    stack, seen = [v], {v}
    found: set[g.Value] = set()
    while stack:
        w = stack.pop()
        if w in ends or isinstance(w, g.Input):
            found.add(w)
            continue
        for u in g.operands(w):
            if u not in seen:
                seen.add(u)
                stack.append(u)
    return {w for w in found if not isinstance(w, g.Constant)}
