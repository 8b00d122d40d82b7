"""Compile a model at an If with a dynamic condition (`dynamic_if.DynamicIf`)."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from superopt.compilation.frontend.input_arrays import has_symbolic_sizes
from superopt.compilation.model.dynamic_if import DynamicIf
from superopt.errors import ModelError, OutOfMemory
from superopt.ir import graph as ir_graph
from superopt.onnx_io.import_.model import opaque_reason
from superopt.onnx_io.read.source import Source
from superopt.onnx_io.transform.contrib_decomposition import decompose_contrib_ops
from superopt.onnx_io.transform.split_if import first_dynamic_if, split_at_if
from superopt.plan.graph.partition import TOO_SMALL_REASON, fallback_nodes

if TYPE_CHECKING:
    from superopt.compilation.model.compiler import Compiler

# Sequential or nested Ifs. Deeper ones run in ONNX Runtime: each doubles the number of paths
# through the model.
MAX_IF_DEPTH = 8
# Branches up to this depth are compiled before the first call that takes them.
MAX_EAGER_IF_DEPTH = 3


def compile_dynamic_if(compiler: Compiler) -> DynamicIf | None:
    """Return the programs at the model's first dynamic If. None if it has none, or if all programs
    would run in ONNX Runtime only."""
    if (
        compiler.if_depth >= MAX_IF_DEPTH
        or compiler.is_all_fallback
        or first_dynamic_if(compiler.model) is None
    ):
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
        None if prefix is None else prefix.executable(),
        {taken: arm.executable() for taken, arm in arms.items()},
    )


def _subcompiler(compiler: Compiler, source: Source) -> Compiler:
    return compiler.subcompiler(decompose_contrib_ops(source) or source, source)


def _has_kernels(compiler: Compiler) -> bool:
    """False if all of it runs in ONNX Runtime; True if that is known only at a call."""
    if has_symbolic_sizes(compiler.input_ports()) or first_dynamic_if(compiler.model) is not None:
        return not compiler.is_all_fallback
    sized_compiler = compiler.compiler_for({})
    return any(s.native for s in sized_compiler.partition({}))


def compile_branches(dynamic_if: DynamicIf, depth: int) -> None:
    """Compile the executables with static sizes, except for deep branches."""
    for taken, exe in ((None, dynamic_if.prefix), *dynamic_if.branches.items()):
        if (
            exe is not None
            and not has_symbolic_sizes(exe.input_ports)
            and (taken is None or depth < MAX_EAGER_IF_DEPTH)
        ):
            try:
                exe.variant({})
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
    if (dynamic_if := compiler.dynamic_if()) is not None:
        return [*dict.fromkeys(n for part in dynamic_if.executables for n in part.fallbacks())]
    fallbacks = [
        (n, compiler.fallback_reason(n, sizes) or TOO_SMALL_REASON)
        for n in fallback_nodes(compiler.partition(sizes))
    ]
    return [(n, opaque_reason(compiler.model, n, why)) for n, why in fallbacks]


def value_names(compiler: Compiler, sizes: Mapping[str, int]) -> Mapping[ir_graph.Value, str]:
    """Return the file's names of values, including those in branches."""
    sized_compiler = compiler.compiler_for(sizes)
    dynamic_if = sized_compiler.dynamic_if()
    parts = () if dynamic_if is None else dynamic_if.executables
    return ChainMap(
        {**sized_compiler.model.names}, *({**value_names(p.compiler, {})} for p in parts)
    )
