"""The program of a segment for the CPU."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field

from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
from superopt.ir import graph as ir_graph
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.amx import integer_instructions
from superopt.kernels.runtime.engine import Machine
from superopt.plan.decisions import leave_out
from superopt.plan.graph.lower_loops import lower_loops
from superopt.plan.graph.partition import Segment, segment_graph
from superopt.plan.graph.simplify import simplify_graph
from superopt.plan.linking.link import is_linked, link_program
from superopt.plan.lowering.state_memories import State
from superopt.plan.lowering.updated_states import UpdatedState, replace_scatters
from superopt.plan.passes import plan_program
from superopt.plan.program.plan import Settings
from superopt.plan.program.program import Program
from superopt.te.expr.symbolic_int import without_symbolic_sizes


@dataclass(slots=True)
class SimplifiedSegment:
    """A segment with loops in place of operators without expressions, and its simplified graphs if
    it has no such loops, by the outputs that discontinuous operators outside depend on."""

    graph_with_loops: ir_graph.Graph
    simplified_graphs: dict[tuple[int, ...], ir_graph.Graph] = field(default_factory=dict)


def plan_segment_program(
    s: Segment,
    sizes: Mapping[str, int],
    threads: int,
    machine: Machine,
    options: Mapping[str, Option],
    allowed: AllowedTransforms,
    simplified_segments: MutableMapping[object, SimplifiedSegment],
    states: tuple[State, ...] = (),
    bf16_instructions: str = "",
) -> Program:
    """Return the program of a segment. options: of problems, by key. simplified_segments: memo of
    graphs, independent of sizes; new ones are added. states: outputs in the memory of inputs.
    bf16_instructions: of products in bfloat16; empty if all are in float32.

    Where `symbolic_sizes` is active, `sizes` are empty and the program is symbolic.

    Raises one of NO_KERNEL_ERRORS if an operator has no kernel.
    """

    def plan(graph: ir_graph.Graph, repeated: bool, decided: tuple[int, ...]) -> Program:
        tiles = allowed.winograd and not repeated  # the steps of a loop are small
        given = (
            None if graph is not simple.graph_with_loops else simple.simplified_graphs.get(decided)
        )
        if given is None:
            with without_symbolic_sizes():
                given = simplify_graph(
                    graph, allowed.float_class, threads, sensitive_outputs=decided,
                    applies_rules="simplification" not in allowed.left_out,
                )  # fmt: skip
        if graph is simple.graph_with_loops:
            simple.simplified_graphs[decided] = given
        settings = Settings(
            machine.width,
            options,
            tiles,
            allowed.partial_rules,
            machine.processor,
            states=states,
            threads=1 if repeated else threads,  # the kernels of a loop's step run on one
            bf16_instructions=bf16_instructions,
            integer_instructions=integer_instructions(machine),
        )
        return plan_program(given, sizes, leave_out(settings, allowed.left_out))

    key = s.nodes, s.outputs
    if key not in simplified_segments:
        with without_symbolic_sizes():
            updated = [x for x in states if isinstance(x, UpdatedState)]
            lowered = lower_loops(replace_scatters(segment_graph(s), updated), threads)
        simplified_segments[key] = SimplifiedSegment(lowered)
    simple = simplified_segments[key]
    if states and is_linked(simple.graph_with_loops):
        raise NotImplementedError("states of a program of several parts")
    return link_program(simple.graph_with_loops, plan, sizes, s.sensitive_outputs)
