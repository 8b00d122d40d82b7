"""What changes in a model that is read and written: equal values are one, dead ones are gone."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from superopt.onnx_io.export.exporter import export_model
from tests.support.onnx_io.models import model, value
from tests.support.onnx_io.rounds import (
    assert_runs_alike,
    assert_same,
    imported,
    text,
    through,
)


def test_values_with_two_names() -> None:
    made = text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] a, float[2] b, float[2] c, float[2] d) <float[2] w = {1, 2}> {
            [one] a = Add(x, w)
            [two] b = Add(x, w)
            [three] c = Identity(x)
            d = Identity(w)
        }""")
    for folded in (False, True):
        out = through(made, folded=folded)
        onnx.checker.check_model(out, full_check=True)
        assert [v.name for v in out.graph.output] == list("abcd")
        assert sum(n.op_type == "Add" for n in out.graph.node) == 1
        assert_runs_alike(made, out, [{"x": np.array([3, 4], "f")}])


def test_the_same_output_twice() -> None:
    made = text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] a) { a = Relu(x) }""")
    model_ = imported(made)
    out = export_model(model_, extra_outputs=[*model_.graph.outputs, model_.graph.inputs[0]])
    assert [v.name for v in out.graph.outputs] == ["a", "extra0", "extra1"]
    names = {v.name for n in out.graph for v in n.outputs}
    assert names == {"a", "extra0", "extra1"}


def test_equal_initializers_become_one_and_outputs_keep_theirs() -> None:
    for size in (4, 5000):  # compared at once; compared because they begin and end alike
        data = np.linspace(0, 1, size, dtype=np.float32)
        w = [numpy_helper.from_array(data, n) for n in ("first", "second", "third")]
        nodes = [
            helper.make_node("Add", ["x", "first"], ["a"], "one"),
            helper.make_node("Mul", ["a", "second"], ["b"], "two"),
            helper.make_node("Sub", ["b", "third"], ["y"], "three"),
        ]
        outputs = [value("y", [size]), value("third", [size])]
        made = model(nodes, [value("x", [size])], outputs, w)
        out = through(made)
        onnx.checker.check_model(out, full_check=True)
        assert [t.name for t in out.graph.initializer] == ["third"]
        assert [n.name for n in out.graph.node] == ["one", "two", "three"]
        assert_runs_alike(made, out, [{"x": data}])


def test_large_tensors_that_begin_and_end_alike_are_not_one() -> None:
    data = np.zeros((2, 9000), np.float32)
    data[1, 3000] = 1
    w = [numpy_helper.from_array(row, n) for n, row in zip("ab", data, strict=True)]
    nodes = [
        helper.make_node("Add", ["x", "a"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["y"]),
    ]
    assert_same(model(nodes, [value("x", [9000])], [value("y", [9000])], w))


def test_negative_zero_is_another_number_than_zero() -> None:
    w = [numpy_helper.from_array(np.array([v], "f"), n) for v, n in ((0.0, "a"), (-0.0, "b"))]
    nodes = [
        helper.make_node("Div", ["x", "a"], ["y"]),
        helper.make_node("Div", ["x", "b"], ["z"]),
    ]
    made = model(nodes, [value("x", [1])], [value("y", [1]), value("z", [1])], w)
    assert_same(made)
    assert_runs_alike(made, through(made, folded=True), [{"x": np.ones(1, "f")}])


def test_dead_code_and_unused_weights_go_and_inputs_stay() -> None:
    made = text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x, float[2] unused, float[2] d = {1, 2}) => (float[2] y) <float[2] w = {1, 2}> {
            dead = Add(x, w)
            y = Relu(x)
        }""")
    out = through(made)
    assert [v.name for v in out.graph.input] == ["x", "unused", "d"]
    assert [n.op_type for n in out.graph.node] == ["Relu"]
    assert [t.name for t in out.graph.initializer] == ["d"]
