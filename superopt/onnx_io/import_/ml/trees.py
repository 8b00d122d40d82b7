"""Tree ensembles of ai.onnx.ml as tables of nodes, and as graphs that traverse them.

A node goes to its first child where lower <= x[feature] <= threshold. Intervals of floats express
every mode (x < t is x <= the float before t); the children are swapped where a mode holds outside
the interval. For a leaf, the threshold table holds the leaf's weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as oir

from superopt.ir import graph
from superopt.onnx_io.import_.ml.build import (
    POST_TRANSFORMS,
    apply,
    apply_post_transform,
    as_matrix,
    binary_scores,
    cast,
    class_labels,
    constant,
    feature_count,
    first_argmax,
    float_list,
    integer_attribute,
    require_numeric,
    scalar_like,
    string_attribute,
    threshold_labels,
)
from superopt.onnx_io.import_.ml.dense import ExpandNode, Operands
from superopt.onnx_io.import_.ml.forest import (
    MODES,
    Forest,
    ensemble_error,
    forest_by_ids,
    forest_by_positions,
)
from superopt.te.expr.dtype import F32, F64, I64, U32

AGGREGATES = ("SUM", "AVERAGE", "MIN", "MAX")
_HOLDS_OUTSIDE = np.array([False, False, True, True, False, True])  # of the interval the mode holds
_IS_STRICT = np.array([False, True, True, False, False, False])  # its end is the float before
_IS_POINT = np.array([False, False, False, False, True, True])  # it is one float
MAX_DEPTH = 64
# Trees that a kernel walks side by side, and what each takes then (Emerald Rapids, 16 lanes).
TREE_BLOCK_COSTS = {64: 1.0, 48: 1.05, 32: 1.15, 16: 1.45}
# Bytes of a node in tables of complete trees, and where children are named; where the former are
# not much larger in all, walks are shorter: there are fewer loads in each step.
COMPLETE_NODE_BYTES, LINKED_NODE_BYTES, MAX_COMPLETE_SIZE_RATIO = 12, 16, 2
MAX_COMPLETE_LEVELS = 12  # of complete trees
MIN_GROUP_TREES = 16  # of a group of trees of some depth
GROUP_OVERHEAD_TREES = 8  # that could be walked in the time that a kernel of its own takes
MAX_PADDED_RATIO = (
    1.25  # trees, of which some are added so that each target has as many: at most so often
)


@dataclass(frozen=True, slots=True)
class NodeTests:
    """The test of each node, as TreeWeights takes it. children: the first where the test holds.
    lower: None if no node tests for one value. missing: features are doubled, to encode where NaN
    goes."""

    feature: np.ndarray
    threshold: np.ndarray
    lower: np.ndarray | None
    children: np.ndarray
    missing: bool


@dataclass(frozen=True, slots=True)
class TreeLevels:
    """tree, level: of each node, -1 for unreachable nodes. depths: steps to the deepest leaf of
    each tree."""

    tree: np.ndarray
    level: np.ndarray
    depths: np.ndarray


def node_tests(f: Forest, columns: int, dtype: np.dtype) -> NodeTests:
    """Return the test of each node. Raises InferError for features beyond `columns`."""
    inner = f.split
    if ((f.feature < 0) | (f.feature >= columns))[inner].any():
        raise ensemble_error(f"features that rows of {columns} do not have")
    strict, outside = inner & _IS_STRICT[f.mode], inner & _HOLDS_OUTSIDE[f.mode]
    point = inner & _IS_POINT[f.mode]
    threshold = f.threshold.astype(dtype)
    before = np.nextafter(threshold, dtype.type(-np.inf))
    before = np.where(threshold == -np.inf, dtype.type(np.nan), before)
    threshold = np.where(strict, before, threshold)
    # NaN is in no interval: it goes to the second child, unless the node says otherwise; it differs
    # from every number.
    absent = inner & (f.missing != outside) & (f.mode != MODES.index("BRANCH_NEQ"))
    feature = np.where(inner, f.feature, 0)
    return NodeTests(
        (2 * feature + absent if absent.any() else feature).astype(np.uint32),
        threshold,
        np.where(point, threshold, dtype.type(-np.inf)) if point.any() else None,
        np.where(outside[:, None], f.children[:, ::-1], f.children),
        bool(absent.any()),
    )


def tree_levels(f: Forest) -> TreeLevels:
    """Return the level of each node. Raises InferError for a cyclic or too deep tree."""
    tree, level = np.full(f.split.size, -1), np.full(f.split.size, -1)
    some, own, depth = f.roots, np.arange(f.roots.size), 0
    depths = np.zeros(f.roots.size, np.int64)
    while True:
        tree[some], level[some], depths[own] = own, depth, depth
        inner = f.split[some]
        if not inner.any():
            return TreeLevels(tree, level, depths)
        depth += 1
        if depth > MAX_DEPTH:
            raise ensemble_error(f"more than {MAX_DEPTH} steps to some leaf")
        below, own = f.children[some[inner]].reshape(-1), np.repeat(own[inner], 2)
        some, kept = np.unique(below, return_index=True)
        own = own[kept]


def aggregate_trees(
    f: Forest, x: graph.Value, results: int, aggregate: str, base: np.ndarray
) -> tuple[graph.Value, np.ndarray]:
    """Return the aggregate of the trees for each row and result, plus `base`, in the element type
    of x; and which results some tree always sets."""
    kind = x.type.dtype
    assert kind is not None
    dtype = np.dtype(np.float64 if kind is F64 else np.float32)
    if ((f.target < 0) | (f.target >= results)).any():
        raise ensemble_error(f"weights of results that are not among {results}")
    if f.split[f.leaf].any():
        raise ensemble_error("weights of nodes that are not leaves")
    nodes, at = node_tests(f, feature_count(x), dtype), tree_levels(f)
    given = _results_always_set(f, at, results)
    if aggregate in ("MIN", "MAX") and not given.all():
        raise ensemble_error(f"{aggregate} of results that some rows may not have")
    if results > 1 and base.size and base[~given].any():  # onnxruntime adds none to such a result
        raise ensemble_error("base values of results that some rows may not have")
    neutral = {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0)
    weights = np.full((f.split.size, results), neutral, dtype)
    fold = {"MIN": np.minimum, "MAX": np.maximum}.get(aggregate, np.add)
    fold.at(weights, (f.leaf, f.target), f.weight.astype(dtype))
    every = _trees_by_result(f, at, results if aggregate in ("SUM", "AVERAGE") else 1)
    one = every.shape[0] == results  # each tree gives to one
    if one:
        weights = fold.reduce(weights, 1)
    y: graph.Value | None = None
    for trees, depth in _group_by_depth(every, at.depths):
        part = _walk_trees(f, nodes, at, x, trees.reshape(-1), depth, weights, neutral)
        if one:
            part = apply("Reshape", part, shape=(-1, *trees.shape))
        part = _reduce_trees(part, aggregate, 2 if one else 1)
        join = {"MIN": "Min", "MAX": "Max"}.get(aggregate, "Add")
        y = part if y is None else apply(join, y, part)
    assert y is not None
    if aggregate == "AVERAGE":
        y = apply("Div", y, scalar_like(f.roots.size, y))
    if base.size:
        y = apply("Add", y, constant(base, kind))
    return y, given


def _reduce_trees(y: graph.Value, aggregate: str, axis: int) -> graph.Value:
    name = {"MIN": "ReduceMin", "MAX": "ReduceMax"}.get(aggregate, "ReduceSum")
    return apply(name, y, axes=(axis,), keepdims=0)


def _results_always_set(f: Forest, levels: TreeLevels, results: int) -> np.ndarray:
    """Return for each result whether all leaves of some tree set it."""
    leaves = ~f.split & (levels.tree >= 0)
    count = np.bincount(levels.tree[leaves], minlength=f.roots.size)
    pairs = np.unique(np.stack([f.leaf, f.target], 1), axis=0)
    pairs = pairs[levels.tree[pairs[:, 0]] >= 0]
    found = np.zeros((f.roots.size, results), np.int64)
    np.add.at(found, (levels.tree[pairs[:, 0]], pairs[:, 1]), 1)
    out: np.ndarray = (found == count[:, None]).any(0)
    return out


def _trees_by_result(f: Forest, levels: TreeLevels, results: int) -> np.ndarray:
    """Return the trees of each result, [results, trees] padded with -1, if each tree sets one
    result and the counts are similar; else all trees, [1, trees]."""
    every = np.arange(f.roots.size)[None]
    if results == 1:
        return every
    pairs = np.unique(np.stack([levels.tree[f.leaf], f.target], 1), axis=0)
    pairs = pairs[pairs[:, 0] >= 0]
    if np.unique(pairs[:, 0]).size != pairs.shape[0]:
        return every
    some = [pairs[pairs[:, 1] == k, 0] for k in range(results)]
    most = max(s.size for s in some)
    if most * results > MAX_PADDED_RATIO * f.roots.size + 8:
        return every
    return np.array([[*s, *[-1] * (most - s.size)] for s in some], np.int64)


def _group_by_depth(trees: np.ndarray, depths: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Group the trees of each result by depth, since a walk is as long as the deepest tree of its
    group. Each group consists of full blocks of trees that are walked together. Returns (trees,
    depth) pairs."""
    own = np.where(trees < 0, 0, depths[trees])
    order = np.argsort(own, axis=1, kind="stable")
    trees, deep = np.take_along_axis(trees, order, 1), np.sort(own, axis=1).max(0)
    cuts = [0, *(k for k in range(1, deep.size) if deep[k] != deep[k - 1]), deep.size]
    cuts = [k for k in cuts if k in (0, deep.size) or min(k, deep.size - k) >= MIN_GROUP_TREES]
    # The cheapest way to make groups that end at the k-th cut, by what it costs.
    best: list[tuple[float, list[int]]] = [(0.0, [])]
    for k, end in enumerate(cuts[1:], 1):
        some = []
        for begin, (cost, ends) in zip(cuts[:k], best, strict=True):
            steps = (_block_trees(end - begin)[1] + GROUP_OVERHEAD_TREES) * (int(deep[end - 1]) + 1)
            some.append((cost + steps, [*ends, end]))
        best.append(min(some))
    ends = best[-1][1]
    groups = zip([0, *ends[:-1]], ends, strict=True)
    return [(_pad_to_blocks(trees[:, a:b]), int(deep[b - 1])) for a, b in groups]


def _block_trees(count: int) -> tuple[int, float]:
    """Return the tree count padded to full blocks, and the cost in trees."""
    if count <= 16:
        whole = max(2, 1 << (count - 1).bit_length())
        return whole, 16 * TREE_BLOCK_COSTS[16]
    return min(
        ((-(-count // b) * b, -(-count // b) * b * cost) for b, cost in TREE_BLOCK_COSTS.items()),
        key=lambda row: row[1],
    )


def _pad_to_blocks(trees: np.ndarray) -> np.ndarray:
    """Pad with -1 to full blocks."""
    more = _block_trees(trees.shape[1])[0] - trees.shape[1]
    return np.pad(trees, ((0, 0), (0, more)), constant_values=-1)


def _walk_trees(
    f: Forest, nodes: NodeTests, levels: TreeLevels, x: graph.Value, trees: np.ndarray, depth: int,
    weights: np.ndarray, neutral: float,
) -> graph.Value:  # fmt: skip
    """Return the weights of the leaves that rows reach in these trees; `neutral` for padding
    trees."""
    kind = x.type.dtype
    assert kind is not None
    more = np.full((1, *weights.shape[1:]), neutral, weights.dtype)
    weights = np.concatenate([weights, more])  # the last node is that of no tree
    last = f.split.size
    complete = trees.size * COMPLETE_NODE_BYTES << depth
    own_nodes = np.isin(levels.tree, trees)
    linked = LINKED_NODE_BYTES * np.count_nonzero(own_nodes)
    if depth <= MAX_COMPLETE_LEVELS and complete <= MAX_COMPLETE_SIZE_RATIO * linked:
        order, leaves = _complete_trees(f, nodes, depth, trees)
        links: tuple[graph.Value | None, graph.Value | None] = (None, None)
        shown = weights[leaves]
    else:
        reached = np.flatnonzero(own_nodes & (levels.tree >= 0))
        order = reached[np.lexsort((reached, levels.level[reached], levels.tree[reached]))]
        order = np.concatenate([order, [last]])
        places = np.full(last + 1, -1)
        places[order] = np.arange(order.size)
        own = np.where(f.split[:, None], nodes.children, np.arange(last)[:, None])
        own = np.concatenate([own, [[last, last]]])
        first = places[np.concatenate([f.roots, [last]])[np.where(trees < 0, -1, trees)]]
        links = constant(places[own[order]], U32), constant(first, U32)
        shown = weights[order]

    def table(a: np.ndarray) -> np.ndarray:
        out: np.ndarray = np.concatenate([a, np.zeros(1, a.dtype)])[order]
        return out

    threshold = table(nodes.threshold)
    if (
        links[0] is not None and weights.ndim == 1
    ):  # leaves have theirs where inner nodes have thresholds
        leaf = ~np.concatenate([f.split, [False]])[order]
        threshold[leaf] = shown[leaf]
        shown = threshold
    lower = None if nodes.lower is None else constant(table(nodes.lower), kind)
    return apply(
        "TreeWeights", x, constant(table(nodes.feature), U32), constant(threshold, kind),
        constant(shown, kind), *links, lower,
        depth=depth, missing=int(nodes.missing),
    )  # fmt: skip


def _complete_trees(
    f: Forest, nodes: NodeTests, depth: int, trees: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Complete the trees so that all leaves are at the last level. Return the forest's node at each
    position of a heap, [trees, 2 ** depth], whose root is at 1; and likewise the leaves."""
    last = f.split.size
    split = np.concatenate([f.split, [False]])
    children = np.concatenate([nodes.children, [[last, last]]])
    heap = np.full((trees.size, 1 << depth), last)
    level = np.concatenate([f.roots, [last]])[np.where(trees < 0, -1, trees)][:, None]
    for d in range(depth):
        heap[:, 1 << d : 2 << d] = level
        below = np.where(split[level][..., None], children[level], level[..., None])
        level = below.reshape(trees.size, -1)
    return heap, level


def _as_rows(operand: graph.Value | None) -> graph.Value:
    """Return the features as a matrix; float64 stays, integers are compared as float32."""
    x = require_numeric(operand)
    return as_matrix(x, F64 if x.type.dtype is F64 else F32)


def _base_values(n: oir.Node, results: int) -> np.ndarray:
    base = float_list(n, "base_values")
    if base.size not in (0, results):
        raise ensemble_error(f"{base.size} base values for {results} results")
    return base


def tree_regressor(n: oir.Node, operands: Operands, version: int) -> Sequence[graph.Value]:
    """TreeEnsembleRegressor."""
    x, count = _as_rows(operands[0]), integer_attribute(n, "n_targets", 1)
    how = string_attribute(n, "aggregate_function", "SUM", AGGREGATES)
    y, _ = aggregate_trees(forest_by_ids(n, "target"), x, count, how, _base_values(n, count))
    post = string_attribute(n, "post_transform", "NONE", POST_TRANSFORMS)
    return (apply_post_transform(cast(y, F32), post, single_target=count == 1),)


def tree_ensemble(n: oir.Node, operands: Operands, version: int) -> Sequence[graph.Value]:
    """TreeEnsemble, of opset 5."""
    x, count = (
        require_numeric(operands[0], types=(F32, F64), ranks=(2,)),
        integer_attribute(n, "n_targets", 1),
    )
    how = ("AVERAGE", "SUM", "MIN", "MAX")[integer_attribute(n, "aggregate_function", 1)]
    post = POST_TRANSFORMS[integer_attribute(n, "post_transform", 0)]
    if count > 1 and post in ("SOFTMAX", "LOGISTIC"):
        raise ensemble_error(
            f"post_transform {post}: onnxruntime takes SOFTMAX and LOGISTIC for each other"
        )
    y, _ = aggregate_trees(forest_by_positions(n), x, count, how, np.zeros(0))
    return (apply_post_transform(y, post, single_target=count == 1),)


def tree_classifier(n: oir.Node, operands: Operands, version: int) -> Sequence[graph.Value]:
    """TreeEnsembleClassifier."""
    x, names = _as_rows(operands[0]), class_labels(n, "classlabels_int64s")
    post = string_attribute(n, "post_transform", "NONE", POST_TRANSFORMS)
    f, count = forest_by_ids(n, "class"), names.size
    if count == 2 and np.unique(f.target).size == 1:
        return _binary_classifier(n, x, f, names, post)
    y, given = aggregate_trees(f, x, count, "SUM", _base_values(n, count))
    if count < 3 or not given.all():
        raise ensemble_error(f"{count} classes, of which some may get no score")
    chosen = apply("Gather", constant(names, I64), first_argmax(y), axis=0)
    return chosen, cast(apply_post_transform(y, post), F32)


def _binary_classifier(
    n: oir.Node, x: graph.Value, f: Forest, names: np.ndarray, post: str
) -> Sequence[graph.Value]:
    """Two classes of which only one has scores."""
    base = float_list(n, "base_values")
    if base.size > 1 or f.target[0] != 0 or post == "PROBIT":
        raise ensemble_error(
            f"two classes, scores of class {f.target[0]} and post_transform {post}"
        )
    score, _ = aggregate_trees(f, x, 1, "SUM", base)
    positive = bool((f.weight >= 0).all())
    chosen = threshold_labels(score, 0.5 if positive else 0.0, names)
    if positive or post == "LOGISTIC":
        return chosen, cast(binary_scores(score, post), F32)
    return chosen, cast(apply("Concat", apply("Neg", score), score, axis=1), F32)


TREES: Mapping[str, ExpandNode] = {
    "TreeEnsemble": tree_ensemble,
    "TreeEnsembleClassifier": tree_classifier,
    "TreeEnsembleRegressor": tree_regressor,
}
