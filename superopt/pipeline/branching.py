"""Makes the programs of a model at an If whose condition only a call tells (`branch.Branch`)."""

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

# Ifs one after the other, or inside each other. Deeper ones run in onnxruntime: each doubles the
# paths through the model.
MAX_DEPTH = 8
# So deep branches are compiled ahead of the first call that takes them.
MAX_DEPTH_AHEAD = 3


def branch(c: Compiler) -> Branch | None:
    """The model as programs chosen at its first undecided If. None where it has none, and where
    nothing but onnxruntime would run in any of the programs."""
    if c.depth >= MAX_DEPTH or c.all_fall_back or first_dynamic_if(c.model) is None:
        return None
    try:
        found = split_at_if(c.model)
        if found is None:
            return None
        arms = {taken: _part(c, source) for taken, source in found.branches.items()}
        prefix = None if found.prefix is None else _part(c, found.prefix)
    except ModelError:  # a part makes no sense by itself
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
    """False if all of it runs in onnxruntime; True where only a call tells."""
    if symbolic(c.ports()) or first_dynamic_if(c.model) is not None:
        return not c.all_fall_back
    at = c.at({})
    return any(s.native for s in at.split({}))


def compile_ahead(b: Branch, depth: int) -> None:
    """Compile the programs whose sizes are known, but of branches that are very deep."""
    for taken, exe in ((None, b.prefix), *b.arms.items()):
        if (
            exe is not None
            and not symbolic(exe.ports)
            and (taken is None or depth < MAX_DEPTH_AHEAD)
        ):
            # A branch that makes no sense at these sizes is an error when it is taken.
            with suppress(ModelError):
                exe.variant({})


def nodes_in_onnxruntime(
    c: Compiler, sizes: Mapping[str, int], why: str = ""
) -> list[tuple[ir_graph.Node, str]]:
    """The nodes that run in onnxruntime at these sizes, and why: those of all branches.

    why: given where all nodes do, for this reason."""
    if why:
        return [(n, opaque_reason(c.model, n, why)) for n in ir_graph.nodes(c.model.graph)]
    if (at := c.at(sizes)) is not c:
        return nodes_in_onnxruntime(at, {})
    if (b := c.branch()) is not None:
        return [*dict.fromkeys(found for part in b.parts for found in part.fallbacks())]
    some = [(n, c.why_not(n, sizes) or TOO_SMALL_REASON) for n in fallback_nodes(c.split(sizes))]
    return [(n, opaque_reason(c.model, n, why)) for n, why in some]


def value_names(c: Compiler, sizes: Mapping[str, int]) -> Mapping[ir_graph.Value, str]:
    """The file's names of values, those of branches included."""
    at = c.at(sizes)
    b = at.branch()
    parts = () if b is None else b.parts
    return ChainMap({**at.model.names}, *({**value_names(p.compiler, {})} for p in parts))
