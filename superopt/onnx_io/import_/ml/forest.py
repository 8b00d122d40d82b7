"""The nodes of an ai.onnx.ml tree ensemble in one form for all of its operators."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as oir

from superopt.ir.op import InferError
from superopt.onnx_io.import_.ml.build import float_list, integer_list, string_list

# Modes by their numbers in opset 5.
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
MEMBER_MODE, LEAF_MODE = 6, 7


@dataclass(frozen=True, slots=True)
class Forest:
    """The nodes of all trees, and the weights of the leaves.

    feature, threshold, split (False for leaves): one for each node. children: [nodes, 2], the first
    where the node's condition holds. mode: index into MODES. missing: NaN goes to the first child.
    roots: the root of each tree. leaf, target, weight: node, result and value of each weight.
    """

    feature: np.ndarray
    threshold: np.ndarray
    split: np.ndarray
    children: np.ndarray
    mode: np.ndarray
    missing: np.ndarray
    roots: np.ndarray
    leaf: np.ndarray
    target: np.ndarray
    weight: np.ndarray


def ensemble_error(why: str) -> InferError:
    return InferError(f"a tree ensemble with {why}")


def forest_by_ids(n: oir.Node, prefix: str) -> Forest:
    """Return the forest of TreeEnsembleRegressor (prefix "target") or TreeEnsembleClassifier
    ("class")."""
    trees, ids = integer_list(n, "nodes_treeids"), integer_list(n, "nodes_nodeids")
    count = trees.size
    names = string_list(n, "nodes_modes")
    known = {**{m.encode(): k for k, m in enumerate(MODES)}, b"LEAF": LEAF_MODE}
    if not count or any(name not in known for name in set(names)):
        raise ensemble_error("no nodes, or of modes that are not known")
    mode = np.array([known[name] for name in names], np.int64)
    threshold, feature = float_list(n, "nodes_values"), integer_list(n, "nodes_featureids")
    sides = [integer_list(n, f"nodes_{k}nodeids") for k in ("true", "false")]
    if any(a.size != count for a in (ids, mode, threshold, feature, *sides)):
        raise ensemble_error("lists of nodes that are not of one length")
    missing = integer_list(n, "nodes_missing_value_tracks_true")
    missing = np.resize(missing, count) != 0 if missing.size == count else np.zeros(count, bool)
    table = _NodeIndex(trees, ids)
    split = mode != LEAF_MODE
    children = np.stack([np.where(split, s, ids) for s in sides], 1)
    held = [integer_list(n, f"{prefix}_{k}") for k in ("treeids", "nodeids", "ids")]
    weight = float_list(n, f"{prefix}_weights")
    if any(a.size != weight.size for a in held):
        raise ensemble_error("lists of weights that are not of one length")
    first = np.flatnonzero(np.concatenate([[True], trees[1:] != trees[:-1]]))
    if np.unique(trees[first]).size != first.size:
        raise ensemble_error("trees whose nodes are not in one place")
    return Forest(
        feature,
        threshold,
        split,
        np.stack([table.positions(trees, children[:, k]) for k in range(2)], 1),
        np.where(split, mode, 0),
        missing,
        first,
        table.positions(held[0], held[1]),
        held[2],
        weight,
    )


class _NodeIndex:
    """Index from (tree, node id) to the position among all nodes."""

    def __init__(self, trees: np.ndarray, ids: np.ndarray) -> None:
        if ids.min() < 0 or trees.min() < 0 or int(trees.max()) * int(ids.max() + 1) >= 2**62:
            raise ensemble_error("numbers of nodes that are negative, or far too large")
        self.ids_per_tree = int(ids.max()) + 1
        keys = trees * self.ids_per_tree + ids
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]
        if (self.keys[1:] == self.keys[:-1]).any():
            raise ensemble_error("duplicate node id in a tree")

    def positions(self, trees: np.ndarray, ids: np.ndarray) -> np.ndarray:
        wanted = trees * self.ids_per_tree + ids
        at = np.minimum(np.searchsorted(self.keys, wanted), self.keys.size - 1)
        if (self.keys[at] != wanted).any() or (ids < 0).any() or (ids >= self.ids_per_tree).any():
            raise ensemble_error("a node that is not there")
        out: np.ndarray = self.order[at]
        return out


def forest_by_positions(n: oir.Node) -> Forest:
    """Return the forest of TreeEnsemble, which numbers inner nodes and leaves separately."""
    mode = _tensor_attribute(n, "nodes_modes").astype(np.int64)
    threshold, weight = _tensor_attribute(n, "nodes_splits"), _tensor_attribute(n, "leaf_weights")
    feature, target = integer_list(n, "nodes_featureids"), integer_list(n, "leaf_targetids")
    roots, inner, leaves = integer_list(n, "tree_roots"), mode.size, weight.size
    missing = integer_list(n, "nodes_missing_value_tracks_true")
    missing = missing != 0 if missing.size else np.zeros(inner, bool)
    some = [
        integer_list(n, f"nodes_{k}{what}")
        for k in ("true", "false")
        for what in ("nodeids", "leafs")
    ]
    if any(a.size != inner for a in (threshold, feature, missing, *some)) or target.size != leaves:
        raise ensemble_error("lists of nodes that are not of one length")
    sides = []
    for at, leaf in (some[:2], some[2:]):
        if (at < 0).any() or (at >= np.where(leaf != 0, leaves, inner)).any():
            raise ensemble_error("a node that is not there")
        sides.append(np.where(leaf != 0, at + inner, at))
    ends = np.arange(inner, inner + leaves)
    children = np.concatenate([np.stack(sides, 1), np.stack([ends, ends], 1)])

    def padded(a: np.ndarray) -> np.ndarray:
        return np.concatenate([a, np.zeros(leaves, a.dtype)])

    # A tree of one leaf is a node both of whose children are that leaf.
    forest = Forest(
        padded(feature), padded(threshold), padded(np.ones(inner, bool)), children, padded(mode),
        padded(missing), roots, ends, target, weight,
    )  # fmt: skip
    return _expand_membership(forest, _tensor_attribute(n, "membership_values"))


def _tensor_attribute(n: oir.Node, name: str) -> np.ndarray:
    found = n.attributes.get(name)
    return np.zeros(0) if found is None else np.asarray(found.as_tensor().numpy()).reshape(-1)


def _expand_membership(f: Forest, values: np.ndarray) -> Forest:
    """Replace each set-membership node by a chain of equality nodes. The sets are stored in the
    order of the nodes; each ends with NaN."""
    asks = np.flatnonzero(f.split & (f.mode == MEMBER_MODE))
    ends = np.flatnonzero(np.isnan(values))
    if asks.size != ends.size:
        raise ensemble_error(f"{asks.size} nodes that ask for a set, and {ends.size} sets")
    if not asks.size:
        return f
    feature, threshold, split = list(f.feature), list(f.threshold), list(f.split)
    children, mode, missing = f.children.tolist(), list(f.mode), list(f.missing)
    for node, begin, end in zip(asks, [0, *(ends[:-1] + 1)], ends, strict=True):
        some = values[begin:end]
        if not some.size:
            raise ensemble_error("an empty set")
        yes, no = children[node]
        at = int(node)
        for k, value in enumerate(some):
            mode[at], threshold[at] = MODES.index("BRANCH_EQ"), value
            if k == len(some) - 1:
                children[at] = [yes, no]
                break
            following = len(feature)
            children[at] = [yes, following]
            feature.append(feature[at])
            threshold.append(value)
            split.append(True)
            mode.append(0)
            missing.append(missing[at])
            children.append([yes, no])
            at = following
    return replace(
        f, feature=np.array(feature), threshold=np.array(threshold, f.threshold.dtype),
        split=np.array(split), children=np.array(children), mode=np.array(mode),
        missing=np.array(missing),
    )  # fmt: skip
