"""The steps of a search repeated without some of them, and without those that depend on them.

Two replays run side by side: of all steps, and of those that are kept. `counterparts` maps each
value of the first graph to the one of the second that computes the same. A kept step is matched
again where its values are in the second graph; if its rule does not match there, it depends on a
step that was left out, and is left out, too.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby

from superopt.ir import graph as ir_graph
from superopt.ir.substitute import ReplacementCycle, substitute_values
from superopt.rules.lang.rule import Rule
from superopt.rules.match.graph_context import GraphContext, graph_context
from superopt.rules.match.matcher import matches
from superopt.rules.match.rewrite import Refusal, rewrite
from superopt.search.move import Step

Change = Mapping[ir_graph.Value, ir_graph.Value]
Values = dict[ir_graph.Value, ir_graph.Value]


@dataclass(frozen=True, slots=True)
class PartialReplay:
    """The graph after the steps that are kept. dependent: the numbers (from 0) of the steps that
    were left out since they depend on others."""

    graph: ir_graph.Graph
    dependent: tuple[int, ...]


class NotReplayable(Exception):
    """The steps do not lead from one graph to the next when they are applied again."""


@dataclass(frozen=True, slots=True)
class _Round:
    """The numbers of the steps of a round; the values after it by those before, as all steps leave
    them; and the values of the graph after it."""

    numbers: tuple[int, ...]
    now: Values
    live: frozenset[ir_graph.Value]


@dataclass(slots=True)
class StepReplay:
    """Replays subsets of the steps of a search. rules: by name. Raises NotReplayable."""

    steps: Sequence[Step]
    rules: Mapping[str, Rule]
    _rounds: list[_Round] = field(init=False)

    def __post_init__(self) -> None:
        self._rounds = []
        numbers = range(len(self.steps))
        for _, group in groupby(numbers, key=self._graphs_of):
            some = tuple(group)
            before, after = self.steps[some[0]].before, self.steps[some[0]].after
            change = {v: w for n in some for v, w in self.steps[n].change.items()}
            now = substitute_values(_with_results(before, change.values()), change)[1]
            if tuple(now[v] for v in before.outputs) != after.outputs:
                raise NotReplayable(f"step {some[0] + 1}, {self.steps[some[0]].rule}")
            self._rounds.append(_Round(some, now, frozenset(_all_values(after))))

    def _graphs_of(self, n: int) -> tuple[int, int]:
        return id(self.steps[n].before), id(self.steps[n].after)

    def leave_out(self, left_out: AbstractSet[int]) -> PartialReplay:
        """Return the graph after all steps but these (by number, from 0), and but those that depend
        on them."""
        dependent: list[int] = []
        second: _SecondGraph | None = None
        for each in self._rounds:
            if second is None:
                if left_out.isdisjoint(each.numbers):
                    continue
                before = self.steps[each.numbers[0]].before
                second = _SecondGraph(before, {v: v for v in _all_values(before)})
            dependent += second.repeat(
                {n: self.steps[n] for n in each.numbers}, left_out, self.rules, each
            )
        graph = self.steps[-1].after if second is None else second.graph
        return PartialReplay(graph, tuple(sorted(dependent)))


@dataclass(slots=True)
class _SecondGraph:
    """The graph of the kept steps; counterparts: its values for those of the other graph."""

    graph: ir_graph.Graph
    counterparts: Values

    def repeat(
        self,
        steps: Mapping[int, Step],
        left_out: Collection[int],
        rules: Mapping[str, Rule],
        all_steps: _Round,
    ) -> list[int]:
        """Repeat the steps of a round that are not left out; return those that cannot be."""
        ctx = graph_context(self.graph)
        kept: dict[int, Change] = {}
        dependent: list[int] = []
        for n, s in steps.items():
            if n in left_out:
                continue
            change = self._matched_change(ctx, s, rules[s.rule])
            if change is None:
                dependent.append(n)
            else:
                kept[n] = change
        whole = _with_results(self.graph, self.counterparts.values())
        while True:
            change = {v: w for some in kept.values() for v, w in some.items()}
            try:
                mine = substitute_values(whole, change)[1]
                break
            except ReplacementCycle:
                dependent.append(kept.popitem()[0])
        self._advance(all_steps, {v for s in steps.values() for v in s.change}, mine)
        return dependent

    def _matched_change(self, ctx: GraphContext, s: Step, rule: Rule) -> Change | None:
        """Return what a step replaces here; None if its rule does not match."""
        exact = {self.counterparts.get(v): self._counterpart(w) for v, w in s.change.items()}
        near = {n for v in exact if v is not None and (n := ir_graph.producer(v)) in ctx.position}
        if None in exact or len(exact) < len(s.change) or not near:
            return None
        if exact == s.change:
            return s.change  # the same terms, which the rule matched
        other: Change | None = None
        for m in matches(rule, ctx, near):
            change = rewrite(m, ctx)
            if isinstance(change, Refusal):
                continue
            if change == exact:
                return change
            if other is None and change.keys() == exact.keys():
                other = change
        return other

    def _counterpart(self, v: ir_graph.Value) -> ir_graph.Value | None:
        """Return the value here that stands for one of a step's result; None if it reads a value
        that is not here."""
        made: Values = {}

        def find(i: ir_graph.Value) -> ir_graph.Value | None:
            found = self.counterparts.get(i, made.get(i))
            return i if found is None and isinstance(i, ir_graph.Constant) else found

        known: Container[ir_graph.Node] = self.counterparts.keys()  # type: ignore[assignment]
        for n in ir_graph.nodes([v], known):
            if all(r in self.counterparts for r in ir_graph.results(n)):
                continue
            inputs = tuple([None if i is None else find(i) for i in n.inputs])
            if any(a is None and b is not None for a, b in zip(inputs, n.inputs, strict=True)):
                return None
            new = ir_graph.intern_node(n.op, inputs, n.attrs, n.types)
            made |= zip(ir_graph.results(n), ir_graph.results(new), strict=True)
        return find(v)

    def _advance(
        self, all_steps: _Round, replaced: Collection[ir_graph.Value], mine: Values
    ) -> None:
        """Go to the graph after the round. mine: the values after it by those before."""
        made: Values = {}
        roots: Values = {}
        for v, after in all_steps.now.items():
            own = self.counterparts.get(v) or self._counterpart(v)
            if after in all_steps.live and own is not None and own in mine:
                # The result of a step may be a value that was there before: that one's counterpart
                # counts.
                (roots if v in replaced else made).setdefault(after, mine[own])
        self.counterparts = {**roots, **made}
        outputs = tuple(mine[v] for v in self.graph.outputs)
        self.graph = ir_graph.Graph(self.graph.inputs, outputs)


def _all_values(graph: ir_graph.Graph) -> list[ir_graph.Value]:
    """Return the inputs of a graph, and what its nodes compute."""
    return [*graph.inputs, *ir_graph.walk(graph)]


def _with_results(graph: ir_graph.Graph, values: Iterable[ir_graph.Value]) -> ir_graph.Graph:
    """Return a graph whose outputs are those of a graph, all that its nodes compute, and values."""
    outputs = (*graph.outputs, *ir_graph.walk(graph), *values)
    return ir_graph.Graph(graph.inputs, tuple(dict.fromkeys(outputs)))
