"""Tree ensembles: compiled, and as onnxruntime computes them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt
from scripts.tree_models import MODES, Attributes, forest, model, regressor
from superopt.plan.graph import slow_nodes

ort = pytest.importorskip("onnxruntime")

FEATURES = 5
AGGREGATES = ("SUM", "AVERAGE", "MIN", "MAX")
POST = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")


def rows(n: int = 9, seed: int = 0, dtype: type = np.float32) -> np.ndarray:
    """Rows some of whose elements are NaN, infinite, or a threshold of a grid."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, FEATURES)).astype(np.float32)
    x[::2] = np.round(x[::2] * 2) / 2
    x[rng.random(x.shape) < 0.1] = np.nan
    x[rng.random(x.shape) < 0.05] = np.inf
    x[rng.random(x.shape) < 0.05] = -np.inf
    return x.astype(dtype)


def compared(made: onnx.ModelProto, x: np.ndarray, kernels: bool = True) -> None:
    """The compiled model gives what onnxruntime gives; kernels: by its own kernels."""
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    exe = superopt.compile(made, threads=1)
    got = exe.run({"x": x})
    for value, want in zip(made.graph.output, session.run(None, {"x": x}), strict=True):
        found = got[value.name]
        assert found.dtype == want.dtype
        assert found.shape == want.shape
        if want.dtype.kind == "f":
            np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-6)
        else:
            np.testing.assert_array_equal(found, want)
    assert (exe.fallback_nodes({"n": len(x)}) == []) == kernels


def ensembles() -> list[tuple[str, Attributes]]:
    def of(seed: int, *size: int, **how: object) -> Attributes:
        return forest(np.random.default_rng(seed), *size, FEATURES, **how)  # type: ignore[arg-type]

    return [
        ("one tree", of(1, 1, 3)),
        ("stumps", of(2, 7, 1)),
        ("single leaves", of(3, 3, 0)),
        ("complete", of(4, 20, 4)),
        ("unbalanced", of(5, 20, 9, grow=0.6)),
        ("deep and thin", of(6, 5, 30, grow=0.52)),
        ("many", of(7, 130, 3, grow=0.9)),
        *[(mode, of(8, 12, 4, modes=[mode], grid=True)) for mode in MODES],
        ("all modes", of(9, 30, 5, modes=MODES, grid=True, grow=0.8)),
        ("NaN goes somewhere", of(10, 30, 5, modes=MODES, grid=True, missing=True)),
        ("NaN, linked", of(11, 9, 12, modes=MODES, grid=True, missing=True, grow=0.55)),
    ]


ENSEMBLES = ensembles()


@pytest.mark.parametrize(("name", "attributes"), ENSEMBLES, ids=[n for n, _ in ENSEMBLES])
def test_regressors_of_all_shapes(
    name: str, attributes: Attributes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        slow_nodes, "MAX_TREE_DEPTH_RATIO", np.inf
    )  # by kernels, however long their walks are
    compared(regressor(attributes, FEATURES), rows())


def test_very_uneven_trees_run_in_onnxruntime() -> None:
    attributes = forest(np.random.default_rng(6), 5, 30, FEATURES, grow=0.52)
    compared(regressor(attributes, FEATURES), rows(), kernels=False)


@pytest.mark.parametrize("n", [1, 2, 33, 100])
def test_of_any_number_of_rows(n: int) -> None:
    attributes = forest(np.random.default_rng(0), 40, 5, FEATURES, grow=0.9)
    compared(regressor(attributes, FEATURES), rows(n, n))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("how", AGGREGATES)
@pytest.mark.parametrize(("targets", "each"), [(1, False), (3, True), (3, False)])
@pytest.mark.parametrize("base", [False, True])
def test_aggregates(how: str, targets: int, each: bool, base: bool) -> None:
    rng = np.random.default_rng(targets)
    attributes = forest(rng, 24, 4, FEATURES, targets=targets, each=each, grow=0.8)
    more = {"base_values": [float(k) / 2 for k in range(1, targets + 1)]} if base else {}
    made = regressor(attributes, FEATURES, targets, aggregate_function=how, **more)
    compared(made, rows())


def test_targets_of_some_trees_more_than_of_others() -> None:
    attributes = forest(np.random.default_rng(0), 40, 3, FEATURES, targets=3)
    kept = [t for t in range(40) if t % 3 != 1 or t < 30]
    some = {k: [v for v, t in zip(values, attributes[f"{k.split('_')[0]}_treeids"], strict=True)
                if t in kept] for k, values in attributes.items()}  # fmt: skip
    compared(regressor(some, FEATURES, 3), rows())


@pytest.mark.parametrize("post", [*POST, "PROBIT"])
@pytest.mark.parametrize("targets", [1, 3])
def test_post_transforms(post: str, targets: int) -> None:
    attributes = forest(np.random.default_rng(1), 12, 3, FEATURES, targets=targets, each=True)
    if post == "PROBIT":  # of numbers from 0 to 1
        scaled = [0.3 + 0.1 * float(w) for w in attributes["target_weights"]]  # type: ignore[arg-type]
        attributes = {**attributes, "target_weights": [w / 12 for w in scaled]}
    compared(regressor(attributes, FEATURES, targets, post_transform=post), rows())


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_integers_are_compared_as_floats(dtype: type) -> None:
    """onnxruntime has no kernel for them."""
    attributes = forest(np.random.default_rng(2), 20, 4, FEATURES, grid=True, grow=0.9)
    x = np.random.default_rng(0).integers(-2, 3, (9, FEATURES)).astype(dtype)
    own = {**attributes, "n_targets": 1}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    one, two = (
        model("TreeEnsembleRegressor", own, FEATURES, outputs=[("FLOAT", 1)], dtype=k)
        for k in (kind, TensorProto.FLOAT)
    )
    want = superopt.compile(two, threads=1).run({"x": x.astype(np.float32)})
    np.testing.assert_array_equal(superopt.compile(one, threads=1).run({"x": x})["y0"], want["y0"])


def test_doubles_keep_their_precision() -> None:
    """A threshold between two floats tells doubles apart that are one float."""
    attributes = forest(np.random.default_rng(3), 20, 4, FEATURES)
    values = np.array(attributes.pop("nodes_values"), np.float64) + 1e-12
    weights = np.array(attributes.pop("target_weights"), np.float64)
    own = {**attributes, "n_targets": 1}
    for name, some in (("nodes_values", values), ("target_weights", weights)):
        own[f"{name}_as_tensor"] = helper.make_tensor(name, TensorProto.DOUBLE, [len(some)], some)
    made = model("TreeEnsembleRegressor", own, FEATURES, outputs=[("FLOAT", 1)], dtype=11)
    x = np.random.default_rng(0).choice(values, (50, FEATURES))
    compared(made, x)
    compared(made, x - 5e-13)


def classifier(count: int, post: str, **how: object) -> onnx.ModelProto:
    base = how.pop("base_values", None)
    shift = float(how.pop("shift", 0.0))  # type: ignore[arg-type]
    attributes = forest(np.random.default_rng(count), 24, 4, FEATURES, of="class", **how)  # type: ignore[arg-type]
    own = {**attributes, "classlabels_int64s": [3 * k - 2 for k in range(count)]}
    own["class_weights"] = [float(w) + shift for w in attributes["class_weights"]]  # type: ignore[arg-type]
    own |= {"post_transform": post} | ({"base_values": base} if base else {})
    outputs = [("INT64", 0), ("FLOAT", count)]
    return model("TreeEnsembleClassifier", own, FEATURES, outputs=outputs)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("post", POST)
@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("base", [None, [0.5, -0.25, 0.0]])
def test_classifiers(post: str, each: bool, base: list[float] | None) -> None:
    compared(classifier(3, post, targets=3, each=each, base_values=base), rows(30))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("post", POST)
@pytest.mark.parametrize("shift", [0.0, 0.5])  # weights of both signs, and of one
@pytest.mark.parametrize("base", [None, [0.25]])
def test_two_classes_of_which_one_has_scores(
    post: str, shift: float, base: list[float] | None
) -> None:
    compared(classifier(2, post, targets=1, shift=shift, base_values=base), rows(30))


def ensemble(
    rng: np.random.Generator,
    trees: int,
    depth: int,
    dtype: int,
    targets: int = 1,
    sets_too: bool = False,
    **more: object,
) -> onnx.ModelProto:
    """A TreeEnsemble of opset 5; sets_too: some nodes ask whether a feature is in a set."""
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    splits: list[float] = []
    modes: list[int] = []
    sets: list[float] = []
    sides: list[list[int]] = [[], [], [], []]  # true: node, is it a leaf; false likewise
    feature, missing, roots, weights, ids = (list[float]() for _ in range(5))

    def grow(level: int) -> int:
        node = len(modes)
        modes.append(int(rng.integers(0, 6 + sets_too)))
        splits.append(float(np.round(rng.standard_normal() * 2) / 2))
        if modes[-1] == 6:
            sets.extend([*rng.choice([-1, 0, 1, 2, 7], 3, replace=False), np.nan])
        feature.append(int(rng.integers(0, FEATURES)))
        missing.append(int(rng.integers(0, 2)))
        for side in sides:
            side.append(0)
        for side in (0, 2):
            if level + 1 < depth and rng.random() < 0.8:
                sides[side][node] = grow(level + 1)
            else:
                sides[side][node], sides[side + 1][node] = len(weights), 1
                weights.append(float(rng.standard_normal()))
                ids.append(int(rng.integers(0, targets)))
        return node

    roots = [grow(0) for _ in range(trees)]

    def tensor(name: str, values: list[float], of: int) -> onnx.TensorProto:
        return helper.make_tensor(name, of, [len(values)], values)

    own = {
        "nodes_splits": tensor("s", splits, dtype),
        "nodes_modes": tensor("m", modes, TensorProto.UINT8),
        "nodes_featureids": feature, "nodes_missing_value_tracks_true": missing,
        "nodes_truenodeids": sides[0], "nodes_trueleafs": sides[1],
        "nodes_falsenodeids": sides[2], "nodes_falseleafs": sides[3],
        "tree_roots": roots, "leaf_targetids": ids, "n_targets": targets,
        "leaf_weights": tensor("w", weights, dtype), **more,
    }  # fmt: skip
    if sets:
        own["membership_values"] = tensor("b", sets, dtype)
    name = "DOUBLE" if kind == np.float64 else "FLOAT"
    return model(
        "TreeEnsemble", own, FEATURES, outputs=[(name, targets)], version=5, dtype=dtype
    )  # fmt: skip


@pytest.mark.round_robin(2)
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.DOUBLE])
@pytest.mark.parametrize("seed", range(4))
def test_opset_5(dtype: int, seed: int) -> None:
    made = ensemble(np.random.default_rng(seed), 15, 5, dtype)
    compared(made, rows(12, seed, helper.tensor_dtype_to_np_dtype(dtype)))


@pytest.mark.round_robin(2)
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.DOUBLE])
@pytest.mark.parametrize("seed", range(3))
def test_sets(dtype: int, seed: int) -> None:
    """Of whole numbers, to which onnxruntime rounds what it looks for in a set."""
    made = ensemble(np.random.default_rng(seed), 15, 4, dtype, sets_too=True)
    x = np.random.default_rng(seed).integers(-1, 8, (12, FEATURES))
    compared(made, x.astype(helper.tensor_dtype_to_np_dtype(dtype)))


def test_a_set_has_only_its_own_numbers() -> None:
    """0.5 is in no set of whole numbers: what is between two of them is not rounded."""
    made = ensemble(np.random.default_rng(7), 1, 2, TensorProto.FLOAT, sets_too=True)
    exe, own = superopt.compile(made, threads=1), np.zeros((1, FEATURES), np.float32)
    attributes = {a.name: a for a in made.graph.node[0].attribute}
    assert list(onnx.numpy_helper.to_array(attributes["nodes_modes"].t)) == [6]
    for at in (0.0, 0.5, 1.0, 2.0, 6.5, 7.0, -1.0):
        own[:] = at
        found = onnx.numpy_helper.to_array(attributes["membership_values"].t)
        weights = onnx.numpy_helper.to_array(attributes["leaf_weights"].t)
        side = "true" if at in found else "false"
        leaf = attributes[f"nodes_{side}nodeids"].ints[0]
        assert exe.run({"x": own})["y0"][0, 0] == weights[leaf], at


@pytest.mark.one_in(4)
@pytest.mark.parametrize("aggregate", range(4))
@pytest.mark.parametrize("post", range(4))
def test_aggregates_and_post_transforms_of_opset_5(aggregate: int, post: int) -> None:
    more = {"aggregate_function": aggregate, "post_transform": post}
    made = ensemble(np.random.default_rng(0), 15, 3, TensorProto.FLOAT, **more)
    compared(made, rows())


@pytest.mark.parametrize("post", range(4))
def test_post_transforms_of_several_targets_of_opset_5(post: int) -> None:
    """onnxruntime takes SOFTMAX (1) and LOGISTIC (2) for each other: its own results are given."""
    made = ensemble(np.random.default_rng(0), 15, 3, TensorProto.FLOAT, targets=3,
                    post_transform=post)  # fmt: skip
    compared(made, rows(), kernels=post not in (1, 2))


@pytest.mark.parametrize("how", AGGREGATES)
def test_base_values_of_targets_without_a_score(how: str) -> None:
    """onnxruntime adds none where no leaf that a row reaches gives the target something."""
    attributes = forest(np.random.default_rng(0), 2, 3, FEATURES, targets=3)
    made = regressor(attributes, FEATURES, 3, aggregate_function=how, base_values=[1.0, 2.0, 3.0])
    compared(made, rows(), kernels=False)


def test_several_targets_of_opset_5() -> None:
    made = ensemble(np.random.default_rng(0), 15, 3, TensorProto.FLOAT, targets=3)
    compared(made, rows())


def test_what_has_no_kernel_runs_in_onnxruntime() -> None:
    attributes = forest(np.random.default_rng(0), 12, 3, FEATURES, targets=3, of="class")
    own = {**attributes, "classlabels_strings": ["a", "b", "c"]}
    outputs = [("STRING", 0), ("FLOAT", 3)]
    made = model("TreeEnsembleClassifier", own, FEATURES, outputs=outputs)
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    exe, x = superopt.compile(made, threads=1), rows()
    got, want = exe.run({"x": x}), session.run(None, {"x": x})
    assert got["y0"].tolist() == want[0].tolist()
    np.testing.assert_array_equal(got["y1"], want[1])
    ((_, why),) = exe.fallback_nodes({"n": len(x)})
    assert "labels are strings" in why
