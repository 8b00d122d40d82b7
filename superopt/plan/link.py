"""Link the programs of the parts of a graph with loops, and of each loop body, into one program,
and assign their buffers.

Parts between loops are separate programs. Values that cross parts live in the memory of the whole
program; results of the graph are written directly to their arguments. The memory of a part is its
own only while it runs, except for borders that must stay zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from superopt.ir import graph as g
from superopt.kernels.calls import Call, Loop, Ref
from superopt.plan.build import Program
from superopt.plan.loop_buffers import Buffers, buffers, nbytes
from superopt.plan.loops import LOOP, repeat
from superopt.plan.memory import ALIGNED, Life, offsets
from superopt.plan.origins import Origins
from superopt.plan.pack_constants import Held
from superopt.plan.scatters import SCATTER, scatter_program
from superopt.plan.segments import Segment, graph_of, segments
from superopt.te.expr import Tensor

Plan = Callable[[g.Graph, bool, tuple[int, ...]], Program]
UNPLANNED = (LOOP, SCATTER)  # nodes without a tensor expression


def linked(
    graph: g.Graph, plan: Plan, sizes: Mapping[str, int], decided: tuple[int, ...] = ()
) -> Program:
    """Return the program of a graph that may have loop nodes with static shapes.

    plan: returns the program of a graph without loops, given whether it is a loop body, and the
    indices of outputs on which outside discontinuous operators depend (ir/rounding_sensitive.py).
    sizes: those of symbols in shapes. sensitive_outputs: these outputs of `graph`.

    Raises NotImplementedError if a part has no kernel.
    """
    if not any(n.op in UNPLANNED for n in g.nodes(graph)):
        return plan(graph, False, decided)
    return _Linker(graph, plan, sizes, decided).program()


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A program. arguments: the values or places of its arguments, inputs before outputs; for a
    loop body these are in `loop`."""

    program: Program
    given: tuple[g.Value | Ref, ...] = ()
    loop: Buffers | None = None

    def values(self) -> Iterator[g.Value]:
        """Yield the values that must be in memory while it runs."""
        if self.loop is not None:
            yield from self.loop.values()
        yield from (v for v in self.given if not isinstance(v, Ref))


@dataclass(slots=True)
class _Linker:
    """stages: lists of parts, run in order; the loops of one stage are independent. places: those
    of values."""

    graph: g.Graph
    plan: Plan
    sizes: Mapping[str, int]
    decided: tuple[int, ...] = ()
    stages: list[list[_Part]] = field(default_factory=list)
    where: dict[g.Value, Ref] = field(default_factory=dict)
    constants: list[Held] = field(default_factory=list)
    constant_bytes: int = 0

    def program(self) -> Program:
        self.plan_parts()
        lives = self.lives()
        places, memory, _, kept = offsets([*lives.values()])
        base = dict(zip(lives, places, strict=True))
        self.where |= {
            v: Ref("memory", at) for v, at in base.items() if isinstance(v, g.Node | g.Item)
        }
        calls: list[Call | Loop] = []
        solved: list[str] = []
        results: list[Tensor] = []
        bodies: dict[int, tuple[Program, ...]] = {}
        for stage in self.stages:
            lanes = [tuple(self.relocated(p, base)) for p in stage]
            first = stage[0]
            if first.loop is None:
                calls += lanes[0]
                solved += first.program.solved
                results += first.program.results
                continue
            bodies[len(calls)] = tuple(p.program for p in stage)
            # steps that share memory run sequentially
            parallel = not any((p.loop and p.loop.what.states) or p.program.memory for p in stage)
            calls.append(Loop(first.loop.what.steps, tuple(lanes), parallel))
            solved.append("")
            results.append(first.program.results[-1])
            for how in (p.loop for p in stage if p.loop is not None):
                finals = [how.final(c, self.where.__getitem__) for c in how.carriers]
                self.where |= dict(zip(g.results(how.node), finals, strict=False))
        parts = [p.program for p in chain(*self.stages)]
        return Program(
            {name: k for p in parts for name, k in p.kernels.items()},
            tuple(calls), tuple(self.constants), self.constant_bytes, memory, kept,
            max((p.workspace for p in parts), default=0),
            {key: x for p in parts for key, x in p.problems.items()},
            {key: x for p in parts for key, x in p.options.items()},
            tuple(solved), tuple(results), _origins(self.graph, parts), bodies=bodies,
        )  # fmt: skip

    def plan_parts(self) -> None:
        """Plan the programs of all parts, in execution order."""
        graph = self.graph
        self.where |= {v: Ref("argument", n) for n, v in enumerate(graph.inputs)}
        copied: list[tuple[g.Value, Ref]] = []
        for n, v in enumerate(graph.outputs):
            to = Ref("argument", len(graph.inputs) + n)
            if v in self.where or isinstance(v, g.Constant) or _is_state(v):
                copied.append((v, to))
            else:
                self.where[v] = to
        for s in segments(graph, lambda n: n.op not in UNPLANNED, self.decided):
            if s.native:
                made = self.plan(graph_of(s), False, s.decided)
                self.stages.append([_Part(made, (*s.inputs, *s.outputs))])
            else:
                self.stages += self.unplanned_stages(s)
        if copied:
            fresh = tuple(g.Input(f"copied{n}", v.type) for n, (v, _) in enumerate(copied))
            values, places = zip(*copied, strict=True)
            self.stages.append(
                [_Part(self.plan(g.Graph(fresh, fresh), False, ()), (*values, *places))]
            )

    def unplanned_stages(self, s: Segment) -> Iterator[list[_Part]]:
        """Yield the stages of a segment's scatters and loops. Loops of a stage have the same number
        of steps and do not depend on each other."""
        left = list(s.nodes)
        while left:
            made = {v: n for n in left for v in g.results(n)}
            ready = [n for n in left if not any(v in made for v in n.inputs)]
            # loops with states come last, so that more of them are ready at once
            first = min(ready, key=_has_states)
            if first.op is LOOP:
                loops = [n for n in ready if n.op is LOOP]
                stage = [n for n in loops if repeat(n).steps == repeat(first).steps]
                yield [self.loop_part(n, s) for n in stage]
            else:
                stage = [first]
                operands = tuple(v for v in first.inputs if v is not None)
                yield [_Part(scatter_program(first), (*operands, *g.results(first)))]
            left = [n for n in left if n not in stage]

    def loop_part(self, n: g.Node, s: Segment) -> _Part:
        wanted = {*s.outputs, *(v for m in s.nodes for v in m.inputs)}
        how = buffers(n, {v for v in g.results(n) if v in wanted})
        return _Part(self.plan(g.Graph(how.what.body.inputs, how.outputs), True, ()), (), how)

    def loops(self) -> Iterator[Buffers]:
        yield from (p.loop for p in chain(*self.stages) if p.loop is not None)

    def lives(self) -> dict[object, Life]:
        """Return the buffers in memory with their lifetimes in stage numbers: those of values, and
        each part's own memory."""
        owner: dict[g.Value, g.Value] = {}  # of a state that shares another buffer
        twice: set[g.Value] = set()
        for how in self.loops():
            owner |= dict(zip(g.results(how.node), how.carriers, strict=False))
            twice |= {c for c in how.carriers if how.alternates(c)}
        used: dict[g.Value, list[int]] = {}
        out: dict[object, Life] = {}
        for n, stage in enumerate(self.stages):
            for p in stage:
                out[p, "kept"] = Life(p.program.kept, n, n, p)
                out[p] = Life(p.program.memory - p.program.kept, n, n)
                for v in p.values():
                    used.setdefault(owner.get(v, v), []).append(n)
        for v, some in used.items():
            if isinstance(v, g.Constant):
                self.hold(v)
            elif v not in self.where:
                out[v] = Life(nbytes(v, self.sizes) * (1 + (v in twice)), min(some), max(some))
        return out

    def hold(self, c: g.Constant) -> None:
        """Add a constant that a loop or a copy reads unpacked."""
        self.where[c] = Ref("constant", self.constant_bytes)
        self.constants.append(Held(self.constant_bytes, c.type, c.load, None))
        self.constant_bytes += _rounded(nbytes(c))

    def relocated(self, part: _Part, base: Mapping[object, int]) -> Iterator[Call]:
        """Yield the calls of a part with buffers relocated to the whole program."""
        own, held = part.program, self.constant_bytes
        self.constants += [replace(c, at=c.at + held) for c in own.constants]
        self.constant_bytes += _rounded(own.constant_bytes)
        where = self.where.__getitem__
        if part.loop is None:
            given = [v if isinstance(v, Ref) else where(v) for v in part.given]
        else:
            given = [*part.loop.arguments(where)]

        def moved(r: Ref) -> Ref:
            if r.place == "argument":
                return given[r.at]
            if r.place == "constant":
                return replace(r, at=r.at + held)
            if r.at < own.kept:
                return replace(r, at=r.at + base[part, "kept"])
            return replace(r, at=r.at - own.kept + base[part])

        for call in own.calls:
            assert isinstance(call, Call)  # a part has no nested loops
            yield replace(call, given=tuple(map(moved, call.given)))


def _has_states(n: g.Node) -> bool:
    return n.op is LOOP and repeat(n).states > 0


def _is_state(v: g.Value) -> bool:
    """True for the final state of a loop."""
    n = g.producer(v)
    return n is not None and n.op is LOOP and v in g.results(n)[: repeat(n).states]


def _origins(graph: g.Graph, parts: Sequence[Program]) -> Origins:
    some = [p.origins for p in parts if p.origins is not None]
    return Origins(
        graph,
        {t: x for o in some for t, x in o.current.items()},
        {t: n for o in some for t, n in o.nodes.items()},
        {t: v for o in some for t, v in o.values.items()},
    )


def _rounded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
