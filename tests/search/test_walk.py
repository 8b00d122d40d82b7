"""Rewrites by random rules of the library leave a model's results what they are."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from scripts.walk_rules import usable, walk
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import read_model
from superopt.rules.lang.rule import parse_rules
from superopt.search.rule_set import rule_set


def attention() -> Model:
    """Scores with a mask of -3.4e38, as exporters write it; softmax; what it weighs; a norm."""
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal((6, 6)) for n in ("q", "k", "v")}
    weights |= {"scale": rng.standard_normal(6), "bias": rng.standard_normal(6)}
    numbers = {"one": 1.0, "eight": 8.0, "low": float(np.finfo(np.float32).min)}
    arrays = {**weights, **{n: np.array(x) for n, x in numbers.items()}}
    make = helper.make_node
    nodes = [
        make("MatMul", ["x", "q"], ["xq"]),
        make("MatMul", ["x", "k"], ["xk"]),
        make("MatMul", ["x", "v"], ["xv"]),
        make("Transpose", ["xk"], ["kt"], perm=[0, 2, 1]),
        make("MatMul", ["xq", "kt"], ["qk"]),
        make("Div", ["qk", "eight"], ["scores"]),
        make("Cast", ["m"], ["mf"], to=TensorProto.FLOAT),
        make("Sub", ["one", "mf"], ["not_m"]),
        make("Mul", ["not_m", "low"], ["mask"]),
        make("Add", ["scores", "mask"], ["masked"]),
        make("Softmax", ["masked"], ["p"], axis=-1),
        make("MatMul", ["p", "xv"], ["o"]),
        make("Add", ["o", "x"], ["r"]),
        make("LayerNormalization", ["r", "scale", "bias"], ["y"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "attention",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 5, 6]),
            helper.make_tensor_value_info("m", TensorProto.INT64, [2, 1, 5]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 5, 6])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return import_model(read_model(model))


@pytest.mark.ci
@pytest.mark.one_in(3)
@pytest.mark.parametrize(("seed", "steps"), [(0, 150), (1, 600), (2, 150)])
def test_random_rewrites_change_nothing(seed: int, steps: int) -> None:
    found = walk(attention(), rule_set(usable()), steps=steps, each=20, seed=seed)
    assert not found.wrong
    assert len(found.used) > 50


def test_a_wrong_rule_is_named() -> None:
    wrong = "subtracted(x: f, y: f): Add(x, y) => Sub(x, y)"
    found = walk(attention(), rule_set(parse_rules(wrong)), steps=5, each=1, seed=0)
    assert found.wrong
    assert found.wrong[0].startswith("subtracted (")
