"""Compile a model at an If with a dynamic condition (`dynamic_if.DynamicIf`), or at a Loop whose
number of steps is known only at run time (`dynamic_loop.DynamicLoop`)."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from superopt import ort
from superopt.compilation.frontend.input_arrays import has_symbolic_sizes
from superopt.compilation.model.control_flow.dynamic_if import ControlFlow, DynamicIf
from superopt.compilation.model.control_flow.dynamic_loop import DynamicLoop
from superopt.errors import ModelError, OutOfMemory
from superopt.ir import graph as ir_graph
from superopt.onnx_io.import_.data_propagation import type_symbols
from superopt.onnx_io.import_.model import Model, opaque_reason
from superopt.onnx_io.read.source import Source
from superopt.onnx_io.transform.contrib_decomposition import decompose_contrib_ops
from superopt.onnx_io.transform.split_if import first_dynamic_if, split_at_if
from superopt.onnx_io.transform.split_loop import loop_position, split_at_loop
from superopt.plan.graph.partition import TOO_SMALL_REASON, estimated_us, fallback_nodes
from superopt.plan.graph.scan_loop import is_scan_or_loop, unsupported_loop_reason

if TYPE_CHECKING:
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.shape_policy import Specialize

# The assumed value of a size that is unknown when a loop is compiled, to estimate a step's time.
EXAMPLE_SIZE = 64
BOUND_STEP_US = 2.0  # time of a step on fixed arrays (bound_steps.py) besides its kernels
# Sequential or nested Ifs. Deeper ones run in ONNX Runtime: each doubles the number of paths
# through the model.
MAX_IF_DEPTH = 8
# Branches up to this depth are compiled before the first call that takes them.
MAX_EAGER_IF_DEPTH = 3


def compile_control_flow(
    compiler: Compiler, specialize: Specialize = "eager"
) -> ControlFlow | None:
    """Return the programs at the model's first dynamic If, or at its first Loop whose number of
    steps is known only at run time. None if it has none, or if all programs would run in ONNX
    Runtime only. specialize: of the programs."""
    if compiler.if_depth >= MAX_IF_DEPTH:
        return None
    found = compile_dynamic_if(compiler, specialize)
    return found if found is not None else compile_dynamic_loop(compiler, specialize)


def compile_dynamic_if(compiler: Compiler, specialize: Specialize = "eager") -> DynamicIf | None:
    """Return the programs at the model's first dynamic If. None if it has none, or if all programs
    would run in ONNX Runtime only. specialize: of the programs."""
    if compiler.is_all_fallback or first_dynamic_if(compiler.model) is None:
        return None
    try:
        found = split_at_if(compiler.model)
        if found is None:
            return None
        arms = {taken: _subcompiler(compiler, source) for taken, source in found.branches.items()}
        prefix = None if found.prefix is None else _subcompiler(compiler, found.prefix)
    except ModelError:  # a part is not a valid model
        return None
    if not any(map(_has_kernels, arms.values())):
        return None
    graph = compiler.model.graph
    return DynamicIf(
        tuple(i.name for i in graph.inputs),
        compiler.output_names(),
        lambda: graph,
        found.condition,
        None if prefix is None else prefix.executable(specialize),
        {taken: arm.executable(specialize) for taken, arm in arms.items()},
    )


def _subcompiler(compiler: Compiler, source: Source) -> Compiler:
    return compiler.subcompiler(decompose_contrib_ops(source) or source, source)


def _has_kernels(compiler: Compiler) -> bool:
    """False if all of it runs in ONNX Runtime; True if that is known only at a call."""
    if has_symbolic_sizes(compiler.input_ports()) or first_dynamic_if(compiler.model) is not None:
        return not compiler.is_all_fallback
    sized_compiler = compiler.compiler_for({})
    return any(s.native for s in sized_compiler.partition({}))


def compile_branches(flow: ControlFlow, depth: int) -> None:
    """Compile the executables with static sizes, except for deep branches."""
    branches = [*flow.branches.values()] if isinstance(flow, DynamicIf) else []
    for exe in flow.executables:
        is_shallow = exe not in branches or depth < MAX_EAGER_IF_DEPTH
        if is_shallow and not has_symbolic_sizes(exe.input_ports):
            try:
                exe.runnable({})
            except OutOfMemory:
                raise
            except ModelError:
                pass  # a branch that is invalid at these sizes raises when it is taken


def fallback_nodes_with_reasons(
    compiler: Compiler, sizes: Mapping[str, int], common_reason: str = ""
) -> list[tuple[ir_graph.Node, str]]:
    """Return the nodes that run in ONNX Runtime at these sizes, in all branches, each with the
    reason.

    common_reason: given if all nodes run there for this reason.
    """
    if common_reason:
        return [
            (n, opaque_reason(compiler.model, n, common_reason))
            for n in ir_graph.nodes(compiler.model.graph)
        ]
    if (sized_compiler := compiler.compiler_for(sizes)) is not compiler:
        return fallback_nodes_with_reasons(sized_compiler, {})
    if (flow := compiler.control_flow()) is not None:
        return [*dict.fromkeys(n for part in flow.executables for n in part.fallbacks())]
    fallbacks = [
        (n, compiler.fallback_reason(n, sizes) or TOO_SMALL_REASON)
        for n in fallback_nodes(compiler.partition(sizes))
    ]
    return [(n, opaque_reason(compiler.model, n, why)) for n, why in fallbacks]


def value_names(compiler: Compiler, sizes: Mapping[str, int]) -> Mapping[ir_graph.Value, str]:
    """Return the file's names of values, including those in branches."""
    sized_compiler = compiler.compiler_for(sizes)
    flow = sized_compiler.control_flow()
    parts = () if flow is None else flow.executables
    return ChainMap(
        {**sized_compiler.model.names}, *({**value_names(p.compiler, {})} for p in parts)
    )


def compile_dynamic_loop(compiler: Compiler, specialize: Specialize) -> DynamicLoop | None:
    """Return the programs at the model's first Loop that kernels do not run as a whole. None if it
    has none, if a step has too little work to leave ONNX Runtime, or if this is not installed."""
    position = first_dynamic_loop(compiler.model)
    if position is None or ort.installed_version() is None or compiler.is_all_fallback:
        return None
    try:
        split = split_at_loop(compiler.model, position)
        if split is None:
            return None
        body = compiler.subcompiler(split.body, split.body)
        if not _has_enough_work(body):
            return None
        prefix, rest = (
            None if s is None else compiler.subcompiler(s, s).executable(specialize)
            for s in (split.prefix, split.rest)
        )  # fmt: skip
    except ModelError:  # a part is not a valid model
        return None
    graph, load_whole = compiler.model.graph, cache(compiler.fallback)

    def call_whole(feeds: dict[str, Any]) -> dict[str, Any]:
        whole = load_whole()
        return whole.call([feeds[name] for name in whole.input_names])

    return DynamicLoop(
        tuple(i.name for i in graph.inputs), compiler.output_names(), lambda: graph, split.names,
        prefix, body.executable(specialize), rest, call_whole,
    )  # fmt: skip


def first_dynamic_loop(model: Model) -> int | None:
    """Return the file position of the first Loop that is not lowered to kernels, or None."""
    found = [
        loop_position(model, n)
        for n in ir_graph.nodes(model.graph)
        if n.op.name == "Loop" and is_scan_or_loop(n) and unsupported_loop_reason(n)
    ]
    return min((k for k in found if k is not None), default=None)


def _has_enough_work(body: Compiler) -> bool:
    """True if a step's kernels take longer than the call of a bound step, by their estimated
    time."""
    nodes = ir_graph.nodes(body.model.graph)
    names = {d for n in nodes for t in n.types for d in type_symbols(t)}
    sizes = dict.fromkeys(names, EXAMPLE_SIZE)
    own = [n for n in nodes if not body.fallback_reasons.get(n) and not n.op.opaque]
    return estimated_us(own, sizes) >= BOUND_STEP_US
