"""The program of a part of a model on a processor."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.ir import graph as g
from superopt.kernels.engine import Machine
from superopt.kernels.option import Option
from superopt.pipeline.allowed import Allowed
from superopt.plan.build import Program, program
from superopt.plan.link import linked
from superopt.plan.looped import looped
from superopt.plan.segments import Segment, graph_of
from superopt.plan.simplify import simplified


def program_of(
    s: Segment,
    sizes: Mapping[str, int],
    threads: int,
    machine: Machine,
    chosen: Mapping[str, Option],
    allowed: Allowed,
) -> Program:
    """The program of a segment. chosen: how problems are computed, by their keys.

    Raises one of NO_KERNEL where an operator has no kernel.
    """

    def plan(graph: g.Graph, repeated: bool, decided: tuple[int, ...]) -> Program:
        tiles = allowed.tiles and not repeated  # steps are small
        given = simplified(graph, allowed.float_class, threads, decided=decided)
        on, partial = machine, allowed.partial
        return program(given, sizes, on.width, chosen, tiles, on.unit, partial, on.registers)

    return linked(looped(graph_of(s), threads), plan, sizes, s.decided)
