"""Tree walks: tensors computed from each other by indices that are elements of the previous one.

    node1[n, t] = child[node0[n, t], ...]        for several trees t (lanes) all steps
    node2[n, t] = child[node1[n, t], ...]   =>   run before they are summed
    y[n] = sum(value[node2[n, t]] for t)

The steps of a vector of trees are in registers, with as many loads in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from superopt.kernels.algorithms.algorithm import Algorithm
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.schedule import (
    ComputeAt,
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Vectorize,
)
from superopt.te.analysis.walk import computed_tensors, index_axes, loads, subexpressions
from superopt.te.expr.node import Apply, Axis, Index, Load
from superopt.te.expr.tensor import Tensor

MAX_TREES = 64  # at a time: four vectors of 16 hide the latency of loads
CHUNK_ROWS = 32  # of a chunk


def is_step(t: Tensor, previous: Tensor) -> bool:
    """True if elements of `previous` at the same place are indices of what `t` reads, other than
    bytes of data."""
    if isinstance(previous.body, Apply) and previous.body.fn == "cast":
        return False
    return t.body is not None and t.shape == previous.shape and any(
        isinstance(e, Index) and isinstance(e.element, Load) and e.element.tensor is previous
        and e.element.index == t.axes
        for e in subexpressions(t.body)
    )  # fmt: skip


def is_tree_walk(t: Tensor) -> bool:
    """True if `t` sums the leaves of walks, whose steps are its stages."""
    some = computed_tensors([t])
    return (
        reduction(t) is not None
        and len(some) > 2
        and all(is_step(b, a) for a, b in pairwise(some[:-1]))
    )


def trees_per_step(count: int, max_trees: int = MAX_TREES) -> int:
    """Return how many of so many trees to walk at a time: whole vectors, if these divide."""
    whole = [k for k in (64, 48, 32, 16, 8) if k <= max_trees and count % k == 0]
    return whole[0] if whole else max(k for k in range(1, max_trees + 1) if count % k == 0)


def schedule_tree_walk(t: Tensor, trees: int = MAX_TREES) -> Mapping[Tensor, Schedule]:
    """Return the schedules of a sum over trees and of its steps, which run for several trees at a
    time, once for all outputs of a leaf."""
    found, steps = reduction(t), computed_tensors([t])[:-1]
    assert found is not None
    (read,) = {x for x in loads(found.body) if x.tensor is steps[-1]}
    moving = set[Axis]().union(*map(index_axes, read.index))
    outer = [a for a in t.axes if a in moving]
    inner = [a.name for a in t.axes if a not in moving and a.size > 1]
    ones = [a.name for a in t.axes if a not in moving and a.size == 1]
    axis = found.axes[-1]
    rest = [a.name for a in found.axes[:-1]]
    lanes = trees_per_step(axis.size, trees)
    split: list[Primitive] = [Split(axis.name, lanes)] if lanes < axis.size else []
    block, lane = ([f"{axis.name}.o"], f"{axis.name}.i") if split else ([], axis.name)
    row, *others = outer
    if row.size > CHUNK_ROWS:
        split.append(Split(row.name, CHUNK_ROWS))
    chunk, each = ([f"{row.name}.o"], f"{row.name}.i") if row.size > CHUNK_ROWS else ([], row.name)
    # the nodes of these trees stay in the cache for all rows of a chunk
    order = [*chunk, *(a.name for a in others), *ones, *rest, *block, each, lane, *inner]
    out: dict[Tensor, Schedule] = {
        s: (ComputeAt(t.name, each), Vectorize(s.axes[-1].name)) for s in steps
    }
    shared = [Parallel(a) for a in chunk]
    out[t] = (*split, Reorder(tuple(order)), Vectorize(inner[-1] if inner else lane), *shared)
    return out


def recognise_tree_walk(p: Problem) -> Tensor | None:
    """Return the tensor if it sums the leaves of walks."""
    return p.tensor if is_tree_walk(p.tensor) else None


def tree_walk_options(p: Problem, t: Tensor) -> Iterator[Option]:
    """Yield options, best first."""
    yield from (Option.make("tree_walk", trees=n) for n in (MAX_TREES, 8, 16, 32))


def schedule_walk(p: Problem, t: Tensor, option: Option) -> Choice:
    """Return the choice of an option."""
    return Choice(option, t, schedule_tree_walk(t, option["trees"]))


TREE_WALK = Algorithm(
    ("tree_walk",), "tree ensembles: several trees of a row at a time", recognise_tree_walk,
    tree_walk_options, schedule_walk, exclusive=True,
)  # fmt: skip
