"""Compile a model for a class of sizes (size_classes.py)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from superopt.compilation.frontend.class_sizes import Guards, with_class_sizes
from superopt.compilation.model.decode_sizes import decode_sizes, is_decode_step
from superopt.compilation.model.size_classes import SizeClass
from superopt.errors import SuperoptError
from superopt.plan.graph.partition import NO_KERNEL_ERRORS, fallback_nodes
from superopt.te.expr.symbolic_int import SIZE_LEVELS

if TYPE_CHECKING:
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.size_classes import SizeClasses
    from superopt.plan.graph.partition import Segment

LOG = logging.getLogger("superopt.compile")


def compile_size_class(compiler: Compiler, sizes: Mapping[str, int]) -> SizeClass | None:
    """Return the model compiled for all sizes like these; None if it cannot be."""
    if not any(sizes.values()):
        return None
    compiler.model.source.check_unchanged()
    found = class_compiler(compiler, sizes)
    if found is None:
        return None
    own, guards = found
    parts = own.partition(sizes)
    if len(parts) != 1 or not parts[0].native or own.model_binding(parts[0]) is None:
        return None
    try:
        made = own.generator.compile_for_classes(own, parts[0], sizes, guards)
    except Exception as e:  # code that does not support symbolic sizes raises many types
        LOG.info("no program for several sizes: %s: %s", type(e).__name__, e)
        return None
    LOG.info("a program for all sizes with %s", " and ".join(made.formulas.guards) or "any values")
    then = decode_sizes(compiler.model, sizes)
    return SizeClass(made.formulas, lambda: made, lambda: own.model, then)


def class_compiler(compiler: Compiler, sizes: Mapping[str, int]) -> tuple[Compiler, Guards] | None:
    """Return the compiler of the model for a class that has these sizes, and the conditions under
    which it is right; None if not all nodes have kernels there."""
    # kernels of one word are matrix-vector products, which are fastest where sizes of 1 are fixed
    units = {name for name, n in sizes.items() if n == 1}
    fixed = units if is_decode_step(compiler.model, sizes) else set()
    if 0 not in sizes.values() and not fixed and not fallback_nodes(compiler.partition(sizes)):
        return compiler, {}
    made = with_class_sizes(compiler.model, sizes, fixed)
    return None if made is None else (compiler.with_model(made.model), made.guards)


def class_segment(compiler: Compiler, sizes: Mapping[str, int]) -> Segment:
    """Return the only segment of the model for a class that has these sizes."""
    found = class_compiler(compiler, sizes)
    assert found is not None
    (segment,) = found[0].partition(sizes)
    return segment


def compile_levels(compiler: Compiler, classes: SizeClasses, sizes: Mapping[str, int]) -> None:
    """Compile classes for sizes like these but for one, which is of another level."""
    for example in _level_examples(sizes):
        if not classes.admits(example):
            with suppress(SuperoptError):  # the model admits no such size
                if (made := classes.compile(compiler, example)) is not None:
                    classes.add(made)


def _level_examples(sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Return sizes like these but for one, which is inside of a level, or the least of one; large
    sizes first, whose calls take longest."""
    inside = [min(2 * n, above - 1) for n, above in pairwise(SIZE_LEVELS)]
    values = *reversed((*inside, 2 * SIZE_LEVELS[-1])), *reversed(SIZE_LEVELS)
    return ({**sizes, name: value} for value in values for name in sizes)


def prefers_fixed_sizes(compiler: Compiler, sizes: Mapping[str, int]) -> bool:
    """True if a program for these sizes alone is expected to be faster than that of a class: there
    are kernels whose options were measured."""
    parts = compiler.partition(sizes) if compiler.tuned_options else ()
    with suppress(*NO_KERNEL_ERRORS):
        plans = (compiler.plan_segment(s, sizes) for s in parts if s.native)
        return any(key in compiler.tuned_options for p in plans for key in p.problems)
    return False
