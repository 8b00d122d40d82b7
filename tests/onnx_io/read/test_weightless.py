"""Weightless models: the drawn weights are those of the file's statistics, the same everywhere."""

import hashlib
import json

import numpy as np
import onnx
import pytest

from superopt.errors import ModelError
from superopt.onnx_io.read.weightless import STATISTICS_KEY, demo_models, draw_weights


def weightless(**change: object) -> bytes:
    row = {"shape": [64, 32], "dtype": "float32", "mean": 2.0, "std": 0.5, "low": -9, "high": 9}
    graph = onnx.helper.make_graph([], "g", [], [])
    model = onnx.helper.make_model(graph)
    model.metadata_props.add(key=STATISTICS_KEY, value=json.dumps({"w": {**row, **change}}))
    model.metadata_props.add(key="author", value="kept")
    return bytes(model.SerializeToString())


def drawn(data: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    (tensor,) = draw_weights(data).graph.initializer
    return np.asarray(onnx.numpy_helper.to_array(tensor))


def test_weights_follow_their_statistics() -> None:
    values = drawn(weightless())
    assert values.shape == (64, 32)
    assert values.dtype == np.float32
    assert abs(values.mean() - 2.0) < 0.05
    assert abs(values.std() - 0.5) < 0.05


def test_weights_of_one_sign_keep_it() -> None:
    values = drawn(weightless(low=0.25, high=4.0))
    assert values.min() >= 0.25
    assert values.max() <= 4.0


def test_only_the_statistics_are_taken_from_the_metadata() -> None:
    assert {p.key: p.value for p in draw_weights(weightless()).metadata_props} == {"author": "kept"}


def test_a_model_without_statistics() -> None:
    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []))
    with pytest.raises(ModelError, match="no statistics to draw weights from"):
        draw_weights(model.SerializeToString())


def test_incomplete_statistics() -> None:
    with pytest.raises(ModelError, match="statistics of initializer 'w' are incomplete"):
        draw_weights(weightless(mean=None))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "nodes", "digest"),
    [("nasrnn", 320, "00e1eb482d802928"), ("resnet18", 69, "34f350f0fece444a")],
)
def test_the_demo_models(name: str, nodes: int, digest: str) -> None:
    model = demo_models()[name]()
    onnx.checker.check_model(model, full_check=True)
    assert len(model.graph.node) == nodes
    weights = hashlib.sha256()
    for tensor in model.graph.initializer:
        weights.update(onnx.numpy_helper.to_array(tensor).tobytes())
    assert weights.hexdigest()[:16] == digest
