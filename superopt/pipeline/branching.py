"""Compile a model at an If with a dynamic condition (`dynamic_if.DynamicIf`)."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from superopt.errors import ModelError
from superopt.ir import graph as ir_graph
from superopt.onnx_io.import_.model import opaque_reason
from superopt.onnx_io.read.source import Source
from superopt.onnx_io.transform.contrib_decomposition import decompose_contrib_ops
from superopt.onnx_io.transform.split_if import first_dynamic_if, split_at_if
from superopt.pipeline.arrays import symbolic
from superopt.pipeline.branch import Branch
from superopt.plan.graph.partition import TOO_SMALL_REASON, fallback_nodes

if TYPE_CHECKING:
    from superopt.pipeline.compile import Compiler

# Sequential or nested Ifs. Deeper ones run in ONNX Runtime: each doubles the number of paths
# through the model.
MAX_DEPTH = 8
# Branches up to this depth are compiled before the first call that takes them.
MAX_DEPTH_AHEAD = 3


def branch(c: Compiler) -> Branch | None:
    """Return the programs at the model's first dynamic If. None if it has none, or if all programs
    would run in ONNX Runtime only."""
    if c.depth >= MAX_DEPTH or c.all_fall_back or first_dynamic_if(c.model) is None:
        return None
    try:
        found = split_at_if(c.model)
        if found is None:
            return None
        arms = {taken: _part(c, source) for taken, source in found.branches.items()}
        prefix = None if found.prefix is None else _part(c, found.prefix)
    except ModelError:  # a part is not a valid model
        return None
    if not any(map(_has_kernels, arms.values())):
        return None
    graph = c.model.graph
    return Branch(
        tuple(i.name for i in graph.inputs),
        c.names(),
        lambda: graph,
        found.condition,
        None if prefix is None else prefix.executable(),
        {taken: arm.executable() for taken, arm in arms.items()},
    )


def _part(c: Compiler, source: Source) -> Compiler:
    return c.part(decompose_contrib_ops(source) or source, source)


def _has_kernels(c: Compiler) -> bool:
    """False if all of it runs in ONNX Runtime; True if that is known only at a call."""
    if symbolic(c.ports()) or first_dynamic_if(c.model) is not None:
        return not c.all_fall_back
    at = c.at({})
    return any(s.native for s in at.split({}))


def compile_ahead(b: Branch, depth: int) -> None:
    """Compile the executables with static sizes, except for deep branches."""
    for taken, exe in ((None, b.prefix), *b.arms.items()):
        if (
            exe is not None
            and not symbolic(exe.ports)
            and (taken is None or depth < MAX_DEPTH_AHEAD)
        ):
            # A branch that is invalid at these sizes raises when it is taken.
            with suppress(ModelError):
                exe.variant({})


def nodes_in_onnxruntime(
    c: Compiler, sizes: Mapping[str, int], why: str = ""
) -> list[tuple[ir_graph.Node, str]]:
    """Return the nodes that run in ONNX Runtime at these sizes, in all branches, each with the
    reason.

    common_reason: given if all nodes run there for this reason.
    """
    if why:
        return [(n, opaque_reason(c.model, n, why)) for n in ir_graph.nodes(c.model.graph)]
    if (at := c.at(sizes)) is not c:
        return nodes_in_onnxruntime(at, {})
    if (b := c.branch()) is not None:
        return [*dict.fromkeys(found for part in b.parts for found in part.fallbacks())]
    some = [(n, c.why_not(n, sizes) or TOO_SMALL_REASON) for n in fallback_nodes(c.split(sizes))]
    return [(n, opaque_reason(c.model, n, why)) for n, why in some]


def value_names(c: Compiler, sizes: Mapping[str, int]) -> Mapping[ir_graph.Value, str]:
    """Return the file's names of values, including those in branches."""
    at = c.at(sizes)
    b = at.branch()
    parts = () if b is None else b.parts
    return ChainMap({**at.model.names}, *({**value_names(p.compiler, {})} for p in parts))
