"""Random small graphs for property tests: shared nodes, several results, constants, odd names."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
from hypothesis import strategies as st

from superopt.ir.graph import Graph, Input, Value, constant, node, results, users
from superopt.ir.op import Attr, InferError
from superopt.ops import OPS
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Dim, Size
from superopt.te.expr.tensor import TensorType

NAMES = ("x", "y", "input.1", "onnx::Add 3", "f32", "_r1", 'a "b"', "k:0", "nan", "lambda", "é")
SYMBOLS = ("batch", "past + 1", "unk__3", "size")


@st.composite
def graphs(draw: st.DrawFn, symbolic: bool = True, most: int = 20) -> Graph:
    """A graph of f32 tensors with up to `most` applications."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    lead: Dim = 4
    if symbolic and draw(st.booleans()):
        lead = Size(draw(st.sampled_from(SYMBOLS)))
    shapes: list[tuple[Dim, ...]] = [(4, 4), (4, 4), (4, 4), (lead, 4), (lead, 2, 4), (4,)]
    inputs = tuple(Input(n, TensorType(F32, draw(st.sampled_from(shapes)))) for n in names)
    pool: list[Value] = [*inputs, *draw(st.lists(_constants(), max_size=3))]

    def pick(like: Value | None = None) -> Value:
        """A value, the last ones more likely, mostly of the type of `like`."""
        same = [v for v in pool if like is not None and v.type == like.type]
        some = same if same and draw(st.integers(0, 4)) else pool
        return some[max(-1 - draw(st.integers(0, 6)), -len(some))]

    for _ in range(draw(st.integers(most // 4, most))):
        make = draw(st.sampled_from(_STEPS))
        try:
            pool += make(draw, pick)
        except InferError:
            continue  # these operands do not fit: one node fewer
    outputs = draw(st.lists(st.sampled_from(pool), max_size=2))
    return Graph(inputs, (*outputs, *pool[-3:]))


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
Pick = Callable[..., Value]


def _apply(name: str, *inputs: Value, **attrs: Attr) -> list[Value]:
    return list(results(node(OPS[name], inputs, **attrs)))


def _unary(draw: Draw, pick: Pick) -> list[Value]:
    return _apply(draw(st.sampled_from(["Relu", "Neg", "Abs", "Tanh", "Sigmoid"])), pick())


def _binary(draw: Draw, pick: Pick) -> list[Value]:
    first = pick()
    return _apply(draw(st.sampled_from(["Add", "Mul", "Sub", "MatMul"])), first, pick(first))


def _nary(draw: Draw, pick: Pick) -> list[Value]:
    first = pick()
    given = [first, *(pick(first) for _ in range(draw(st.integers(0, 3))))]
    return _apply(draw(st.sampled_from(["Max", "Min", "Sum"])), *given)


def _concat(draw: Draw, pick: Pick) -> list[Value]:
    first = pick()
    given = [first, *(pick(first) for _ in range(draw(st.integers(0, 3))))]
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


def dense(seed: int, count: int = 40) -> Graph:
    """A graph of `count` or fewer nodes on 4 x 4 matrices, in which many rules find something."""
    rng = Random(seed)
    x, y = (Input(n, TensorType(F32, (4, 4))) for n in "xy")
    two = constant(np.full((4, 4), 2, np.float32))
    table = constant(np.arange(16, dtype=np.float32).reshape(4, 4) / 8 + 0.25)
    pool: list[Value] = [x, y, two, table]

    def pick() -> Value:
        return rng.choice(pool[-4:] if rng.random() < 0.8 else pool)

    for _ in range(count):
        name = rng.choice(_DENSE)
        match name:
            case "Relu" | "Neg":
                pool.append(node(OPS[name], [pick()]))
            case "Transpose":
                pool.append(node(OPS[name], [pick()], perm=rng.choice(((0, 1), (1, 0)))))
            case "Max":
                pool.append(node(OPS[name], [pick() for _ in range(rng.randint(2, 4))]))
            case "Concat":
                axis = rng.randint(0, 1)
                some = [pick() for _ in range(rng.randint(2, 3))]
                joined = node(OPS[name], some, axis=axis)
                sizes = (4,) * len(some)
                pool += results(node(OPS["Split"], [joined], axis=axis, split=sizes))
            case _:
                pool.append(node(OPS[name], [pick(), pick()]))
    g = Graph((x, y), tuple(pool))
    read = users(g)
    return Graph((x, y), tuple(v for v in dict.fromkeys(pool) if v not in read))


_DENSE = (
    "Add",
    "Add",
    "Mul",
    "Mul",
    "Sub",
    "Sub",
    "MatMul",
    "Relu",
    "Neg",
    "Transpose",
    "Max",
    "Concat",
)
