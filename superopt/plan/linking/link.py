"""Link the programs of the parts of a graph with loops, and of each loop body, into one program,
and assign their buffers.

Parts between loops are separate programs. Values that cross parts live in the memory of the whole
program; results of the graph are written directly to their arguments. The memory of a part is its
own only while it runs, except for borders that must stay zero.

Where sizes are symbolic, the words of the parts become words of the whole program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from superopt.ir import graph as ir_graph
from superopt.kernels.llvm.calls import Call, Loop, Ref
from superopt.plan.graph.loop_node import LOOP_OP, loop_spec
from superopt.plan.graph.partition import Segment, partition, segment_graph
from superopt.plan.graph.scatter_nodes import SCATTER_OP, scatter_program
from superopt.plan.linking.loop_buffers import LoopBuffers, loop_buffers, nbytes
from superopt.plan.lowering.provenance import Provenance
from superopt.plan.program.buffer_assignment import ALIGNMENT_BYTES, BufferLife, assign_offsets
from superopt.plan.program.pack_constants import ConstantSlot
from superopt.plan.program.program import Program, SymbolicSizes
from superopt.plan.program.symbolic_buffers import SymbolicLife, Words, assign_slots
from superopt.te.expr import index
from superopt.te.expr.node import Size
from superopt.te.expr.symbolic_int import example_sizes, extent, hint, is_symbolic
from superopt.te.expr.tensor import Tensor

PlanFunction = Callable[[ir_graph.Graph, bool, tuple[int, ...]], Program]
SPECIAL_OPS = (LOOP_OP, SCATTER_OP)  # nodes without a tensor expression


def is_linked(graph: ir_graph.Graph) -> bool:
    """True if the program of a graph is linked of those of parts."""
    return any(n.op in SPECIAL_OPS for n in ir_graph.nodes(graph))


def link_program(
    graph: ir_graph.Graph,
    plan: PlanFunction,
    sizes: Mapping[str, int],
    sensitive_outputs: tuple[int, ...] = (),
) -> Program:
    """Return the program of a graph that may have loop nodes.

    plan: returns the program of a graph without loops, given whether it is a loop body, and the
    indices of outputs on which outside discontinuous operators depend (ir/rounding_sensitive.py).
    sizes: those of symbols in shapes; none where they are symbolic. sensitive_outputs: these
    outputs of `graph`.

    Raises NotImplementedError if a part has no kernel.
    """
    if not is_linked(graph):
        return plan(graph, False, sensitive_outputs)
    return _Linker(graph, plan, sizes, sensitive_outputs).program()


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A program. arguments: the values or places of its arguments, inputs before outputs; for a
    loop body these are in `loop`."""

    program: Program
    arguments: tuple[ir_graph.Value | Ref, ...] = ()
    loop: LoopBuffers | None = None

    def values(self) -> Iterator[ir_graph.Value]:
        """Yield the values that must be in memory while it runs."""
        if self.loop is not None:
            yield from self.loop.values()
        yield from (v for v in self.arguments if not isinstance(v, Ref))


@dataclass(slots=True)
class _Linker:
    """stages: lists of parts, run in order; the loops of one stage are independent. places: those
    of values."""

    graph: ir_graph.Graph
    plan: PlanFunction
    sizes: Mapping[str, int]
    sensitive_outputs: tuple[int, ...] = ()
    stages: list[list[_Part]] = field(default_factory=list)
    places: dict[ir_graph.Value, Ref] = field(default_factory=dict)
    constants: list[ConstantSlot] = field(default_factory=list)
    constant_bytes: int = 0
    words: Words = field(init=False)

    def __post_init__(self) -> None:
        self.words = Words([Size(name) for name in example_sizes()])

    def program(self) -> Program:
        self.plan_parts()
        lives = self.buffer_lives()
        places, memory, kept = _assign_memory([*lives.values()])
        base = dict(zip(lives, places, strict=True))
        self.places |= {
            v: Ref("memory", 0, at) if is_symbolic(at) else Ref("memory", at)
            for v, at in base.items()
            if isinstance(v, ir_graph.Node | ir_graph.Item)
        }
        calls: list[Call | Loop] = []
        solved: list[str] = []
        results: list[Tensor] = []
        bodies: dict[int, tuple[Program, ...]] = {}
        for stage in self.stages:
            lanes = [tuple(self.relocate_calls(p, base)) for p in stage]
            first = stage[0]
            if first.loop is None:
                calls += lanes[0]
                solved += first.program.call_problems
                results += first.program.call_results
                continue
            bodies[len(calls)] = tuple(p.program for p in stage)
            # steps that share memory run sequentially
            parallel = not any((p.loop and p.loop.spec.states) or _has_memory(p) for p in stage)
            calls.append(self.loop_call(extent(first.loop.spec.steps), tuple(lanes), parallel))
            solved.append("")
            results.append(first.program.call_results[-1])
            for how in (p.loop for p in stage if p.loop is not None):
                finals = [how.final_place(c, self.places.__getitem__) for c in how.carriers]
                self.places |= dict(zip(ir_graph.results(how.node), finals, strict=False))
        parts = [p.program for p in chain(*self.stages)]
        workspace = _greatest([program_sizes(p)[1] for p in parts])
        symbolic = None
        if example_sizes():
            symbolic = SymbolicSizes(
                tuple(example_sizes()), tuple(self.words.values), self.words_argument,
                index.as_index(memory), index.as_index(workspace),
            )  # fmt: skip
            memory = workspace = 0
        return Program(
            {name: k for p in parts for name, k in p.kernels.items()},
            tuple(calls), tuple(self.constants), self.constant_bytes, memory, kept, workspace,
            {key: x for p in parts for key, x in p.problems.items()},
            {key: x for p in parts for key, x in p.options.items()},
            tuple(solved), tuple(results), _merge_provenance(self.graph, parts), loop_bodies=bodies,
            symbolic=symbolic,
        )  # fmt: skip

    @property
    def words_argument(self) -> int:
        """The number of the argument that has the words of symbolic sizes."""
        return len(self.graph.inputs) + len(self.graph.outputs)

    def loop_call(self, steps: int, lanes: tuple[tuple[Call, ...], ...], parallel: bool) -> Loop:
        """Return the call of a loop. Raises NotImplementedError if it has no steps."""
        if steps < 1:
            raise NotImplementedError("a loop without steps")
        if not is_symbolic(steps):
            return Loop(steps, lanes, parallel)
        chunks = self.word(len(lanes) * steps) if parallel else None
        return Loop(hint(steps), lanes, parallel, self.word(steps), chunks)

    def word(self, n: int) -> int:
        """Return the number of the word that has a value."""
        return self.words.number(index.as_index(n))

    def plan_parts(self) -> None:
        """Plan the programs of all parts, in execution order."""
        graph = self.graph
        self.places |= {v: Ref("argument", n) for n, v in enumerate(graph.inputs)}
        copied: list[tuple[ir_graph.Value, Ref]] = []
        for n, v in enumerate(graph.outputs):
            to = Ref("argument", len(graph.inputs) + n)
            if v in self.places or isinstance(v, ir_graph.Constant) or _is_final_state(v):
                copied.append((v, to))
            else:
                self.places[v] = to
        for s in partition(graph, lambda n: n.op not in SPECIAL_OPS, self.sensitive_outputs):
            if s.native:
                made = self.plan(segment_graph(s), False, s.sensitive_outputs)
                self.stages.append([_Part(made, (*s.inputs, *s.outputs))])
            else:
                self.stages += self.special_stages(s)
        if copied:
            fresh = tuple(ir_graph.Input(f"copied{n}", v.type) for n, (v, _) in enumerate(copied))
            values, places = zip(*copied, strict=True)
            self.stages.append(
                [_Part(self.plan(ir_graph.Graph(fresh, fresh), False, ()), (*values, *places))]
            )

    def special_stages(self, s: Segment) -> Iterator[list[_Part]]:
        """Yield the stages of a segment's scatters and loops. Loops of a stage have the same number
        of steps and do not depend on each other."""
        left = list(s.nodes)
        while left:
            made = {v: n for n in left for v in ir_graph.results(n)}
            ready = [n for n in left if not any(v in made for v in n.inputs)]
            # loops with states come last, so that more of them are ready at once
            first = min(ready, key=_has_states)
            if first.op is LOOP_OP:
                loops = [n for n in ready if n.op is LOOP_OP]
                stage = [n for n in loops if loop_spec(n).steps == loop_spec(first).steps]
                yield [self.loop_part(n, s) for n in stage]
            else:
                stage = [first]
                operands = tuple(v for v in first.inputs if v is not None)
                yield [_Part(scatter_program(first), (*operands, *ir_graph.results(first)))]
            left = [n for n in left if n not in stage]

    def loop_part(self, n: ir_graph.Node, s: Segment) -> _Part:
        wanted = {*s.outputs, *(v for m in s.nodes for v in m.inputs)}
        how = loop_buffers(n, {v for v in ir_graph.results(n) if v in wanted})
        return _Part(
            self.plan(ir_graph.Graph(how.spec.body.inputs, how.outputs), True, ()), (), how
        )

    def loops(self) -> Iterator[LoopBuffers]:
        yield from (p.loop for p in chain(*self.stages) if p.loop is not None)

    def buffer_lives(self) -> dict[object, BufferLife]:
        """Return the buffers in memory with their lifetimes in stage numbers: those of values, and
        each part's own memory."""
        owner: dict[ir_graph.Value, ir_graph.Value] = {}  # of a state that shares another buffer
        twice: set[ir_graph.Value] = set()
        for how in self.loops():
            owner |= dict(zip(ir_graph.results(how.node), how.carriers, strict=False))
            twice |= {c for c in how.carriers if how.is_double_buffered(c)}
        used: dict[ir_graph.Value, list[int]] = {}
        out: dict[object, BufferLife] = {}
        for n, stage in enumerate(self.stages):
            for p in stage:
                out[p, "kept"] = BufferLife(p.program.border_bytes, n, n, p)
                memory, _ = program_sizes(p.program)
                out[p] = BufferLife(memory - p.program.border_bytes, n, n)
                for v in p.values():
                    used.setdefault(owner.get(v, v), []).append(n)
        for v, some in used.items():
            if isinstance(v, ir_graph.Constant):
                self.add_constant(v)
            elif v not in self.places:
                out[v] = BufferLife(
                    nbytes(v, self.sizes) * (1 + (v in twice)), min(some), max(some)
                )
        return out

    def add_constant(self, c: ir_graph.Constant) -> None:
        """Add a constant that a loop or a copy reads unpacked."""
        self.places[c] = Ref("constant", self.constant_bytes)
        self.constants.append(ConstantSlot(self.constant_bytes, c.type, c.load, None))
        self.constant_bytes += _round_up(nbytes(c))

    def relocate_calls(self, part: _Part, base: Mapping[object, int]) -> Iterator[Call]:
        """Yield the calls of a part with buffers relocated to the whole program."""
        own, held = part.program, self.constant_bytes
        words = own.symbolic.words if own.symbolic is not None else ()
        self.constants += [replace(c, offset=c.offset + held) for c in own.constants]
        self.constant_bytes += _round_up(own.constant_bytes)
        where = self.places.__getitem__
        if part.loop is None:
            given = [v if isinstance(v, Ref) else where(v) for v in part.arguments]
        else:
            given = [*part.loop.arguments(where)]

        def moved(r: Ref) -> Ref:
            if own.symbolic is not None and r == Ref("argument", own.symbolic.argument):
                return replace(r, position=self.words_argument)
            if r.region == "argument":
                assert r.offset == 0
                return given[r.position]
            if r.region == "word":
                at = base[part] + extent(words[r.position])
                return replace(r, region="memory", position=0, offset=at + r.offset)
            if r.region == "constant":
                return replace(r, position=r.position + held)
            if r.position < own.border_bytes:
                return replace(r, position=r.position + base[part, "kept"])
            return replace(r, position=r.position - own.border_bytes + base[part])

        for call in own.calls:
            assert isinstance(call, Call)  # a part has no nested loops
            arguments = tuple(self.with_words(moved(r)) for r in call.arguments)
            count = call.chunk_word
            count = None if count is None else self.words.number(words[count])
            yield replace(call, arguments=arguments, chunk_word=count)

    def with_words(self, r: Ref) -> Ref:
        """Return the address with words in place of symbolic integers."""

        parts = {k: getattr(r, k) for k in ("offset", "stride", "toggle", "max_offset")}
        found: dict[str, Any] = {k: self.word(n) for k, n in parts.items() if is_symbolic(n)}
        initial = None if r.initial is None else self.with_words(r.initial)
        return replace(r, **found, words=frozenset(found), initial=initial)


def program_sizes(p: Program) -> tuple[int, int]:
    """Return the bytes of a program's memory, and of each workspace."""
    if p.symbolic is None:
        return p.memory_bytes, p.workspace_bytes
    return extent(p.symbolic.memory_bytes), extent(p.symbolic.workspace_bytes)


def _has_memory(p: _Part) -> bool:
    memory, _ = program_sizes(p.program)
    return is_symbolic(memory) or memory > 0


def _greatest(some: Sequence[int]) -> int:
    """Return the greatest of integers that may be symbolic."""
    if not any(map(is_symbolic, some)):
        return max(some, default=0)
    found = index.as_index(0)
    for n in some:
        found = index.apply("max", (found, index.as_index(n)), found.dtype)
    return extent(found)


def _assign_memory(lives: Sequence[BufferLife]) -> tuple[list[int], int, int]:
    """Return the offset of each buffer, the total bytes, and those, which come first, of borders
    that stay zero."""
    if not example_sizes():
        offsets, memory, _, kept = assign_offsets(lives)
        return offsets, memory, kept
    places, end = assign_slots([SymbolicLife(x.bytes, x.first, x.last) for x in lives])
    return [extent(at) for at in places], extent(end), 0


def _has_states(n: ir_graph.Node) -> bool:
    return n.op is LOOP_OP and loop_spec(n).states > 0


def _is_final_state(v: ir_graph.Value) -> bool:
    """True for the final state of a loop."""
    n = ir_graph.producer(v)
    return n is not None and n.op is LOOP_OP and v in ir_graph.results(n)[: loop_spec(n).states]


def _merge_provenance(graph: ir_graph.Graph, parts: Sequence[Program]) -> Provenance:
    some = [p.provenance for p in parts if p.provenance is not None]
    return Provenance(
        graph,
        {t: x for o in some for t, x in o.current.items()},
        {t: n for o in some for t, n in o.nodes.items()},
        {t: v for o in some for t, v in o.values.items()},
    )


def _round_up(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
