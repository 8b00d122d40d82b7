"""Random models of the kinds that people have, with weights, in which rewrite rules find something.

`draw(family, seed)` gives one as ONNX, of 5 to 40 nodes: convolutional networks, perceptrons,
attention, elementwise and layout soup, reductions, recurrent cells and masks. Some have a symbolic
batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from random_builder import F32, I64, Builder


def draw(family: str, seed: int) -> onnx.ModelProto:
    """The model of a family and a seed."""
    b = Builder(seed * 1000 + list(FAMILIES).index(family))
    return b.model(FAMILIES[family](b))


# --- families: each gives its outputs -------------------------------------------------------------


def _activation(b: Builder, x: str) -> str:
    match b.rng.randrange(8):
        case 0 | 1 | 2:
            return b.op("Relu", x)
        case 3:
            return b.both("Mul", x, b.op("Sigmoid", x))
        case 4:
            return b.op("Clip", x, b.number(0.0), b.number(6.0))
        case 5:
            return b.op("Tanh", x)
        case 6:
            return b.op("Relu", b.op("Relu", x))
        case _:
            return x


def _conv(b: Builder, x: str, out: int, kernel: int, stride: int = 1, group: int = 1) -> str:
    n, c, h, w = b.shape[x]
    operands = [x, b.weight(out, c // group, kernel, kernel)]
    if b.rng.random() < 0.4:
        operands.append(b.weight(out))
    pad = kernel // 2
    size = [(d + 2 * pad - kernel) // stride + 1 for d in (h, w)]
    found = b.op(
        "Conv",
        *operands,
        shape=(n, out, *size),
        kernel_shape=[kernel, kernel],
        pads=[pad] * 4,
        strides=[stride, stride],
        group=group,
    )
    if b.rng.random() < 0.5:
        scale = b.constant(b.values.uniform(0.5, 1.5, out).astype(np.float32))
        spread = b.constant(b.values.uniform(0.5, 1.5, out).astype(np.float32))
        found = b.op("BatchNormalization", found, scale, b.weight(out), b.weight(out), spread)
    elif b.rng.random() < 0.3:
        found = b.both("Mul", found, b.weight(out, 1, 1))
        found = b.both("Add", found, b.weight(out, 1, 1))
    return found


def convolutions(b: Builder) -> list[str]:
    """Blocks: plain, residual, parallel branches, pools; a classifier."""
    x = b.input((b.rng.choice((1, 2)), b.rng.choice((3, 4, 6)), 12, 12))
    for _ in range(b.rng.randint(2, 4)):
        c = b.shape[x][1]
        match b.rng.randrange(5):
            case 0:
                x = _activation(b, _conv(b, x, b.rng.choice((4, 6, 8)), b.rng.choice((1, 3)), 1))
            case 1:
                y = _conv(b, _activation(b, _conv(b, x, c, 3)), c, 3)
                x = b.op("Relu", b.both("Add", y, x))
            case 2:
                some = [
                    _activation(b, _conv(b, x, b.rng.choice((2, 4)), b.rng.choice((1, 1, 3))))
                    for _ in range(b.rng.randint(2, 3))
                ]
                x = b.concat(some, 1)
            case 3:
                group = c if b.rng.random() < 0.5 else 1
                y = _conv(b, x, c, 3, 1, group)
                z = _conv(b, x, c, b.rng.choice((1, 3)), 1, group)
                x = b.both("Add", y, z)
            case _:
                n, c, h, w = b.shape[x]
                kind = b.rng.choice(("MaxPool", "AveragePool"))
                if min(h, w) >= 4:
                    x = b.op(
                        kind, x, shape=(n, c, h // 2, w // 2), kernel_shape=[2, 2], strides=[2, 2]
                    )
                x = _activation(b, x)
    n, c = b.shape[x][:2]
    pooled = b.op("GlobalAveragePool", x, shape=(n, c, 1, 1))
    flat = b.op("Flatten", pooled, shape=(n, c), axis=1)
    return [x, b.op("Gemm", flat, b.weight(5, c), b.weight(5), shape=(n, 5), transB=1)]


def _dense(b: Builder, x: str, out: int) -> str:
    k = b.shape[x][-1]
    if len(b.shape[x]) == 2 and b.rng.random() < 0.5:
        turned = b.rng.randrange(2)
        w = b.weight(out, k) if turned else b.weight(k, out)
        return b.op("Gemm", x, w, b.weight(out), shape=(b.shape[x][0], out), transB=turned)
    y = b.matmul(x, b.weight(k, out))
    return b.both("Add", y, b.weight(out)) if b.rng.random() < 0.7 else y


def _layer_norm(b: Builder, x: str) -> str:
    """Written out, as exporters did."""
    d = b.shape[x][-1]
    less = (*b.shape[x][:-1], 1)
    axes = [-1]
    y = b.both("Sub", x, b.op("ReduceMean", x, shape=less, axes=axes, keepdims=1))
    square = b.both("Pow", y, b.number(2.0)) if b.rng.randrange(2) else b.both("Mul", y, y)
    spread = b.op("ReduceMean", square, shape=less, axes=axes, keepdims=1)
    root = b.op("Sqrt", b.both("Add", spread, b.number(1e-5)))
    normal = b.both("Div", y, root)
    return b.both("Add", b.both("Mul", normal, b.weight(d)), b.weight(d))


def perceptrons(b: Builder) -> list[str]:
    """Towers over one or two inputs, side by side, some scaled, some normalized."""
    x = b.input((b.rng.choice((1, 4)), b.rng.choice((6, 8))))
    some: list[str] = [x]
    for _ in range(b.rng.randint(3, 7)):
        y = b.rng.choice(some[-2:])
        match b.rng.randrange(6):
            case 0 | 1:
                some.append(_activation(b, _dense(b, y, b.rng.choice((4, 8)))))
            case 2:
                out = b.rng.choice((4, 6))
                some += [_dense(b, y, out), _dense(b, y, out)]
                some.append(b.both(b.rng.choice(("Add", "Mul", "Sub")), some[-1], some[-2]))
            case 3:
                some.append(_layer_norm(b, y))
            case 4:
                some.append(b.both("Mul", _dense(b, y, 6), b.number(b.rng.choice((0.5, 2.0, 0.3)))))
            case _:
                some.append(b.concat([_dense(b, y, 4), _dense(b, y, 4)], 1))
    return [b.op("Softmax", _dense(b, some[-1], 5), axis=-1)]


def attention(b: Builder) -> list[str]:
    """A block of self-attention, its products' weights apart, perhaps a feed-forward part."""
    heads, size = b.rng.choice(((2, 4), (1, 8), (3, 2)))
    d, s = heads * size, b.rng.choice((4, 6))
    n = b.rng.choice((1, 2))
    x = b.input((n, s, d))
    x0 = _layer_norm(b, x) if b.rng.randrange(2) else x
    parts = []
    for k in range(3):
        y = b.reshape(_dense(b, x0, d), n, s, heads, size)
        turned = (0, 2, 3, 1) if k == 1 and b.rng.randrange(2) else (0, 2, 1, 3)
        y = b.transpose(y, turned)
        if k == 1 and turned == (0, 2, 1, 3):
            y = b.transpose(y, (0, 1, 3, 2))
        parts.append(y)
    q, key, v = parts
    way = b.rng.randrange(3)
    if way == 0:
        q = b.both("Mul", q, b.number(size**-0.5))
    scores = b.matmul(q, key)
    if way == 1:
        scores = b.both("Div", scores, b.number(size**0.5))
    if b.rng.randrange(2):
        scores = b.both("Add", scores, b.weight(1, 1, s, s))
    mixed = b.transpose(b.matmul(b.op("Softmax", scores, axis=-1), v), (0, 2, 1, 3))
    y = b.both("Add", _dense(b, b.reshape(mixed, n, s, d), d), x)
    if b.rng.randrange(2):
        y = b.both("Add", _dense(b, _activation(b, _dense(b, y, 2 * d)), d), y)
    return [y]


def elements(b: Builder) -> list[str]:
    """Elementwise operators with numbers, vectors and each other."""
    n, d = b.rng.choice((2, 3)), b.rng.choice((4, 5))
    some = [b.input((n, d)) for _ in range(b.rng.randint(1, 3))]
    for _ in range(b.rng.randint(6, 24)):
        x = b.rng.choice(some[-3:])
        match b.rng.randrange(8):
            case 0 | 1:
                some.append(b.both(b.rng.choice(("Add", "Mul", "Sub")), x, b.rng.choice(some)))
            case 2:
                v = b.number(b.rng.choice((0.0, 1.0, 2.0, 0.5, -1.0, 0.1)))
                some.append(b.both(b.rng.choice(("Add", "Mul", "Sub")), x, v))
            case 3:
                some.append(b.both(b.rng.choice(("Add", "Mul")), x, b.weight(d)))
            case 4:
                some.append(b.op(b.rng.choice(("Relu", "Neg", "Abs", "Neg", "Identity")), x))
            case 5:
                some.append(b.op(b.rng.choice(("Tanh", "Sigmoid", "Exp", "Erf")), b.op("Tanh", x)))
            case 6:
                v = b.number(b.rng.choice((2.0, 4.0, -0.5)))
                some.append(b.both("Div", x, v))
            case _:
                kind = b.rng.choice(("Max", "Min"))
                some.append(b.both(kind, x, b.rng.choice(some)))
    return [some[-1]]


def layouts(b: Builder) -> list[str]:
    """What moves elements, with elementwise operators and products between."""
    b.dynamic = False
    x = b.input((2, 4, 6))
    some = [x, b.input((2, 4, 6))]
    for _ in range(b.rng.randint(6, 20)):
        y = b.rng.choice(some[-3:])
        shape = b.shape[y]
        rank = len(shape)
        match b.rng.randrange(9):
            case 0 | 1:
                perm = b.rng.sample(range(rank), rank)
                some.append(b.transpose(y, perm))
            case 2:
                flat = int(np.prod(shape))
                to = b.rng.choice(((flat,), (2, flat // 2), (flat // 4, 2, 2), (4, flat // 4)))
                some.append(b.reshape(y, *to) if flat % 8 == 0 else b.op("Relu", y))
            case 3:
                axis = b.rng.randrange(rank)
                like = [v for v in some if b.shape[v] == shape]
                some.append(b.concat([y, b.rng.choice(like)], axis))
            case 4:
                axis = b.rng.randrange(rank)
                if shape[axis] % 2 == 0:
                    half = (*shape[:axis], shape[axis] // 2, *shape[axis + 1 :])
                    some += b.ops("Split", [y], [half, half], axis=axis)
            case 5:
                axis = b.rng.randrange(rank)
                if shape[axis] > 2:
                    less = (*shape[:axis], shape[axis] - 1, *shape[axis + 1 :])
                    at = b.rng.randrange(2)
                    ends = [b.integers(at), b.integers(shape[axis] - 1 + at), b.integers(axis)]
                    some.append(b.op("Slice", y, *ends, shape=less))
            case 6:
                some.append(b.op("Unsqueeze", y, b.integers(1), shape=(shape[0], 1, *shape[1:])))
                if b.rng.randrange(2):
                    some[-1] = b.op("Squeeze", b.op("Relu", some[-1]), b.integers(1), shape=shape)
            case 7:
                some.append(b.op(b.rng.choice(("Relu", "Neg", "Tanh")), y))
            case _:
                like = [v for v in some if b.shape[v] == shape]
                some.append(b.both(b.rng.choice(("Add", "Mul")), y, b.rng.choice(like)))
        if int(np.prod(b.shape[some[-1]])) > 2000 or len(b.shape[some[-1]]) > 5:
            some.append(x)
    return some[-2:]


def reductions(b: Builder) -> list[str]:
    """Sums, means, maxima and softmaxes of what was scaled, shifted, joined, moved."""
    b.dynamic = False
    x = b.input((2, 4, 6))
    some = [x]
    for _ in range(b.rng.randint(4, 12)):
        y = b.rng.choice(some[-2:])
        shape = b.shape[y]
        rank = len(shape)
        axis = b.rng.randrange(rank) if rank else 0
        match b.rng.randrange(7) if rank > 1 else 6:
            case 0:
                less = (*shape[:axis], 1, *shape[axis + 1 :])
                kind = b.rng.choice(("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2"))
                some.append(b.op(kind, y, shape=less, axes=[axis], keepdims=1))
                some.append(b.both(b.rng.choice(("Sub", "Add", "Mul")), y, some[-1]))
            case 1:
                less = (*shape[:axis], *shape[axis + 1 :])
                kind = b.rng.choice(("ReduceMean", "ReduceMax", "ReduceSumSquare"))
                some += [b.op(kind, y, shape=less, axes=[axis], keepdims=0), y]
            case 2:
                kind = b.rng.choice(("Softmax", "LogSoftmax"))
                some.append(b.op(kind, y, axis=axis))
            case 3:
                some.append(b.both(b.rng.choice(("Add", "Mul")), y, b.weight(shape[-1])))
            case 4:
                some.append(b.transpose(y, b.rng.sample(range(rank), rank)))
            case 5:
                some.append(_dense(b, y, b.rng.choice((4, 6))))
            case _:
                v = b.number(b.rng.choice((2.0, -1.0, 0.25)))
                some.append(b.both(b.rng.choice(("Mul", "Add", "Div")), y, v))
    return [some[-1]]


def cells(b: Builder) -> list[str]:
    """A recurrent cell, a few steps, the weights shared by these."""
    d = b.rng.choice((4, 6))
    n = b.rng.choice((1, 2))
    gates = b.rng.choice((1, 2, 3))
    w = [(b.weight(d, d), b.weight(d, d), b.weight(d)) for _ in range(gates)]
    h = b.input((n, d))
    for _ in range(b.rng.randint(1, 3)):
        x = b.input((n, d))
        made = []
        for k, (u, v, bias) in enumerate(w):
            y = b.both("Add", b.matmul(x, u), b.matmul(h, v))
            y = b.both("Add", y, bias) if b.rng.randrange(2) else y
            made.append(b.op(("Sigmoid", "Tanh", "Relu")[k], y))
        for y in made:
            h = b.both(b.rng.choice(("Mul", "Add")), h, y)
    return [h]


def masks(b: Builder) -> list[str]:
    """Comparisons, choices, casts, tables that are indexed."""
    table = b.weight(9, 6)
    i = b.input((b.rng.choice((2, 4)), 3), I64)
    y = b.op("Gather", table, i, shape=(*b.shape[i], 6), axis=0)
    if b.rng.randrange(2):
        y = b.both("Mul", y, b.weight(6))
    x = b.input(b.shape[y] if not b.dynamic else (1, *b.shape[y][1:]))
    for _ in range(b.rng.randint(2, 6)):
        match b.rng.randrange(6):
            case 0:
                test = b.both(b.rng.choice(("Less", "Greater", "GreaterOrEqual")), x, y)
                if b.rng.randrange(2):
                    test = b.op("Not", test)
                y = b.op("Where", test, x, y, shape=b.shape[y])
            case 1:
                test = b.both("Less", y, b.number(0.0))
                y = b.both("Mul", y, b.op("Cast", test, to=F32))
            case 2:
                y = _dense(b, y, 6)
            case 3:
                y = b.op("Relu", b.op("Relu", y))
            case 4:
                y = b.transpose(b.transpose(y, (0, 2, 1)), (0, 2, 1))
            case _:
                y = b.both("Add", b.both("Mul", y, b.number(2.0)), x)
    return [y]


FAMILIES: dict[str, Callable[[Builder], list[str]]] = {
    f.__name__: f
    for f in (
        convolutions,
        perceptrons,
        attention,
        elements,
        layouts,
        reductions,
        cells,
        masks,
    )
}
