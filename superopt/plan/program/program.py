"""A planned program: kernels, their order, and the offsets of their buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.llvm.calls import Call, Loop, kernel_calls
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.tile import Kernel
from superopt.plan.lowering.provenance import Provenance
from superopt.plan.program.pack_constants import ConstantSlot
from superopt.plan.program.streams import StreamOrder
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor


@dataclass(frozen=True, slots=True)
class SymbolicSizes:
    """What a program for symbolic sizes needs before a run. names: of the sizes. words: the values
    that it reads, an argument with number `argument`, the sizes first. memory_bytes,
    workspace_bytes: as in Program."""

    names: tuple[str, ...]
    words: tuple[Expr, ...]
    argument: int
    memory_bytes: Expr
    workspace_bytes: Expr


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
    constants: tuple[ConstantSlot, ...]
    constant_bytes: int
    memory_bytes: int
    border_bytes: int
    workspace_bytes: int
    problems: Mapping[str, Problem]
    options: Mapping[str, Option]
    call_problems: tuple[str, ...]
    call_results: tuple[Tensor, ...] = ()
    provenance: Provenance | None = None
    stream_order: StreamOrder | None = None
    loop_bodies: Mapping[int, tuple[Program, ...]] = field(default_factory=dict)
    symbolic: SymbolicSizes | None = None

    def identity(self) -> str:
        """Return a digest that is equal for programs whose constants have the same offsets and
        order."""
        found = blake2b(digest_size=16)
        for c in self.constants:
            about = "" if c.pack is None else f"{c.pack.axes} {c.pack.index}"
            found.update(f"{c.offset} {c.type} {about}\n".encode())
        for call in self.calls:
            found.update(f"{call}\n".encode())
        return found.hexdigest()

    def kernel_calls(self) -> tuple[Call, ...]:
        """Return the calls; those in loops once."""
        return tuple(kernel_calls(self.calls))

    def solve_count(self, problem: str) -> int:
        """Return how often a run solves a problem."""
        out = self.call_problems.count(problem)
        for n, bodies in self.loop_bodies.items():
            loop = self.calls[n]
            assert isinstance(loop, Loop)
            out += loop.steps * sum(body.solve_count(problem) for body in bodies)
        return out
