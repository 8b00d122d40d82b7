"""Nodes of older opsets by the expressions of newer ones: the same numbers, the same file, and
words of the file's opset where something before them was rewritten."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import superopt
from superopt.ir import graph
from superopt.onnx_io.check.validate import validate
from superopt.onnx_io.export.exporter import export_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.import_.older_opsets import OLDER_FORMS
from superopt.onnx_io.read.source import read_model
from tests.support.onnx_io.rounds import assert_same, imported, session, text

# Opset, operator with its attributes, and the shape of x.
CASES = [
    (6, "Clip <min = -0.5, max = 0.25>", (2, 3)),
    (10, "Clip <min = 0.0>", (2, 3)),
    (10, "Clip", (2, 3)),
    (10, "Pad <pads = [0, 1, 2, 0], value = 1.5>", (2, 3)),
    (7, "Pad <pads = [0, 1, 2, 0]>", (2, 3)),
    (10, 'Pad <mode = "reflect", pads = [0, 1, 1, 0]>', (2, 3)),
    (7, "Dropout <ratio = 0.25>", (2, 3)),
    (9, "Dropout", (2, 3)),
    (12, "Softmax <axis = 2>", (2, 3, 4)),
    (11, "Softmax <axis = -1>", (2, 3, 4)),
    (9, "Softmax", (2, 5)),
    (9, "Softmax", (2, 5, 1, 1)),
    (11, "LogSoftmax", (2, 5, 1)),
    (11, "Hardmax <axis = 1>", (2, 5)),
    (10, 'Resize <mode = "nearest">', (1, 2, 3, 4)),
    (10, 'Resize <mode = "linear">', (1, 2, 3, 4)),
]
OPAQUE = [
    (12, "Softmax <axis = 1>", (2, 3, 4), "over all dimensions from 1 on"),
    (9, "LogSoftmax <axis = 0>", (2, 3), "over all dimensions from 0 on"),
    (9, "Hardmax", (2, 3, 4), "over all dimensions from 1 on"),
    (5, "Clip <min = 0.0, consumed_inputs = [0]>", (2, 3), "no tensor expression"),
]


def model(opset: int, node: str, shape: tuple[int, ...], before: str = "Neg") -> onnx.ModelProto:
    """y = node(a), after a = before(x)."""
    op, _, attrs = node.partition(" ")
    scales = "" if op != "Resize" else ", s"
    more = "<float[4] s = {1, 1, 2, 2}>"
    dims, kind = ",".join(map(str, shape)), ",".join("?" * len(shape))
    return text(f"""<ir_version: 4, opset_import: ["" : {opset}]>
        g (float[{dims}] x) => (float[{kind}] y) {more if scales else ""} {{
            a = {before} (x)
            y = {op} {attrs} (a{scales})
        }}""")


def rewritten(m: Model) -> graph.Graph:
    """The same of the input itself."""
    (x,), (y,) = m.graph.inputs, m.graph.outputs
    n = graph.producer(y)
    assert n is not None
    again = graph.intern_node(n.op, (x, *n.inputs[1:]), n.attrs, n.types)
    return graph.Graph((x,), (graph.results(again)[0],))


def drawn(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("opset", "node", "shape"), CASES)
def test_they_have_expressions(opset: int, node: str, shape: tuple[int, ...]) -> None:
    proto = model(opset, node, shape)
    assert imported(proto).opaque_reasons == ()
    exe = superopt.compile(proto)
    assert exe.fallback_nodes({}) == []
    x = drawn(shape)
    (wanted,) = session(proto).run(None, {"x": x})
    np.testing.assert_allclose(exe(x=x)["y"], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("opset", "node", "shape"), CASES)
def test_the_file_is_as_it_was(opset: int, node: str, shape: tuple[int, ...]) -> None:
    assert_same(model(opset, node, shape))


@pytest.mark.parametrize(("opset", "node", "shape"), CASES)
def test_they_are_written_in_the_words_of_their_opset(
    opset: int, node: str, shape: tuple[int, ...]
) -> None:
    m = imported(model(opset, node, shape))
    made = onnx.load_from_string(bytes(export_bytes(m)))
    validate(read_model(made))
    (written,) = made.graph.node
    assert len(written.input) == (2 if written.op_type == "Resize" else 1)
    x = drawn(shape)
    (wanted,) = session(model(opset, node, shape, "Identity")).run(None, {"x": x})
    (got,) = session(made).run(None, {"x": x})
    np.testing.assert_array_equal(got, wanted)


def export_bytes(m: Model) -> bytes:
    import onnx_ir as oir

    return bytes(oir.to_proto(export_model(m, rewritten(m))).SerializeToString())


@pytest.mark.parametrize(("opset", "node", "shape", "why"), OPAQUE)
def test_other_meanings_are_opaque(opset: int, node: str, shape: tuple[int, ...], why: str) -> None:
    assert why in imported(model(opset, node, shape)).opaque_reasons[0][1]


@pytest.mark.parametrize("used", [False, True])
def test_the_mask_of_an_old_dropout_is_of_floats(used: bool) -> None:
    out = ", float[2] mask" if used else ""
    proto = text(f"""<ir_version: 4, opset_import: ["" : 9]>
        g (float[2] x) => (float[2] y{out}) {{ y, mask = Dropout (x) }}""")
    assert bool(imported(proto).opaque_reasons) == used


def test_infinities_are_limited_as_before() -> None:
    """An old Clip has the largest numbers for limits where nothing is said."""
    proto = model(10, "Clip", (4,), "Identity")
    x = np.array([np.inf, -np.inf, 1, np.nan], np.float32)
    (wanted,) = session(proto).run(None, {"x": x})
    np.testing.assert_array_equal(superopt.compile(proto)(x=x)["y"], wanted)


def test_all_of_the_table_is_tried() -> None:
    assert {node.split()[0] for _, node, _ in CASES} == set(OLDER_FORMS)


def test_an_old_net_is_optimized() -> None:
    """A Clip below a rewrite is written as its opset has it."""
    proto = text("""<ir_version: 4, opset_import: ["" : 9]>
        g (float[2,3,8,8] x) => (float[2,3,8,8] y) {
            a = Transpose <perm = [0,2,3,1]> (x)
            b = Transpose <perm = [0,3,1,2]> (a)
            c = Clip <min = 0.0, max = 6.0> (b)
            y = Pad <pads = [0,0,0,0,0,0,0,0]> (c)
        }""")
    made = superopt.optimize(proto, budget=60, cost="roofline").model
    assert "Transpose" not in {n.op_type for n in made.graph.node}
    x = drawn((2, 3, 8, 8)) * 9
    np.testing.assert_array_equal(
        session(made).run(None, {"x": x}), session(proto).run(None, {"x": x})
    )


@pytest.mark.parametrize("spatial", [0, 1])
def test_a_batch_normalization_of_channels(spatial: int) -> None:
    """As MXNet wrote it; that of single features is another one."""
    shape = "3" if spatial else "3,4,5"
    proto = text(f"""<ir_version: 4, opset_import: ["" : 8]>
        g (float[2,3,4,5] x, float[{shape}] s, float[{shape}] v) => (float[2,3,4,5] y)
        {{ y = BatchNormalization <spatial = {spatial}, epsilon = 0.01> (x, s, s, s, v) }}""")
    assert bool(imported(proto).opaque_reasons) == (spatial == 0)
    if spatial:
        x, s = drawn((2, 3, 4, 5)), drawn((3,))
        given = {"x": x, "s": s, "v": np.abs(s)}
        (wanted,) = session(proto).run(None, given)
        np.testing.assert_allclose(superopt.compile(proto).run(given)["y"], wanted, atol=1e-5)
        assert_same(proto)
