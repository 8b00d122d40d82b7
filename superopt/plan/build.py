"""Plan a graph as a program: kernels, their order, and the offsets of their buffers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from math import prod

from superopt.ir import graph as g
from superopt.kernels import border
from superopt.kernels.built import built, operands
from superopt.kernels.calls import Call, Loop, Ref, kernel_calls
from superopt.kernels.contraction import REGISTERS
from superopt.kernels.cpu_text import chunks, workspace
from superopt.kernels.identity import computation, identity
from superopt.kernels.layout import Layout, Scatter, row_major
from superopt.kernels.option import Option
from superopt.kernels.problem import Choice, Problem
from superopt.kernels.tile import Kernel
from superopt.plan.across import AxisOrder, across
from superopt.plan.attention import attention
from superopt.plan.by_channel import by_channel
from superopt.plan.cells import celled, cells
from superopt.plan.divided import divided
from superopt.plan.gated import gated, gates
from superopt.plan.in_parts import in_parts
from superopt.plan.inline import in_order, inlined, settled
from superopt.plan.knit import knitted, uncast
from superopt.plan.masks import compared
from superopt.plan.memory import ALIGNED, Life, offsets
from superopt.plan.origins import Origins, origins
from superopt.plan.outputs import copied, outputs_of, stay
from superopt.plan.pack_constants import Held, layout_key
from superopt.plan.patch import patched
from superopt.plan.phases import Phase
from superopt.plan.place import apart
from superopt.plan.products import few, turned
from superopt.plan.reading import Kept, reading
from superopt.plan.rows import rows
from superopt.plan.scaled import unscaled
from superopt.plan.streams import Order, in_use
from superopt.plan.target import CPU, Target
from superopt.plan.tensors import Tensors
from superopt.plan.transformed import Transformed
from superopt.plan.turn import in_order_of_reading, panels
from superopt.plan.twice import twice
from superopt.plan.views import View, viewed
from superopt.plan.walks import step_tensors, walked
from superopt.plan.zeros import delicate
from superopt.te import index as ix
from superopt.te.expr import Tensor

# Bytes of a model's constants up to which its products use one level of Strassen, and two levels.
ROOM = (2**30, 2**29)


@dataclass(frozen=True, slots=True)
class Program:
    """A planned program.

    kernels: by function name, in tile-level form. memory_bytes, workspace_bytes: sizes.
    border_bytes: the first bytes of the memory, which stay zero wherever no kernel writes.
    problems: the problems to solve, by key. options: how each is solved. call_problems: the problem
    of each call, empty for a loop. call_results: the tensor that each call computes or contributes
    to. provenance: where these come from. stream_order: the stream of each call, if there are
    several. loop_bodies: by index of a loop among the calls, the program of each lane's step.
    """

    kernels: Mapping[str, Kernel]
    calls: tuple[Call | Loop, ...]
    constants: tuple[Held, ...]
    constant_bytes: int
    memory: int
    kept: int
    workspace: int
    problems: Mapping[str, Problem]
    options: Mapping[str, Option]
    solved: tuple[str, ...]
    results: tuple[Tensor, ...] = ()
    origins: Origins | None = None
    order: Order | None = None
    bodies: Mapping[int, tuple[Program, ...]] = field(default_factory=dict)

    def identity(self) -> str:
        """Return a digest that is equal for programs whose constants have the same offsets and
        order."""
        found = blake2b(digest_size=16)
        for c in self.constants:
            about = "" if c.pack is None else f"{c.pack.axes} {c.pack.index}"
            found.update(f"{c.at} {c.type} {about}\n".encode())
        for call in self.calls:
            found.update(f"{call}\n".encode())
        return found.hexdigest()

    def kernel_calls(self) -> tuple[Call, ...]:
        """Return the calls; those in loops once."""
        return tuple(kernel_calls(self.calls))

    def count(self, problem: str) -> int:
        """Return how often a run solves a problem."""
        out = self.solved.count(problem)
        for n, bodies in self.bodies.items():
            loop = self.calls[n]
            assert isinstance(loop, Loop)
            out += loop.steps * sum(body.count(problem) for body in bodies)
        return out


def program(
    graph: g.Graph,
    sizes: Mapping[str, int],
    width: int,
    chosen: Mapping[str, Option] | None = None,
    tiles: bool = True,
    unit: int = 0,
    dilated: bool = True,
    registers: int = REGISTERS,
    target: Target = CPU,
) -> Program:
    """Return the program of a graph.

    vector_bytes: bytes of a vector register of the target. options: how to solve problems, by key;
    the default option is used for all others. allow_winograd: use Winograd and Strassen.
    multiply_bytes: bytes of a vector that the machine multiplies at a time; 0 for all.
    allow_dilated_winograd: use Winograd for dilated convolutions, too, in tiles of every d-th
    element. vector_registers: their number.

    Raises NotImplementedError if no kernel supports an element type.
    """
    tensors = Tensors(sizes, patches=patched(graph, sizes))
    for n in g.nodes(graph):
        tensors.add(n)
    outputs = outputs_of(graph, tensors)
    parts = {t: [x.tensor for x in p] for t, p in tensors.parts.items()}
    order = in_order(outputs, parts)
    walk_steps = step_tensors(order) if target.turns else set()
    pictures = apart(order, tensors.copies, target.turns) | walk_steps
    turning = partial(in_order_of_reading, constants=tensors.constants, registers=registers)
    current = inlined(outputs, pictures, parts, turning if target.turns else None)
    outputs, current = copied(outputs, current, tensors.parts)
    needed = stay(outputs, tensors)
    if target.joins:
        if target.fuses is not None:
            current = unscaled(current, needed)
        current = knitted(current, tensors.parts)
        needed = stay(outputs, tensors)
        current = settled(uncast(current, needed | pictures), needed | pictures)
        half = target.kind is not None
        lying = target.lie(current, outputs, tensors.parts)
        current = few(current, needed, lying, tensors.parts, tensors.constants, half)
    lying = target.lie(current, outputs, tensors.parts)
    if target.turns:
        lying |= panels(current, width)
    pictured = {x.tensor for t, some in tensors.parts.items() if t in lying for x in some}
    current = turned(current, lying.keys() | pictured, tensors.constants)
    own: dict[Tensor, int] = {}
    if target.joins:
        found = cells(current, needed, lying, tensors.parts, tensors.constants)
        current, own = celled(current, found, tensors.constants)
        needed |= own.keys()
    current, leads = rows(current, needed, lying, target.parts > 0)
    leads |= own
    if target.fuses is not None:
        fusing = target.fuses(tensors.constants, width)
        current, leads = attention(current, leads, needed, lying, tensors.constants, fusing)
    orders: Mapping[Tensor, AxisOrder] = {}
    if target.parts:
        apart_ = {*lying, *(x.tensor for some in tensors.parts.values() for x in some)}
        current, more = divided(current, needed, apart_, leads)
        leads |= more
        current, orders = across(current, needed, leads)
        leads |= {t: len(order.first) for t, order in orders.items()}
    whole = current.keys()
    current = by_channel(current, leads, lying)
    if target.parts:
        current = in_parts(current, leads, tensors.constants, needed, target.parts)
    sums = current.keys() - whole  # partial reductions
    if target.compares:
        current = compared(current, leads, tensors.constants)
    if target.joins:
        beside = {*lying, *leads}
        some = gates(current, needed, beside, tensors.parts, tensors.constants, half)
        current = gated(*some)
    current = walked(current, walk_steps, needed)
    how = chosen or {}
    machine = width, how, tiles, unit, dilated, registers, target
    return _Builder(graph, tensors, outputs, current, leads, orders, lying, sums, *machine).build()


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel call before its buffers have offsets. read_offsets: bytes into each buffer that is
    read."""

    kernel: Kernel
    reads: tuple[Tensor, ...]
    target: Tensor
    problem: str
    result: Tensor
    begins: tuple[int, ...]


@dataclass(slots=True)
class _Builder:
    graph: g.Graph
    tensors: Tensors
    outputs: Sequence[Tensor]
    current: Mapping[Tensor, Tensor]
    leads: Mapping[Tensor, int]
    orders: Mapping[Tensor, AxisOrder]
    lying: Mapping[Tensor, Layout]
    sums: Collection[Tensor]
    width: int
    chosen: Mapping[str, Option]
    tiles: bool
    unit: int
    dilated: bool
    registers: int
    target: Target
    kept: Kept = field(init=False)
    levels: int = 0

    def build(self) -> Program:
        into = {x.tensor: (whole, x) for whole, some in self.tensors.parts.items() for x in some}
        kept = Kept(self.target, self.tensors, self.current, self.outputs, self.sums)
        self.kept = kept
        some = [*self.current, *(x for x in self.tensors.parts if kept.kind(x) != x.dtype)]
        buffers = {t: Tensor(f"b{n}", kept.kind(t), t.shape) for n, t in enumerate(some)}
        back = {b: t for t, b in buffers.items()}
        where: dict[Tensor, Ref] = {}
        for n, i in enumerate(self.graph.inputs):
            t = self.tensors.of.get(i)
            if isinstance(t, Tensor):
                where[self.tensors.copies.get(t, t)] = Ref("argument", n)
        for n, t in enumerate(self.outputs):
            where[t] = Ref("argument", len(self.graph.inputs) + n)
        self.levels = _levels(map(self.bytes, self.tensors.constants))
        plain = delicate(self.current, self.tensors) if self.tiles else self.current
        steps: list[Step] = []
        asked: dict[str, Problem] = {}
        used: dict[str, Option] = {}
        again: dict[Tensor, Tensor] = {}
        transformed = Transformed(self.tensors.constants)
        for t, now in self.current.items():
            lie = {**buffers, **kept.constants(t, now)}
            root = reading(now, lie, kept.kind(t), kept.drops(t), self.target.kind)
            root = twice(root, self.tensors.constants, again)
            views: dict[Tensor, View] = {}
            if self.target.joins:
                made = {b for b in operands(root) if (x := back.get(b)) and x not in where}
                root, views = viewed(root, {b for b in made if back[b] not in self.lying})
            given = operands(root)
            layout: dict[Tensor, Layout | Scatter] = {
                b: self.lying[x] for b in given if (x := back.get(b, b)) in self.lying
            }
            if t in into:
                layout[root] = self.part(t, root, *into[t])
            elif t in self.orders:
                layout[root] = self.orders[t].lies(self.lying.get(t))
            elif t in self.lying:
                layout[root] = self.lying[t]
            known = {x for x in given if x in self.tensors.constants}
            given_ = root, layout, known, self.leads.get(t, 0)
            key, problem, how = self.solved(*given_, plain=t in plain)
            if how.made and self.target.bounded and not transformed.fits(key, how):
                key, problem, how = self.solved(*given_, plain=True)
            transformed.add(key, how)
            asked[key], used[key] = problem, how.option
            for one in built(problem, how):
                target = one.writes
                if target is root:
                    target = into[t][0] if t in into else t
                read = [views.get(x, View(x, 0)) for x in one.reads]
                reads, begins = tuple(back.get(v.of, v.of) for v in read), tuple(v.at for v in read)
                steps.append(Step(one.kernel, reads, target, key, t, begins))
        return self.placed(steps, where, asked, used)

    def solved(
        self,
        root: Tensor,
        layout: Mapping[Tensor, Layout | Scatter],
        known: set[Tensor],
        lead: int,
        *,
        plain: bool,
    ) -> tuple[str, Problem, Choice]:
        """Return the key of a problem, the problem, and its solution. direct: do not use Winograd
        and Strassen."""
        own = (False, 0) if plain else (True, self.levels)
        how = self.width, lead, *own, self.unit, self.dilated, self.registers
        problem = Problem(root, layout, known, *how, self.target.kind is not None)
        key = computation(problem)
        return key, problem, self.target.choose(problem, self.chosen.get(key))

    def part(self, t: Tensor, root: Tensor, whole: Tensor, part: Phase) -> Scatter:
        """Return the layout of a part of another tensor."""
        axes = self.orders[t].back(root.axes) if t in self.orders else root.axes
        places = zip(axes, part.begin, part.step, strict=True)
        at = [ix.as_index(i * step + begin) for i, begin, step in places]
        layout = self.lying.get(whole) or row_major(whole.rank)
        return Scatter(self.shape(whole), layout, root.axes, tuple(at))

    def placed(
        self,
        steps: Sequence[Step],
        where: dict[Tensor, Ref],
        problems: Mapping[str, Problem],
        options: Mapping[str, Option],
    ) -> Program:
        """Assign buffers, and return the program."""
        # A write over another tensor comes after the write of that tensor, as a read would.
        over = self.tensors.over
        reads = [(*s.reads, s.target) if s.result in over else s.reads for s in steps]
        writes = [s.target for s in steps]
        how = [(problems[s.problem], options[s.problem]) for s in steps]
        order = self.target.streams(reads, writes, how) if self.target.streams else None
        used = in_use(reads, writes, order)
        own = [t for t in used if t not in where]
        lives = [Life(self.bytes(t), *used[t], *self.keeps(t)) for t in own]
        at, memory, shared, kept = offsets(lives)
        where |= {t: Ref("memory", a) for t, a in zip(own, at, strict=True)}
        cleared = {own[n] for n in shared}
        constants: list[Held] = []
        held: dict[object, Ref] = {}
        end = 0
        calls: list[Call] = []
        run: list[Step] = []
        for step in steps:
            if step.target in cleared:  # before its first write
                cleared.remove(step.target)
                clear = self.clear(step.target)
                run.append(replace(step, kernel=clear))
                calls.append(Call(clear.name, (where[step.target],), chunks(clear)))
            run.append(step)
            refs = []
            packs = {p.source: p for p in step.kernel.packs}
            for x, begin in zip(step.reads, step.begins, strict=True):
                if x not in self.tensors.constants:
                    refs.append(replace(where[x], at=where[x].at + begin))
                    continue
                c, pack = self.tensors.constants[x], packs.get(x)
                key = c, None if pack is None else layout_key(pack)
                if key not in held:
                    held[key] = Ref("constant", end)
                    buffer = x if pack is None else pack.buffer
                    size = prod(self.shape(buffer)) * _bytes(x)
                    constants.append(Held(end, buffer.type, c, pack))
                    end += -(-size // ALIGNED) * ALIGNED
                refs.append(held[key])
            calls.append(Call(step.kernel.name, (*refs, where[step.target]), chunks(step.kernel)))
        kernels = {step.kernel.name: step.kernel for step in run}
        most = max((workspace(k) for k in kernels.values()), default=0)
        return Program(
            kernels, tuple(calls), tuple(constants), end, memory, kept, most,
            problems, options, tuple(step.problem for step in run),
            tuple(step.result for step in run), origins(self.graph, self.tensors, self.current),
            order,
        )  # fmt: skip

    def shape(self, t: Tensor) -> tuple[int, ...]:
        return tuple(n for n in t.shape if isinstance(n, int))

    def bytes(self, t: Tensor) -> int:
        layout = self.lying.get(t) or row_major(t.rank)
        return prod(layout.shape(self.shape(t))) * max(self.kept.kind(t).bits // 8, 1)

    def keeps(self, t: Tensor) -> tuple[object, int | None]:
        """Return the key of the zero border around a tensor, and the bytes of the border."""
        layout = self.lying.get(t)
        if layout is None or not any(p.border for p in layout.parts):
            return None, None
        shape = layout.shape(self.shape(t))
        zeros = layout.borders()
        written = zeros is not None and self.target.clears
        clear = border.written(shape, zeros) * _bytes(t) if written and zeros else None
        return (self.kept.kind(t), shape, layout), clear

    def clear(self, t: Tensor) -> Kernel:
        """Return a kernel that writes the zeros around a tensor."""
        layout = self.lying[t]
        made = border.clear(t.dtype, layout.shape(self.shape(t)), layout.borders() or ())
        return replace(made, name=f"k{identity(made)}")


def _levels(constants: Iterable[int]) -> int:
    """Return how many levels of Strassen products may use: each level makes a constant 7/4 times as
    large.

    constants: their bytes.
    """
    total = sum(constants)
    return sum(total <= most for most in ROOM)


def _bytes(t: Tensor) -> int:
    return max(t.dtype.bits // 8, 1)
