"""Compile a model for a class of sizes (size_classes.py)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from superopt.compilation.frontend.decode_sizes import decode_sizes, is_decode_step
from superopt.compilation.model.classes.class_steps import (
    compile_class_steps,
    compile_if_supported,
)
from superopt.compilation.model.classes.find_runtime_sizes import INSIDE_LEVELS, runtime_size_names
from superopt.compilation.model.classes.related_class import (
    empty_outputs_step,
    in_model_sizes,
    with_relation_guards,
)
from superopt.compilation.model.control_flow.compile_if import compile_control_flow
from superopt.compilation.model.size_classes import SizeClass, SymbolicStep
from superopt.errors import ModelError, SuperoptError
from superopt.ir import graph
from superopt.onnx_io.import_.size_relation import (
    SizeRelation,
    relate_by_guards,
    relate_by_replacement,
)
from superopt.onnx_io.transform.constant_if import constant_conditions, fold_constant_ifs
from superopt.onnx_io.transform.split_if import first_dynamic_if
from superopt.plan.graph.index_ranges import index_guards, index_reason
from superopt.plan.graph.partition import NO_KERNEL_ERRORS, fallback_nodes
from superopt.plan.program.formula_text import shape_formulas
from superopt.plan.program.size_formulas import SizeFormulas
from superopt.te.expr.symbolic_int import SIZE_LEVELS

if TYPE_CHECKING:
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.control_flow.dynamic_if import ControlFlow
    from superopt.compilation.model.shape_policy import SizeRanges, Specialize
    from superopt.compilation.model.size_classes import SizeClasses

LEVEL_MARGIN = 4  # by which calls may have sizes below or above those of calls before
T = TypeVar("T")


def compile_size_class(
    compiler: Compiler, sizes: Mapping[str, int], *, only_empty: bool = False
) -> SizeClass | None:
    """Return the model compiled for all sizes like these; None if it cannot be. only_empty: also
    None if its outputs are not all empty, so that nothing is compiled."""
    if not sizes or compiler.is_all_fallback:
        return None
    compiler.model.source.check_unchanged()
    try:
        own = class_compiler(compiler)
    except ModelError:
        return None
    if first_dynamic_if(own.model) is not None:
        return None  # see `compile_for_any_sizes`
    for c, relation in class_candidates(own, sizes):
        example, guards = relation.example(sizes), relation.assumed_guards()
        empty = empty_outputs_step(c.model.graph, example)
        if (only_empty and empty is None) or (guards and empty is not None):
            continue
        guards |= index_guards(graph.nodes(c.model.graph), example)
        make = partial(compile_class_steps, c, example, guards)
        steps = compile_if_supported(make) if empty is None else (empty,)
        if steps is None:
            continue
        steps = tuple(in_model_sizes(s, sizes, relation) for s in steps)
        formulas = _joint_formulas(steps, sizes, relation)
        then = decode_sizes(compiler.model, sizes, compiler.states)
        made = SizeClass(formulas, partial(_same, steps), partial(_same, c.model), then)
        made.log()
        return made
    return None


def _same(x: T) -> T:
    return x


def class_candidates(
    compiler: Compiler, sizes: Mapping[str, int]
) -> Iterator[tuple[Compiler, SizeRelation]]:
    """Yield the model with its sizes related, by guards or by replacement, and as it is."""
    is_empty, related = 0 in sizes.values(), related_compiler(compiler, sizes)
    if related is not None:
        yield related
    if is_empty or compiler.model.opaque_reasons:
        found = relate_by_replacement(compiler.model, sizes)
        if found is not None:
            yield compiler.with_model(found[0]), found[1]
    if not is_empty:
        yield compiler, SizeRelation.of_sizes(sizes)
    if compiler.states and related is None:  # a cache may be as large as before at sizes like these
        related = related_compiler(compiler, sizes, is_needed=True)
        if related is not None:
            yield related


def related_compiler(
    compiler: Compiler, sizes: Mapping[str, int], *, is_needed: bool = False
) -> tuple[Compiler, SizeRelation] | None:
    """Return the compiler of the model with its sizes related by guards, for a class that has these
    sizes; None if not all nodes have kernels there, or there are no guards. is_needed: also if all
    nodes have kernels without guards."""
    # kernels of one token are matrix-vector products, which are fastest where sizes of 1 are fixed
    units = {name for name, n in sizes.items() if n == 1}
    fixed = units if is_decode_step(compiler.model, sizes, compiler.states) else set()
    is_needed |= 0 in sizes.values() or bool(fixed)
    if not is_needed and not fallback_nodes(compiler.partition(sizes)):
        return None
    if not any(sizes.values()) or (made := relate_by_guards(compiler.model, sizes, fixed)) is None:
        return None
    own = compiler.with_model(made[0])
    return None if fallback_nodes(own.partition(made[1].example(sizes))) else (own, made[1])


def _joint_formulas(
    steps: Sequence[SymbolicStep], sizes: Mapping[str, int], relation: SizeRelation
) -> SizeFormulas:
    """Return the formulas of the only step, or none; and the conditions under which all steps are
    right."""
    some = [s.formulas for s in steps if s.formulas is not None]
    whole = some[0] if len(steps) == 1 and some else shape_formulas((), tuple(sizes))
    guards = tuple(g for f in some for g in f.guards)
    return with_relation_guards(replace(whole, guards=guards), sizes, relation)


def class_compiler(compiler: Compiler) -> Compiler:
    """Return the compiler that plans for classes of sizes. Ifs with constant conditions are folded.
    Raises ModelError if the branches are not valid."""
    if "class compiler" not in compiler.plan_cache:
        made = compiler
        if constant_conditions(compiler.model):
            made = replace(compiler.with_model(fold_constant_ifs(compiler.model)), is_sized=False)
        made = replace(made, plans_classes=True, sized_compilers={})
        compiler.plan_cache["class compiler"] = made
    found: Compiler = compiler.plan_cache["class compiler"]
    return found


def compile_for_any_sizes(compiler: Compiler, specialize: Specialize) -> ControlFlow | None:
    """Return the programs of a model with a dynamic If or Loop for all sizes; None if it has none.
    Its programs have classes of their own."""
    with suppress(ModelError):
        return compile_control_flow(class_compiler(compiler), specialize)
    return None


def compile_levels(
    compiler: Compiler, classes: SizeClasses, sizes: Mapping[str, int], ranges: SizeRanges
) -> Iterator[SizeClass]:
    """Compile classes for sizes like these but for one, which is of another level that calls may
    have; yield each. ranges: the least and the greatest size of calls so far."""
    for example in level_examples(sizes):
        varied = [name for name, n in example.items() if n != sizes[name]]
        occurs = any(_may_occur(example[name], *ranges[name]) for name in varied)
        if occurs and not classes.admits(example):
            with suppress(SuperoptError):  # the model admits no such size
                if (made := classes.compile(compiler, example)) is not None:
                    classes.add(made)
                    yield made


def level_examples(sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Return sizes like these but for one, which is inside of a level, or the least of one; large
    sizes first, whose calls take longest."""
    values = *INSIDE_LEVELS, *reversed(SIZE_LEVELS)
    return ({**sizes, name: value} for value in values for name in sizes)


def _may_occur(n: int, least: int, greatest: int) -> bool:
    """True if calls may have sizes of the level of n: they had different ones, near to these."""
    level = max(x for x in SIZE_LEVELS if x <= n)
    above = min((x for x in SIZE_LEVELS if x > n), default=math.inf)
    is_near = level <= greatest * LEVEL_MARGIN and above * LEVEL_MARGIN > least
    return least < greatest and is_near


def has_index_out_of_range(compiler: Compiler, sizes: Mapping[str, int]) -> bool:
    """True if an index that is computed from sizes is out of range at these."""
    return any(index_reason(n, sizes) for n in graph.nodes(compiler.model.graph))


def prefers_fixed_sizes(compiler: Compiler, sizes: Mapping[str, int]) -> bool:
    """True if a program for these sizes alone is expected to be faster than that of a class: there
    are kernels whose options were measured."""
    parts = compiler.partition(sizes) if compiler.tuned_options else ()
    with suppress(*NO_KERNEL_ERRORS):
        some = (s for s in parts if s.native and not runtime_size_names(s.nodes, sizes))
        plans = (compiler.plan_segment(s, sizes) for s in some)
        return any(key in compiler.tuned_options for p in plans for key in p.problems)
    return False
