"""A corrected program is computed in place: the mutant as a whole, and over it what corrects it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.ir import graph as ir_graph
from superopt.kernels.runtime.cpu import host
from superopt.ops import OPS
from superopt.partial.correct.corrections import recompute
from superopt.partial.correct.partial_rules import load_pairs
from superopt.partial.correct.sized_pairs import pair_at, size_names
from superopt.partial.regions.find import find_regions
from superopt.plan.lowering.scatter_into import find_scatter_into
from superopt.plan.passes import plan_program
from superopt.plan.program.execute import load_program
from superopt.plan.program.plan import Settings
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType
from tests.support.compilation.forms import weights
from tests.support.compilation.models import F, I, model, near, reference

NODE = helper.make_node
SIZES = {"c": 16, "o": 16, "p": 32, "h": 12, "w": 18, "v": 8, "n": 2, "d": 4, "m": 9, "l": 8}
WIDE = {"side-by-side", "stacked", "three-side-by-side", "rows-as-a-batch", "side-by-side-signals"}
PAIRS = {p.name: p for p in load_pairs()}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", sorted(WIDE))
def test_corrections(name: str) -> None:
    pair = PAIRS[name]
    s = pair_at(pair, {n: SIZES[n] for n in size_names(pair)})
    assert s is not None
    v = recompute(s.program, s.mutant, find_regions(s.program, s.mutant))
    read = [
        x for n in ir_graph.nodes((s.program, v)) for x in n.inputs if isinstance(x, ir_graph.Input)
    ]
    inputs = tuple(dict.fromkeys(read))
    graph = ir_graph.Graph(inputs, (v,))
    (found,) = [p for n, p in find_scatter_into(graph, {}).items() if n is v]
    assert found.base is s.mutant
    assert sum(np.prod(x.type.shape) for _, x in found.updates) < np.prod(v.type.shape) / 2
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(x.type.shape).astype(np.float32) for x in inputs]
    out = [np.empty(v.type.shape, np.float32) for _ in range(2)]
    for y, root in zip(out, (s.program, v), strict=True):
        m = host()
        settings = Settings(m.width, processor=m.processor)
        made = plan_program(ir_graph.Graph(inputs, (root,)), {}, settings)
        load_program(made, m, 1, None)(given, (y,))
    np.testing.assert_allclose(out[1], out[0], rtol=1e-5, atol=1e-4)


def test_what_corrects_reads_a_copy_with_zeros_around() -> None:
    """Its window slides beyond the part of the picture that it reads, and asks for no edges."""
    x, k = _x(2, 16, 14, 14), ir_graph.Input("k", TensorType(F32, (16, 16, 3, 3)))

    def copied(begin: int, pads: tuple[int, ...]) -> bool:
        v = ir_graph.node(OPS["Conv"], [_cut(x, begin, begin + 4, axis=2), k], pads=pads)
        made = plan_program(ir_graph.Graph((x, k), (v,)), {}, Settings(host().width))
        return (2, 16, 4, 14) in {t.shape for t in made.call_results}

    assert copied(10, (1, 1, 0, 1))
    assert not copied(10, (0, 0, 0, 0))


def _x(*shape: int) -> ir_graph.Input:
    return ir_graph.Input("x", TensorType(F32, shape))


def _cut(v: ir_graph.Value, begin: int, end: int, axis: int = 0) -> ir_graph.Value:
    return ir_graph.node(OPS["Slice"], [v], starts=(begin,), ends=(end,), axes=(axis,))


def _joined(*some: ir_graph.Value, axis: int = 0) -> ir_graph.Node:
    return ir_graph.node(OPS["Concat"], some, axis=axis)


def test_where_it_holds() -> None:
    x = _x(8, 4)
    base = ir_graph.node(OPS["Relu"], [x])
    other = ir_graph.node(OPS["Neg"], [_cut(x, 5, 6)])

    def found(y: ir_graph.Value, *more: ir_graph.Value) -> bool:
        assert ir_graph.producer(y) is not None
        return ir_graph.producer(y) in find_scatter_into(ir_graph.Graph((x,), (y, *more)), {})

    whole = _joined(_cut(base, 0, 5), other, _cut(base, 6, 8))
    assert found(whole)
    assert found(_joined(_cut(base, 0, 5), _joined(other, _cut(base, 6, 8))))  # of joins
    assert found(ir_graph.node(OPS["Relu"], [whole]))  # and what is elementwise after it
    assert not found(ir_graph.node(OPS["Relu"], [whole]), whole)  # which is read itself, too
    assert not found(whole, base)  # the mutant is there anyway
    assert not found(_joined(_cut(base, 1, 6), other, _cut(base, 6, 8)))  # another place
    assert not found(
        _joined(_cut(base, 0, 3), ir_graph.node(OPS["Neg"], [_cut(x, 3, 8)]))
    )  # too little
    assert not found(_joined(_cut(x, 0, 5), other, _cut(x, 6, 8)))  # what is given, not computed
    assert not found(_joined(_cut(base, 0, 7), other, other))  # of another shape


@pytest.mark.one_in(2)
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_models(rows: int) -> None:
    """With an activation after it, of a size that the model does not say, given to two readers."""
    nodes = [
        NODE("Conv", ["x", "w"], ["m"], pads=[1, 1, 1, 1]),
        NODE("Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1]),
        NODE("Slice", ["m", "zero", "four", "axis"], ["left"]),
        NODE("Slice", ["c", "four", "five", "axis"], ["seam"]),
        NODE("Slice", ["m", "five", "end", "axis"], ["right"]),
        NODE("Concat", ["seam", "right"], ["rest"], axis=3),
        NODE("Concat", ["left", "rest"], ["y"], axis=3),
        NODE("Relu", ["y"], ["z"]),
        NODE("Add", ["z", "x"], ["u"]),
        NODE("MaxPool", ["z"], ["v"], kernel_shape=[1, 2]),
    ]
    places = {"zero": 0, "four": 4, "five": 5, "end": 9, "axis": 3}
    known = {k: np.array([v], np.int64) for k, v in places.items()}
    known |= weights(w=(16, 16, 3, 3), k=(16, 16, 3, 3))
    made: onnx.ModelProto = model(nodes, {"x": (F, [1, 16, "h", 9])}, ["u", "v"], known)
    x = np.random.default_rng(0).standard_normal((1, 16, rows, 9)).astype(np.float32)
    exe = superopt.compile(made)
    got, wanted = exe(x=x), reference(made, {"x": x})
    near(got, wanted)


def test_integers() -> None:
    """What is no kernel's sum is patched likewise."""
    nodes = [
        NODE("Mul", ["x", "x"], ["m"]),
        NODE("Slice", ["m", "zero", "four"], ["a"]),
        NODE("Slice", ["x", "four", "five"], ["b"]),
        NODE("Slice", ["m", "five", "end"], ["c"]),
        NODE("Concat", ["a", "b", "c"], ["y"], axis=0),
    ]
    places = {"zero": 0, "four": 4, "five": 5, "end": 9}
    known = {k: np.array([v], np.int64) for k, v in places.items()}
    exe = superopt.compile(model(nodes, {"x": (I, [9, 2])}, ["y"], known))
    x = np.arange(18, dtype=np.int64).reshape(9, 2)
    wanted = x * x
    wanted[4] = x[4]
    np.testing.assert_array_equal(exe(x=x)["y"], wanted)


def test_a_part_that_is_there_twice() -> None:
    nodes = [
        NODE("Mul", ["x", "x"], ["m"]),
        NODE("Slice", ["m", "zero", "four"], ["a"]),
        NODE("Concat", ["a", "a"], ["y"], axis=0),
    ]
    known = {k: np.array([v], np.int64) for k, v in {"zero": 0, "four": 4}.items()}
    exe = superopt.compile(model(nodes, {"x": (F, [8, 2])}, ["y"], known))
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    np.testing.assert_array_equal(exe(x=x)["y"], np.concatenate([(x * x)[:4]] * 2))
