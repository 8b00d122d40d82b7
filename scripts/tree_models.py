"""Random tree ensembles as ONNX models: for tests of kernels, and for benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

ML = "ai.onnx.ml"
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
Attributes = dict[str, list[object]]


def forest(
    rng: np.random.Generator,
    trees: int,
    depth: int,
    features: int,
    *,
    targets: int = 1,
    each: bool = False,
    modes: Sequence[str] = MODES[:1],
    grow: float = 1.0,
    missing: bool = False,
    grid: bool = False,
    of: str = "target",
) -> Attributes:
    """The attributes of a random ensemble.

    depth: levels of inner nodes; grow: how likely a node below the root is an inner one; each: does
    a leaf give to all targets, or a tree to one? missing: some nodes send NaN to the true branch;
    grid: thresholds are multiples of 1/2, so that rows of such meet them.
    """
    out: Attributes = {f"nodes_{k}": [] for k in (
        "treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids",
        "missing_value_tracks_true",
    )} | {f"{of}_{k}": [] for k in ("treeids", "nodeids", "ids", "weights")}  # fmt: skip

    def add(name: str, value: object) -> None:
        out[name].append(value)

    for tree in range(trees):
        levels, count = [(0, 0)], 1
        while levels:
            node, level = levels.pop(0)
            inner = level < depth and (not level or rng.random() < grow)
            add("nodes_treeids", tree)
            add("nodes_nodeids", node)
            add("nodes_featureids", int(rng.integers(features)) if inner else 0)
            value = float(np.float32(rng.standard_normal()))
            add("nodes_values", (round(value * 2) / 2 if grid else value) if inner else 0.0)
            add("nodes_modes", str(rng.choice(modes)) if inner else "LEAF")
            add("nodes_truenodeids", count if inner else 0)
            add("nodes_falsenodeids", count + 1 if inner else 0)
            add("nodes_missing_value_tracks_true", int(missing and rng.random() < 0.5))
            if inner:
                levels += [(count, level + 1), (count + 1, level + 1)]
                count += 2
                continue
            for target in range(targets) if each else (tree % targets,):
                add(f"{of}_treeids", tree)
                add(f"{of}_nodeids", node)
                add(f"{of}_ids", target)
                add(f"{of}_weights", float(np.float32(rng.standard_normal() * 0.1)))
    return out


def model(
    op: str, attributes: dict[str, object], features: int, *, outputs: Sequence[tuple[str, int]],
    version: int = 3, dtype: int = TensorProto.FLOAT, rows: int | str = "n",
) -> onnx.ModelProto:  # fmt: skip
    """One node of `op` on rows of `features`; outputs: element type and columns (0: a vector)."""
    names = [f"y{k}" for k in range(len(outputs))]
    made = [
        helper.make_tensor_value_info(
            name, getattr(TensorProto, kind), [rows, columns] if columns else [rows]
        )
        for name, (kind, columns) in zip(names, outputs, strict=True)
    ]
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], names, domain=ML, **attributes)],
        "trees",
        [helper.make_tensor_value_info("x", dtype, [rows, features])],
        made,
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def regressor(
    attributes: Attributes, features: int, targets: int = 1, **more: object
) -> onnx.ModelProto:
    """A TreeEnsembleRegressor of float32 rows."""
    own = {**attributes, "n_targets": targets, **more}
    return model("TreeEnsembleRegressor", own, features, outputs=[("FLOAT", targets)])
