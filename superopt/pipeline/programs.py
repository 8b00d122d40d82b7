"""The program of a part of a model on a processor."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field

from superopt.ir import graph as g
from superopt.kernels.engine import Machine
from superopt.kernels.option import Option
from superopt.pipeline.allowed import Allowed
from superopt.plan.build import Program, program
from superopt.plan.link import linked
from superopt.plan.looped import looped
from superopt.plan.segments import Segment, graph_of
from superopt.plan.simplify import simplified


@dataclass(slots=True)
class Simple:
    """A segment with loops in place of what is no expression; and, where it has none, as it was
    simplified, by the outputs that operators outside of it decide by."""

    looped: g.Graph
    simplified: dict[tuple[int, ...], g.Graph] = field(default_factory=dict)


def program_of(
    s: Segment,
    sizes: Mapping[str, int],
    threads: int,
    machine: Machine,
    chosen: Mapping[str, Option],
    allowed: Allowed,
    known: MutableMapping[object, Simple],
) -> Program:
    """The program of a segment. chosen: how problems are computed, by their keys. known: graphs of
    segments, whatever sizes are; those that are new are added.

    Raises one of NO_KERNEL where an operator has no kernel.
    """

    def plan(graph: g.Graph, repeated: bool, decided: tuple[int, ...]) -> Program:
        tiles = allowed.tiles and not repeated  # steps are small
        given = None if graph is not simple.looped else simple.simplified.get(decided)
        if given is None:
            given = simplified(graph, allowed.float_class, threads, decided=decided)
        if graph is simple.looped:
            simple.simplified[decided] = given
        on, partial = machine, allowed.partial
        return program(given, sizes, on.width, chosen, tiles, on.unit, partial, on.registers)

    key = s.nodes, s.outputs
    if key not in known:
        known[key] = Simple(looped(graph_of(s), threads))
    simple = known[key]
    return linked(simple.looped, plan, sizes, s.decided)
