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

from superopt.ir import graph
from superopt.ir.stand_ins import numbered_input
from superopt.ir.substitute import replace_all
from superopt.verifier.compare.constant_patterns import is_readable, is_uniform_or_exact
from superopt.verifier.compare.sketches import candidate_pairs
from superopt.verifier.compare.value_equality import prove_equal
from superopt.verifier.prove import Limits
from superopt.verifier.verdict import Proved, Unknown

REGION_DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16, 64)  # operators between a value and the cut
ROUND_SECONDS = (0.5, 2.0, 8.0, 60.0)  # seconds for a region, by round
MAX_SKETCH_TIME_SHARE = 0.5  # share of the time for finding candidates
MIN_REGION_SECONDS = 0.05  # seconds for a region
TIME_OVER = "the time is over"
# The verdict on two values over stand-ins, and its seconds; inf if more time would not help.
KnownVerdicts = dict[tuple[graph.Value, ...], tuple[Proved | Unknown, float]]


@dataclass(frozen=True, slots=True)
class Region:
    """A value of the second graph, its partner in the first, and the verdict on their equality."""

    first: graph.Value
    second: graph.Value
    verdict: Proved | Unknown


@dataclass(frozen=True, slots=True)
class GraphComparison:
    """The verdict for each output in order; None if it is the same value. regions: the equalities
    proved on the way."""

    outputs: tuple[Proved | Unknown | None, ...]
    regions: tuple[Region, ...]


def compare_graphs(
    a: graph.Graph,
    b: graph.Graph,
    limits: Limits,
    seconds: float,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> GraphComparison:
    """Prove that the outputs of `b` equal those of `a`. Both graphs have the same inputs.

    limits: of one proof; seconds: of all proofs; stop: called between proofs, True ends the work.
    """
    end = time.monotonic() + seconds
    alike = candidate_pairs(a, b, seed, end - (1 - MAX_SKETCH_TIME_SHARE) * seconds)
    known: KnownVerdicts = {}
    for patience in ROUND_SECONDS:
        work = _Round(a, limits, end, stop, alike, known, patience)
        found = work.run(b)
        if (
            not any(isinstance(v, Unknown) for v in found.outputs)
            or work.is_over()
            or not work.is_out_of_time
        ):
            break
    return found


@dataclass(slots=True)
class _Round:
    """One round: both graphs, rebuilt on shared values of the first.

    known: verdicts on values over stand-ins, of all rounds; regions_left: regions to come;
    is_out_of_time: True if more time might have completed some proof.
    """

    a: graph.Graph
    limits: Limits
    end: float
    stop: Callable[[], bool]
    partners: dict[graph.Value, graph.Value]
    known: KnownVerdicts
    patience: float
    rebuilt: dict[graph.Value, graph.Value] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    shared: set[graph.Value] = field(default_factory=set)
    regions_left: int = 0
    is_out_of_time: bool = False

    def __post_init__(self) -> None:
        self.shared |= {*self.a.inputs, *graph.constants(self.a)}

    def is_over(self) -> bool:
        return time.monotonic() >= self.end or self.stop()

    def run(self, b: graph.Graph) -> GraphComparison:
        """Rebuild the first graph, then the second, and compare their outputs."""
        first, second = graph.nodes(self.a), graph.nodes(b)
        read = {v for n in (*first, *second) for v in n.inputs} | {*self.a.outputs, *b.outputs}
        self.partners = {v: w for v, w in self.partners.items() if v in read}
        self.regions_left = len(self.partners) + len(b.outputs)
        for n in first:
            self.rebuild(n)
            self.shared.update(map(self.rebuilt_value, graph.results(n)))
        known = set(first)
        for n in second:
            if n not in known:
                self.rebuild(n)
        outputs: list[Proved | Unknown | None] = []
        for x, y in zip(map(self.rebuilt_value, self.a.outputs), b.outputs, strict=True):
            mine = self.rebuilt_value(y)
            self.regions_left = max(1, len(b.outputs) - len(outputs))
            if mine is x:
                proofs = [r.verdict for r in self.regions if r.first is x]
                outputs.append(proofs[-1] if proofs else None)
            else:
                outputs.append(self.prove(x, mine))
        return GraphComparison(tuple(outputs), tuple(self.regions))

    def rebuilt_value(self, v: graph.Value) -> graph.Value:
        return self.rebuilt.get(v, v)

    def rebuild(self, n: graph.Node) -> None:
        """Rebuild a node, and prove that its results equal their partners."""
        inputs = tuple(None if v is None else self.rebuilt_value(v) for v in n.inputs)
        again = graph.intern_node(n.op, inputs, n.attrs, n.types)
        for old, new in zip(graph.results(n), graph.results(again), strict=True):
            partner = self.rebuilt_value(self.partners.get(old, old))
            self.rebuilt[old] = new
            if partner is old or old not in self.partners:
                continue
            self.regions_left -= 1
            if new is partner or self.is_over():
                continue
            verdict = self.prove(partner, new)
            if isinstance(verdict, Proved):
                self.regions.append(Region(partner, old, verdict))
                self.rebuilt[old] = partner

    def prove(self, x: graph.Value, y: graph.Value) -> Proved | Unknown:
        """Prove y == x, from near values first; each attempt may take half of the region's time."""
        left = self.end - time.monotonic()
        share = min(self.patience, max(MIN_REGION_SECONDS, 4 * left / max(self.regions_left, 1)))
        end = min(self.end, time.monotonic() + share)
        found: Proved | Unknown | None = None
        for given in self.candidate_cuts(x, y):
            left = end - time.monotonic()
            if left <= 0 or self.stop():
                self.is_out_of_time = True
                break
            found = self.prove_over_stand_ins(x, y, given, left / 2)
            if isinstance(found, Proved):
                return found
        return Unknown(TIME_OVER, 0.0) if found is None else found

    def prove_over_stand_ins(
        self, x: graph.Value, y: graph.Value, given: tuple[graph.Value, ...], seconds: float
    ) -> Proved | Unknown:
        """Prove y == x for arbitrary given values; the cached verdict for an equal pair."""
        change: dict[graph.Value, graph.Value] = {
            v: numbered_input(k, v.type, "given") for k, v in enumerate(given)
        }
        first, second = pair = replace_all(graph.Graph((), (x, y)), change).outputs
        known, allowed = self.known.get(pair, (None, 0.0))
        limit = replace(self.limits, seconds=min(self.limits.seconds, seconds))
        if known is not None and limit.seconds < 2 * allowed:
            self.is_out_of_time |= allowed < float("inf")
            return known
        until = min(self.end, time.monotonic() + 2 * seconds)
        found = prove_equal(first, second, (), limit, until)
        late = isinstance(found, Unknown) and found.is_out_of_budget
        self.is_out_of_time |= late
        self.known[pair] = found, limit.seconds if late else float("inf")
        return found

    def candidate_cuts(self, x: graph.Value, y: graph.Value) -> Iterator[tuple[graph.Value, ...]]:
        """Yield the sets of values to be assumed, near ones first; constants as arbitrary, then as
        numbers. A set is skipped unless both values depend on the same part of it: the rest would
        have to vanish."""
        seen: set[tuple[graph.Value, ...]] = set()
        for numbers in (False, True):
            for depth in REGION_DEPTHS:
                given = tuple(self.cut_values(x, y, depth, numbers))
                last = depth == REGION_DEPTHS[-1]
                if given not in seen and (last or _leaves(x, given) == _leaves(y, given)):
                    seen.add(given)
                    yield given

    def cut_values(
        self, x: graph.Value, y: graph.Value, depth: int, numbers: bool
    ) -> Iterator[graph.Value]:
        """Yield the values of the first graph that cut off both values at this depth, and
        constants; with `numbers` only constants whose numbers are not read anyway."""
        distances: dict[graph.Value, int] = {x: 0, y: 0}
        front = list(distances)
        while front:
            after: list[graph.Value] = []
            for v in front:
                if self.is_cut(v, x, distances[v] >= depth, numbers):
                    continue
                for w in graph.operands(v):
                    if w not in distances:
                        distances[w] = distances[v] + 1
                        after.append(w)
            front = after
        for v, k in distances.items():
            if self.is_cut(v, x, k >= depth, numbers):
                yield v

    def is_cut(self, v: graph.Value, x: graph.Value, is_deep: bool, numbers: bool) -> bool:
        """True if the value is assumed."""
        if isinstance(v, graph.Constant):
            return not (is_readable(v) if numbers else is_uniform_or_exact(v))
        return is_deep and v in self.shared and v is not x


def _leaves(v: graph.Value, given: tuple[graph.Value, ...]) -> set[graph.Value]:
    """Return the assumed values and inputs that a value depends on, without constants."""
    ends = set(given)
    stack, seen = [v], {v}
    found: set[graph.Value] = set()
    while stack:
        w = stack.pop()
        if w in ends or isinstance(w, graph.Input):
            found.add(w)
            continue
        for u in graph.operands(w):
            if u not in seen:
                seen.add(u)
                stack.append(u)
    return {w for w in found if not isinstance(w, graph.Constant)}
