"""Compile the steps of a class of sizes (size_classes.py).

A model with parts in ONNX Runtime has a step for each part: a session runs at any sizes, and the
kernels between are compiled for classes of sizes. Sizes that only a run gives, such as the number
of elements that NonZero finds, are symbols of the parts after it (runtime_sizes.py).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, ClassVar

from superopt.compilation.fallback.ort_segment import OrtSegment, make_ort_segment, output_specs
from superopt.compilation.model.classes.runtime_sizes import (
    RuntimeSizedCode,
    bind_runtime_sizes,
    runtime_size_names,
    with_runtime_sizes,
)
from superopt.plan.graph.partition import FALLBACK, NATIVE, RUNTIME_SIZED, Segment
from superopt.plan.graph.unsupported_nodes import unsupported_nodes

if TYPE_CHECKING:
    from superopt.compilation.frontend.class_sizes import Guards
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.size_classes import SymbolicStep
    from superopt.compilation.model.steps import Step
    from superopt.ir import graph
    from superopt.plan.program.image import CountCall

LOG = logging.getLogger("superopt.compile")


@dataclass(frozen=True, slots=True)
class SymbolicOrtSegment:
    """A segment in ONNX Runtime, whose session runs at any sizes. segment: at the sizes for which
    it was made. graph: the model's."""

    segment: OrtSegment
    graph: graph.Graph
    formulas: ClassVar[None] = None
    programs: ClassVar[tuple[()]] = ()

    def at_sizes(self, sizes: Mapping[str, int], _: CountCall | None = None) -> OrtSegment:
        """Return the segment at given sizes, on the same session."""
        specs = output_specs(self.graph, self.segment.segment, sizes)
        return replace(self.segment, output_specs=specs)


def compile_class_steps(
    compiler: Compiler, sizes: Mapping[str, int], guards: Guards
) -> tuple[SymbolicStep, ...]:
    """Return the steps of a class of sizes. guards: comparisons that the model assumes.

    Raises NotImplementedError if there are no kernels, or none that give the only segment.
    """
    c = replace(compiler, fallback_reasons=dict(compiler.fallback_reasons))
    while True:
        parts = c.partition(sizes)
        if not any(s.native for s in parts):
            raise NotImplementedError("no part has kernels")
        kernels: dict[Segment, SymbolicStep] = {}
        for s in parts:
            if not s.native:
                continue
            try:
                kernels[s] = compile_symbolic_segment(c, s, sizes, guards)
            except Exception as e:  # see above
                if len(parts) == 1:
                    raise
                why = f"{type(e).__name__}: {e}"
                LOG.info("%d nodes run in onnxruntime at all sizes: %s", len(s.nodes), why)
                c.fallback_reasons |= dict.fromkeys(s.nodes, why)
                break
        else:
            return tuple(kernels[s] if s.native else _ort_segment(c, s, sizes) for s in parts)


def segment_kind(c: Compiler, n: graph.Node, sizes: Mapping[str, int]) -> int:
    """Return the kind of segment that a node is in: FALLBACK, NATIVE or RUNTIME_SIZED."""
    if c.fallback_reason(n, sizes):
        return FALLBACK
    if not c.model.size_producers or not runtime_size_names((n,), sizes):
        return NATIVE
    return RUNTIME_SIZED


def compile_step(c: Compiler, s: Segment, sizes: Mapping[str, int]) -> Step:
    """Return a segment as kernels at these sizes; for a class of those that only a run gives.

    Raises one of NO_KERNEL_ERRORS if an operator has no kernel.
    """
    if not runtime_size_names(s.nodes, sizes):
        return c.generator.compile_segment(c, s, sizes)
    try:
        return compile_symbolic_segment(c, s, sizes, {}).at_sizes(sizes)
    except Exception as e:  # code that does not support symbolic sizes raises many types
        raise NotImplementedError(f"{type(e).__name__}: {e}") from e


def unsupported_reasons(
    c: Compiler, s: Segment, sizes: Mapping[str, int], error: Exception
) -> dict[graph.Node, str]:
    """Return the nodes of a segment without a kernel, with the reasons; or all of its nodes."""

    def check(part: Segment) -> None:
        c.generator.check_plan(c.plan_segment(part, sizes))

    found = {} if runtime_size_names(s.nodes, sizes) else unsupported_nodes(s, check)
    return found or dict.fromkeys(s.nodes, str(error))


def compile_symbolic_segment(
    c: Compiler, s: Segment, sizes: Mapping[str, int], guards: Guards
) -> SymbolicStep:
    """Return a segment as kernels for all sizes like these; those that only a run gives are as in
    `with_runtime_sizes`. guards: see `compile_for_classes`."""
    if not runtime_size_names(s.nodes, sizes):
        return c.generator.compile_for_classes(c, s, sizes, guards)
    bound = bind_runtime_sizes(s, sizes)
    example = with_runtime_sizes(c.model, sizes)
    own = {name: example[name] for name in (*sizes, *(b.name for b in bound))}
    made = c.generator.compile_for_classes(c, s, own, guards)
    return RuntimeSizedCode(
        s, bound, (made,), c.model.graph.inputs, cache(partial(_fallback_segment, c, s, sizes))
    )


def _ort_segment(c: Compiler, s: Segment, sizes: Mapping[str, int]) -> SymbolicOrtSegment:
    return SymbolicOrtSegment(_fallback_segment(c, s, sizes), c.model.graph)


def _fallback_segment(c: Compiler, s: Segment, sizes: Mapping[str, int]) -> OrtSegment:
    """Return the nodes of a segment in ONNX Runtime, at any sizes."""
    return make_ort_segment(c.model, s, c.generator.segment_threads, sizes, c.given_model)
