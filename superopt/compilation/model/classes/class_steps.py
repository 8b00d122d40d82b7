"""Compile the steps of a class of sizes (size_classes.py).

A model with parts in ONNX Runtime has a step for each part: a session runs at any sizes, and the
kernels between are compiled for classes of sizes. Sizes that only a run gives, such as the number
of elements that NonZero finds, are symbols of the parts after it (runtime_sizes.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

from superopt.compilation.fallback.ort_segment import planned_types, session_part
from superopt.compilation.fallback.session_segment import SessionPart, SymbolicOrtSegment
from superopt.compilation.frontend.graph_ports import numpy_dtype
from superopt.compilation.model.classes.find_runtime_sizes import (
    bind_runtime_sizes,
    runtime_size_names,
)
from superopt.compilation.model.classes.runtime_sizes import RuntimeSizedCode
from superopt.compilation.model.notes import unsupported_text
from superopt.plan.graph.partition import (
    FALLBACK,
    NATIVE,
    RUNTIME_SIZED,
    Segment,
)
from superopt.plan.graph.unsupported_nodes import unsupported_nodes
from superopt.plan.program.formula_text import shape_formulas

if TYPE_CHECKING:
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.size_classes import SymbolicStep
    from superopt.compilation.model.steps import Step
    from superopt.ir import graph
    from superopt.onnx_io.import_.size_relation import Guards

T = TypeVar("T")
LOG = logging.getLogger("superopt.compile")


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
            except Exception as e:  # of any type: the model runs without these kernels
                if len(parts) == 1:
                    raise
                why = unsupported_text(e)
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
    except Exception as e:  # of any type: the model runs without these kernels
        raise NotImplementedError(unsupported_text(e)) from e


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
    names = [b.name for b in bound]
    own = (*sizes, *names)
    first, *others = ({**sizes, **dict.fromkeys(names, n)} for n in c.runtime_counts)
    programs = [c.generator.compile_for_classes(c, s, first, guards)]
    for example in others:
        if not any(p.formulas is not None and p.formulas.admits(example) for p in programs):
            compile_one = partial(c.generator.compile_for_classes, c, s, example, guards)
            more = compile_if_supported(compile_one)
            programs += [] if more is None else [more]
    types = [v.type for v in s.inputs]
    return RuntimeSizedCode(
        s,
        bound,
        shape_formulas((t.shape or () for t in types), own),
        tuple(map(numpy_dtype, types)),
        tuple(programs),
        c.model.graph.inputs,
        cache(partial(_session_part, c, s)),
    )


def compile_if_supported(make: Callable[[], T]) -> T | None:
    """Return code for a class of sizes; None if the model does not support it."""
    try:
        return make()
    except Exception as e:  # of any type: the model runs without these kernels
        LOG.info("no program for several sizes: %s", unsupported_text(e))
        return None


def _ort_segment(c: Compiler, s: Segment, sizes: Mapping[str, int]) -> SymbolicOrtSegment:
    types = planned_types(c.model.graph, s, sizes)
    known = [t for t in types if t is not None]
    return SymbolicOrtSegment(
        _session_part(c, s).open_segment(),
        shape_formulas((t.shape or () for t in known), tuple(sizes)),
        tuple(None if t is None else numpy_dtype(t) for t in types),
    )


def _session_part(c: Compiler, s: Segment) -> SessionPart:
    """Return the nodes of a segment for ONNX Runtime, at any sizes."""
    return session_part(c.model, s, c.generator.segment_threads, c.given_model)
