"""`superopt.simplify`: what it removes, what it keeps, and what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import superopt
from superopt.cli.simplify import repeat_list_options
from superopt.errors import UsageError
from superopt.loading.rule_library import load_library
from superopt.optimization.simplification.node_count_rules import select_rules, simplifying_rules
from tests.support.preservation import BASE, POINTS, PreservationPoint, removes_identity

# Known differences: sparse weights become dense ones, training information is left out with a note.
LOST = {"sparse initializers", "training information"}

CONV_BN = """
<ir_version: 10, opset_import: ["" : 18]>
net (float[n, 2, 5, 5] x) => (float[n, 3, 5, 5] y)
{
  shape = Constant<value = int64[1] {3}>()
  half = Constant<value = float {0.5}>()
  ones = ConstantOfShape<value = float[1] {1}>(shape)
  scale = Add(ones, half)
  c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w)
  b = BatchNormalization(c, scale, ones, ones, ones)
  t = Transpose<perm = [0, 2, 3, 1]>(b)
  y = Transpose<perm = [0, 3, 1, 2]>(t)
  unused = Relu(b)
}
"""


def conv_bn(ir_version: int = 10) -> onnx.ModelProto:
    model = parser.parse_model(CONV_BN)
    model.ir_version = ir_version
    w = np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    return model


def run_unoptimized(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return np.asarray(session.run(None, {"x": x})[0])


def test_constants_normalization_and_dead_code_are_removed() -> None:
    model = conv_bn()
    found = superopt.simplify(model)
    made = found.model
    assert [n.op_type for n in made.graph.node] == ["Conv"]
    x = np.random.default_rng(1).standard_normal((2, 2, 5, 5)).astype(np.float32)
    np.testing.assert_allclose(run_unoptimized(made, x), run_unoptimized(model, x), atol=1e-5)
    assert str(found).startswith("the model: ")


def test_new_weights_are_named_after_old_ones_and_metadata_names_the_rules() -> None:
    made = superopt.simplify(conv_bn()).model
    assert "w_folded" in {t.name for t in made.graph.initializer}
    (node,) = made.graph.node
    assert {p.key: p.value for p in node.metadata_props} == {"superopt.rules": "conv-bn"}
    assert any(p.key == "superopt.rules" and "1 x conv-bn" in p.value for p in made.metadata_props)


def test_nodes_of_older_versions_have_no_metadata() -> None:
    (node,) = superopt.simplify(conv_bn(8)).model.graph.node
    assert not node.metadata_props


def test_passes_and_rules_are_skipped() -> None:
    def kinds(*skip: str) -> list[str]:
        return [n.op_type for n in superopt.simplify(conv_bn(), skip=skip).model.graph.node]

    assert "BatchNormalization" in kinds("bn-fusion")
    assert "Transpose" not in kinds("bn-fusion")
    assert "Transpose" in kinds("rules")
    assert "ConstantOfShape" not in kinds("rules")
    unfolded = kinds("constant-folding")
    assert "ConstantOfShape" in unfolded
    assert "Transpose" not in unfolded
    with pytest.raises(UsageError, match="cannot skip nonsense"):
        superopt.simplify(conv_bn(), skip=["nonsense"])


def test_input_shapes_bind_symbols_everywhere() -> None:
    made = superopt.simplify(conv_bn(), input_shapes={"x": (3, 2, 5, 5)}).model
    for value in (*made.graph.input, *made.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_value == 3
    with pytest.raises(UsageError, match="cannot have the shape"):
        superopt.simplify(conv_bn(), input_shapes={"x": (3, 4, 5, 5)})
    with pytest.raises(UsageError, match="has no input"):
        superopt.simplify(conv_bn(), input_shapes={"z": (3, 4, 5, 5)})


def test_the_certificate_is_replayed(tmp_path: Path) -> None:
    onnx.save(conv_bn(), tmp_path / "m.onnx")
    certificate = superopt.simplify(tmp_path / "m.onnx").save(tmp_path / "s.onnx")
    assert certificate is not None
    found = superopt.verify(tmp_path / "m.onnx", tmp_path / "s.onnx", certificate=certificate)
    assert found.decision == "certified"


def test_a_model_without_redundancy_is_copied(tmp_path: Path) -> None:
    text = BASE.replace("i = Identity(x)", "").replace("Relu(i)", "Relu(x)")
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    found = superopt.simplify(tmp_path / "m.onnx")
    assert not found.changed
    assert found.save(tmp_path / "s.onnx") is None
    assert (tmp_path / "s.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()


@pytest.mark.parametrize("point", POINTS, ids=[p.name for p in POINTS])
def test_preservation(point: PreservationPoint, tmp_path: Path) -> None:
    before = point.write(tmp_path / "m.onnx")
    found = superopt.simplify(tmp_path / "m.onnx")
    found.save(tmp_path / "s.onnx")
    after = onnx.load_model(tmp_path / "s.onnx", load_external_data=False)
    assert removes_identity(after)
    assert point.keeps(before, after) is (point.name not in LOST)
    if point.name == "training information":
        assert "training information is left out" in str(found)


def test_selected_rules_add_no_kind_of_operator() -> None:
    names = {r.name for r in simplifying_rules(load_library())}
    assert {"conv-bn", "identity", "transpose-transpose--same", "gemm-add"} <= names
    assert not names & {"silu", "gelu", "matmul-merge"}  # a new operator; two results
    assert "conv-bn" not in {r.name for r in select_rules(load_library(), ["constant-folding"])}


def test_list_options_take_several_values() -> None:
    given = ["m.onnx", "o.onnx", "--input-shape", "a:1,3", "b:4", "--skip", "x", "y", "-o", "z"]
    assert repeat_list_options(given) == [
        "m.onnx", "o.onnx", "--input-shape", "a:1,3", "--input-shape", "b:4", "--skip", "x",
        "--skip", "y", "-o", "z",
    ]  # fmt: skip
    assert repeat_list_options(["--input-shape", "1,3", "m.onnx"])[-2:] == ["1,3", "m.onnx"]
