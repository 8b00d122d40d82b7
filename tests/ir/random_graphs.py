"""Random small graphs for property tests: shared nodes, several results, constants, odd names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from superopt.ir.graph import Graph, Input, Value, constant, node, results
from superopt.ir.op import Attr, InferError
from superopt.ops import OPS
from superopt.te.dtype import F32
from superopt.te.expr import TensorType
from superopt.te.node import Dim, Size

NAMES = ("x", "y", "input.1", "onnx::Add 3", "f32", "_r1", 'a "b"', "k:0", "nan", "lambda", "é")
SYMBOLS = ("batch", "past + 1", "unk__3", "size")


@st.composite
def graphs(draw: st.DrawFn, symbolic: bool = True, most: int = 14) -> Graph:
    """A graph of f32 tensors with up to `most` applications."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    lead: Dim = 4
    if symbolic and draw(st.booleans()):
        lead = Size(draw(st.sampled_from(SYMBOLS)))
    shapes: list[tuple[Dim, ...]] = [(lead, 4), (4, 4), (lead, 2, 4), (4,)]
    inputs = tuple(Input(n, TensorType(F32, draw(st.sampled_from(shapes)))) for n in names)
    pool: list[Value] = [*inputs, *draw(st.lists(_constants(), max_size=3))]

    def pick() -> Value:
        return draw(st.sampled_from(pool))

    for _ in range(draw(st.integers(1, most))):
        make = draw(st.sampled_from(_STEPS))
        try:
            pool += make(draw, pick)
        except InferError:
            continue  # these operands do not fit: one node fewer
    outputs = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=4))
    return Graph(inputs, (*outputs, pool[-1]))


@st.composite
def _constants(draw: st.DrawFn) -> Value:
    shape = draw(st.sampled_from([(), (1,), (4,), (4, 4), (8, 4)]))
    pick = st.sampled_from([0.0, -0.0, 1.0, 2.0, 0.5, float("inf"), float("nan"), 1e-45, 0.1])
    count = int(np.prod(shape))
    values = draw(st.lists(pick, min_size=count, max_size=count))
    if draw(st.booleans()):
        values = [values[0]] * count
    return constant(np.array(values, np.float32).reshape(shape))


Draw = st.DrawFn
Pick = Callable[[], Value]


def _apply(name: str, *inputs: Value, **attrs: Attr) -> list[Value]:
    return list(results(node(OPS[name], inputs, **attrs)))


def _unary(draw: Draw, pick: Pick) -> list[Value]:
    return _apply(draw(st.sampled_from(["Relu", "Neg", "Abs", "Tanh", "Sigmoid"])), pick())


def _binary(draw: Draw, pick: Pick) -> list[Value]:
    return _apply(draw(st.sampled_from(["Add", "Mul", "Sub", "MatMul"])), pick(), pick())


def _nary(draw: Draw, pick: Pick) -> list[Value]:
    given = [pick() for _ in range(draw(st.integers(1, 4)))]
    return _apply(draw(st.sampled_from(["Max", "Min", "Sum"])), *given)


def _concat(draw: Draw, pick: Pick) -> list[Value]:
    given = [pick() for _ in range(draw(st.integers(1, 4)))]
    return _apply("Concat", *given, axis=draw(st.integers(-1, 1)))


def _split(draw: Draw, pick: Pick) -> list[Value]:
    sizes = draw(st.sampled_from([(2, 2), (1, 3), (1, 1, 2), (4,)]))
    return _apply("Split", pick(), axis=draw(st.integers(-1, 1)), split=sizes)


def _transpose(draw: Draw, pick: Pick) -> list[Value]:
    v = pick()
    return _apply("Transpose", v, perm=tuple(draw(st.permutations(range(len(v.type.shape or ()))))))


def _reshape(draw: Draw, pick: Pick) -> list[Value]:
    return _apply(
        "Reshape", pick(), shape=draw(st.sampled_from([(-1,), (-1, 4), (0, -1), (2, -1)]))
    )


_STEPS = (_unary, _unary, _binary, _binary, _binary, _nary, _concat, _split, _transpose, _reshape)
