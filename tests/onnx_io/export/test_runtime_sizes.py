"""Models with symbolic sizes run at every size after export, empty tensors included."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from superopt.ir import graph
from superopt.onnx_io.export.exporter import ExportError, export_graph, export_model
from superopt.onnx_io.export.operand_forms import (
    ALLOWZERO_SINCE_OPSET,
    NUM_OUTPUTS_SINCE_OPSET,
    reshape_form,
)
from superopt.onnx_io.export.runtime_sizes import INT64_MIN_MAX_SINCE_OPSET, is_non_negative
from superopt.onnx_io.read.weightless import draw_weights
from superopt.ops import OPS
from superopt.ops.shared.sizes import ceil_div, floor_div, max_size, min_size
from superopt.te.expr import index
from superopt.te.expr.dtype import BF16, F32, I32, I64, DType, to_numpy
from superopt.te.expr.node import Expr, Size
from superopt.te.expr.tensor import TensorType
from tests.support.onnx_io.rounds import assert_runs_alike, imported, session, text, through

N, M = Size("n"), Size("m")
SIZES = ((1, 1), (2, 3), (5, 4), (0, 3), (2, 0), (0, 0))

# What computes `s`, an int64[k], from the shape of x[n, m, 4], and one node that takes it.
HEAD = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, m, 4] x) => ({type} y) <
        int64[1] i0 = {{0}}, int64[1] i1 = {{1}}, int64[1] four = {{4}}, int64[1] two = {{2}},
        int64[1] one = {{1}}, int64[1] rest = {{-1}}, int64[1] zero = {{0}}, int64 z = {{0}},
        int64 u = {{1}}, int64[3] ones = {{1, 1, 1}}
    > {{
        shape = Shape(x)
        n = Gather <axis = 0> (shape, i0)
        m = Gather <axis = 0> (shape, i1)
        {body}
    }}"""
BODIES = {
    "Reshape: one size left": (
        "float[?, 4]",
        "s = Concat <axis = 0> (rest, four) y = Reshape(x, s)",
    ),
    "Reshape: sizes kept": (
        "float[n, m, 2, 2]",
        "s = Concat <axis = 0> (n, m, two, two) y = Reshape(x, s)",
    ),
    "Reshape: a product": (
        "float[?, 4]",
        "p = Mul(n, m) s = Concat <axis = 0> (p, four) y = Reshape(x, s)",
    ),
    "Reshape: two sizes, from a product": (
        "float[?, ?, 4]",
        """p = Mul(n, m) s = Concat <axis = 0> (p, four) f = Reshape(x, s)
           e = Exp(f) t = Concat <axis = 0> (m, n, four) y = Reshape <allowzero = 1> (e, t)""",
    ),
    "Reshape: kept and computed": (
        "float[n, ?]",
        "p = Mul(m, four) s = Concat <axis = 0> (n, p) y = Reshape <allowzero = 1> (x, s)",
    ),
    "Expand": (
        "float[n, m, 4]",
        """a = Constant <value = float[1, 1, 4] {1, 2, 3, 4}> ()
           s = Concat <axis = 0> (n, m, four) y = Expand(a, s)""",
    ),
    "Expand: the operand's own sizes": (
        "float[?, n, m, 4]",
        "s = Concat <axis = 0> (two, n, m, four) y = Expand(x, s)",
    ),
    "Tile": ("float[?, m, ?]", "s = Concat <axis = 0> (m, one, n) y = Tile(x, s)"),
    "Slice: to a size": (
        "float[?, 4]",
        """a = Constant <value = float[1] {2}> () b = Constant <value = int64[2] {9, 4}> ()
           table = Expand(a, b) y = Slice(table, zero, n, i0)""",
    ),
    "Slice: from a size": ("float[?, m, 4]", "h = Div(n, two) y = Slice(x, h, n, i0)"),
    "Slice: all but the last": ("float[?, m, 4]", "l = Sub(n, one) y = Slice(x, zero, l, i0)"),
    "ConstantOfShape": (
        "int32[n, ?]",
        """p = Add(m, two) s = Concat <axis = 0> (n, p)
           y = ConstantOfShape <value = int32[1] {7}> (s)""",
    ),
    "Range": ("int64[?]", "l = Squeeze(n) y = Range(z, l, u)"),
    "Range of another type": (
        "int32[?]",
        """l = Squeeze(n) k = Cast <to = 6> (l) a = Constant <value = int32 {0}> ()
           b = Constant <value = int32 {1}> () y = Range(a, k, b)""",
    ),
    "sizes compared": (
        "float[?, 4]",
        """k = Max(n, m) l = Min(k, two) p = Add(l, m)
           s = Concat <axis = 0> (p, four) y = ConstantOfShape(s)""",
    ),
    "sizes divided": (
        "float[?, ?]",
        """k = Add(n, one) h = Div(k, two) r = Mod(n, two)
           s = Concat <axis = 0> (h, r) y = ConstantOfShape(s)""",
    ),
}  # fmt: skip


def dynamic(name: str) -> onnx.ModelProto:
    kind, body = BODIES[name]
    return text(HEAD.format(type=kind, body=body))


def feeds(sizes: tuple[tuple[int, int], ...] = SIZES) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((n, m, 4)).astype(np.float32)} for n, m in sizes]


@pytest.mark.one_in(14)
@pytest.mark.parametrize("opset", [11, 13, 14, 17, 21])
@pytest.mark.parametrize("name", BODIES)
def test_a_computed_size_is_computed_again(name: str, opset: int) -> None:
    made = dynamic(name)
    if name == "sizes compared" and opset < INT64_MIN_MAX_SINCE_OPSET:
        pytest.skip(f"opset {opset} compares no integers")
    if opset < ALLOWZERO_SINCE_OPSET:
        for n in made.graph.node:
            for a in list(n.attribute):
                if a.name == "allowzero":
                    n.attribute.remove(a)
    made.opset_import[0].version = opset
    if opset < 13:
        for n in made.graph.node:
            if n.op_type == "Squeeze":
                n.attribute.append(helper.make_attribute("axes", [0]))
    model = imported(made)
    assert model.opaque_reasons == ()
    out = through(made)
    onnx.checker.check_model(out, full_check=True)
    sizes = (
        SIZES if opset >= ALLOWZERO_SINCE_OPSET else SIZES[:3]
    )  # before, a computed 0 means "keep the size"
    assert_runs_alike(made, out, feeds(sizes))
    assert len(out.graph.node) <= len(made.graph.node)


def test_few_sizes_are_computed() -> None:
    for name, wanted in (
        ("Reshape: one size left", ["Reshape"]),
        ("Reshape: sizes kept", ["Reshape"]),
        ("Reshape: a product", ["Reshape"]),
        ("Expand: the operand's own sizes", ["Expand"]),
        ("Slice: all but the last", ["Slice"]),
    ):
        assert [n.op_type for n in through(dynamic(name)).graph.node] == wanted


def test_split_into_equal_parts() -> None:
    for opset in (13, 17, 18):
        made = text("""<ir_version: 8, opset_import: ["" : 17]>
            g (float[n, 6] x) => (float[n, 6] a, float[n, 6] b) {
                shape = Shape(x)
                i = Constant <value = int64[1] {0}> ()
                n = Gather <axis = 0> (shape, i)
                parts = Concat <axis = 0> (n, n)
                d = Concat <axis = 0> (x, x)
                a, b = Split <axis = 0> (d, parts)
            }""")
        made.opset_import[0].version = opset
        out = through(made)
        (split,) = (n for n in out.graph.node if n.op_type == "Split")
        assert len(split.input) == (1 if opset < NUM_OUTPUTS_SINCE_OPSET else 2)
        rows = [{"x": np.ones((k, 6), np.float32)} for k in (1, 4, 0)]
        assert_runs_alike(made, out, rows)


def test_sizes_that_only_a_result_tells() -> None:
    """NonZero finds k places; k is a size of everything after it, and 0 is possible."""
    made = text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 4] x) => (float[?, 2] y, float[?] z, int64[?] flat, float[?, 3] e) <
            int64[1] i1 = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] rest = {-1},
            float[1, 1] one = {1}
        > {
            places = NonZero(x)
            turned = Transpose <perm = [1, 0]> (places)
            y = Cast <to = 1> (turned)
            flat = Reshape(turned, rest)
            shape = Shape(places)
            k = Gather <axis = 0> (shape, i1)
            z = ConstantOfShape(k)
            s = Concat <axis = 0> (k, three)
            e = Expand(one, s)
        }""")
    model = imported(made)
    assert dict(model.opaque_reasons).keys() == {"places", "z", "e"}
    assert "known only from another node's result" in dict(model.opaque_reasons)["z"]
    rows = [{"x": np.array(x, "f").reshape(-1, 4)} for x in ([1, 0, 0, 2], [0] * 4, [1] * 8, [])]
    assert_runs_alike(made, through(made), rows)


def test_a_size_is_read_after_the_node_that_tells_it() -> None:
    """A rewrite may leave a node whose size no operand has: NonZero is written for it, before."""
    made = text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n] x, float[1] c) => (float[?] y) <int64[1] rest = {-1}> {
            places = NonZero(x)
            i = Reshape(places, rest)
            f = Cast <to = 1> (i)
            zero = Sub(f, f)
            y = Add(zero, c)
        }""")
    model = imported(made)
    (k,) = model.graph.outputs[0].type.shape or ()
    c = model.graph.inputs[1]
    for rewritten in (
        graph.node(OPS["Expand"], [c], shape=(k,)),
        graph.node(OPS["Tile"], [c], repeats=(k,)),
    ):
        new = graph.Graph(model.graph.inputs, (rewritten,))
        out = onnx_ir.to_proto(export_model(model, new))
        onnx.checker.check_model(out, full_check=True)
        rows = [{"x": np.array(x, "f"), "c": np.array([7], "f")} for x in ([1, 0, 2], [0], [1] * 9)]
        assert_runs_alike(made, out, rows)


def test_nodes_that_need_each_others_sizes() -> None:
    made = text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1] x) => (int64[1, ?] y) { y = NonZero(x) }""")
    model = imported(made)
    (opaque,) = (n for n in graph.nodes(model.graph))
    k = opaque.type.shape[1]  # type: ignore[index]
    wide = graph.node(OPS["Expand"], [model.graph.inputs[0]], shape=(k,))
    circle = graph.intern_node(opaque.op, (wide,), opaque.attrs, opaque.types)
    with pytest.raises(ExportError, match="needs a size that is known only from a later node"):
        export_model(model, graph.Graph(model.graph.inputs, (circle,)))


@pytest.mark.parametrize(
    ("source", "target", "opset", "wanted"),
    [
        ((N, 6), (N, 2, 3), 17, ((0, 2, 3), 0)),
        ((N, 6), (index.dim(N * 2), 3), 17, ((-1, 3), 0)),
        ((N, M, 4), (N, index.dim(M * 4)), 17, ((N, index.dim(M * 4)), 1)),
        ((N, M, 4), (N, index.dim(M * 4)), 13, ((0, index.dim(M * 4)), 0)),
        ((6, 4), (3, 8), 17, ((3, 8), 0)),
        ((0, 4), (0, 2, 2), 17, ((0, 2, 2), 0)),
        ((4, 0), (0, 2, 2), 17, ((0, 2, 2), 1)),
        ((4, 0), (0, 2, 2), 13, ((-1, 2, 2), 0)),
        ((N, 0), (0, N), 17, ((0, N), 1)),
        ((N, M), (M, floor_div(index.dim(N * M), M)), 17, ((M, N), 1)),
        ((N, 6), (M, floor_div(index.dim(N * 6), M)), 17, ((M, -1), 0)),
    ],
)
def test_reshape_forms(
    source: tuple[int | Expr, ...],
    target: tuple[int | Expr, ...],
    opset: int,
    wanted: tuple[tuple[int | Expr, ...], int],
) -> None:
    assert reshape_form(source, target, opset) == wanted


def test_a_reshape_that_an_old_opset_cannot_say() -> None:
    x = graph.Input("x", TensorType(F32, (0, 4)))
    y = graph.node(OPS["Reshape"], [x], shape=(4, 0, 0), allowzero=1)
    with pytest.raises(ExportError, match=r"Reshape: Reshape to .* has no words in opset 13"):
        export_graph(graph.Graph((x,), (y,)), opset=13, ir_version=7)


def test_sizes_may_be_zero_at_run_time() -> None:
    assert is_non_negative(index.as_index(N + 1))
    assert is_non_negative(index.as_index(N * M))
    assert not is_non_negative(index.as_index(N - 1))  # although a size counts as 1 at least
    x = graph.Input("x", TensorType(F32, (N, 2)))
    quotients = (floor_div(index.dim(N - 1), 2), ceil_div(N, 2), floor_div(index.dim(M * 2 - 1), N))
    for d in (*quotients, index.dim(N % 2), max_size(N, M), min_size(N, M)):
        y = graph.node(
            OPS["Expand"],
            [graph.constant(np.ones(1, "f"))],
            shape=(index.dim(index.as_index(d) + 1),),
        )
        inputs = (x, graph.Input("z", TensorType(F32, (M,)))) if "m" in str(d) else (x,)
        for opset in (11, 17):
            out = onnx_ir.to_proto(
                export_graph(graph.Graph(inputs, (y,)), opset=opset, ir_version=7)
            )
            run = session(out)
            for n in (3, 2, 1):
                arrays = {"x": np.ones((n, 2), "f"), "z": np.ones(4, "f")}
                (got,) = run.run(None, {i.name: arrays[i.name] for i in inputs})
                sizes = {"n": n, "m": 4}
                assert got.shape == (index.evaluate(d, sizes) + 1,)


def test_a_size_that_nothing_tells() -> None:
    x = graph.Input("x", TensorType(F32, (2,)))
    y = graph.node(OPS["Expand"], [graph.node(OPS["Unsqueeze"], [x], axes=(1,))], shape=(2, N))
    with pytest.raises(ExportError, match="the size n is in the shape of no input"):
        export_graph(graph.Graph((x,), (y,)), opset=17, ir_version=8)


@pytest.mark.parametrize("dtype", [I64, I32, F32, BF16], ids=str)
def test_element_types_of_generated_tensors(dtype: DType) -> None:
    x = graph.Input("x", TensorType(F32, (N, 2)))
    filled = graph.node(OPS["ConstantOfShape"], [], input=(N, 3), value=2, dtype=dtype)
    out = onnx_ir.to_proto(export_graph(graph.Graph((x,), (filled,)), opset=21, ir_version=10))
    onnx.checker.check_model(out, full_check=True)
    tensor = numpy_helper.to_array(out.graph.node[-1].attribute[0].t)
    assert tensor.tolist() == [2]
    assert tensor.dtype == to_numpy(dtype)
    if dtype.is_int:
        counted = graph.node(OPS["Range"], [], start=0, limit=N, delta=1, dtype=dtype)
        out = onnx_ir.to_proto(export_graph(graph.Graph((x,), (counted,)), opset=17, ir_version=8))
        (got,) = session(out).run(None, {"x": np.ones((5, 2), "f")})
        assert got.tolist() == [0, 1, 2, 3, 4]
        assert got.dtype == to_numpy(dtype)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("bert_2l_dynamic", [(1, 8), (3, 17), (2, 1)]),
        ("resnet18_dynamic", [(1, 0), (3, 0)]),
    ],
)
def test_real_models_at_several_sizes(
    name: str, sizes: list[tuple[int, int]], weightless_models: dict[str, Path]
) -> None:
    made = draw_weights(weightless_models[name])
    rng = np.random.default_rng(0)
    rows = []
    for batch, sequence in sizes:
        row: dict[str, np.ndarray] = {}
        for v in made.graph.input:
            kind = v.type.tensor_type
            known = {"batch": batch, "sequence": sequence}
            shape = [known.get(d.dim_param, d.dim_value) for d in kind.shape.dim]
            row[v.name] = (
                rng.standard_normal(shape).astype(np.float32)
                if kind.elem_type == TensorProto.FLOAT
                else rng.integers(0, 2, shape)
            )
        rows.append(row)
    assert imported(made).opaque_reasons == ()
    out = through(made, folded=True)
    assert_runs_alike(made, out, rows, rtol=1e-4, atol=1e-5)
    assert out.graph.output == made.graph.output
    assert out.graph.input == made.graph.input
