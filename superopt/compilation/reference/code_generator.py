"""Code generation for the reference target: plans of a CPU, whose kernels are interpreted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from superopt.compilation.cpu.segment_program import plan_segment_program
from superopt.compilation.frontend.allowed_transforms import ALL_TRANSFORMS, AllowedTransforms
from superopt.compilation.frontend.graph_ports import check_window_sizes
from superopt.compilation.model.compiler import Compiler
from superopt.compilation.model.device import CodeGenerator
from superopt.compilation.reference.device import ReferenceDevice
from superopt.compilation.reference.segment import ReferenceSegment
from superopt.ir import graph
from superopt.kernels.runtime.engine import Machine
from superopt.plan.graph.partition import Segment
from superopt.plan.graph.scatter_nodes import has_scatter_kernel
from superopt.plan.program.program import Program

AVX512 = Machine("x86-64-v4", "", 64)  # whose tiles are interpreted, whatever the host is


@dataclass(frozen=True, slots=True)
class ReferenceCodeGenerator(CodeGenerator):
    """Plans kernels for a vector width, and interprets them. machine: has the vectors."""

    device: ReferenceDevice
    allowed: AllowedTransforms = ALL_TRANSFORMS
    machine: Machine = AVX512

    def plan_segment(self, c: Compiler, s: Segment, sizes: Mapping[str, int]) -> Program:
        how = 1, self.machine, c.tuned_options, self.allowed
        return plan_segment_program(s, sizes, *how, c.plan_cache)

    def compile_segment(
        self, c: Compiler, s: Segment, sizes: Mapping[str, int]
    ) -> ReferenceSegment:
        check_window_sizes(c.model, s.nodes, sizes)
        program = self.plan_segment(c, s, sizes)
        return ReferenceSegment.load(s, program, sizes, c.model_binding(s))

    def has_fast_kernel(self, c: Compiler, n: graph.Node, sizes: Mapping[str, int]) -> bool:
        return has_scatter_kernel(n)
