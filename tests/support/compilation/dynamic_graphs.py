"""Random ONNX models whose inputs have one or two symbolic sizes, n and m."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.support.compilation.dynamic_builder import (
    Builder,
    Dim,
    Tensor,
    bound_values,
    broadcast,
    value,
)
from tests.support.compilation.dynamic_layers import add_recurrent, add_scan
from tests.support.compilation.dynamic_movement import MOVEMENT_STEPS
from tests.support.compilation.dynamic_sizes import SIZE_STEPS

OPSET = 18
FEATURES = (1, 3, 5, 8, 16, 20)  # fixed sizes of axes


def _unary(b: Builder) -> None:
    t = b.pick()
    assert t is not None
    op = b.random.choice(["Relu", "Neg", "Abs", "Tanh", "Sigmoid", "Exp", "Sin", "Softplus"])
    b.add(op, t.shape, bound_values(b, t).name, bounded=True)


def _cast(b: Builder) -> None:
    t = b.pick()
    assert t is not None
    to = b.random.choice([TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL])
    (scaled,) = b.node("Mul", bound_values(b, t).name, b.constant(np.float32(7.3)))
    (cast,) = b.node("Cast", scaled, to=to)
    b.add("Cast", t.shape, cast, to=TensorProto.FLOAT, bounded=True)


def _binary(b: Builder) -> None:
    x = b.pick()
    assert x is not None
    y = b.pick(lambda t: broadcast(x.shape, t.shape) is not None)
    if y is None or b.random.random() < 0.2:
        tail = x.shape[b.random.randint(0, len(x.shape)) :]
        shape = tuple(d if isinstance(d, int) and b.random.random() < 0.8 else 1 for d in tail)
        y = Tensor(b.floats(*shape), shape, True)
    shape = broadcast(x.shape, y.shape)
    assert shape is not None
    op = b.random.choice(["Add", "Sub", "Mul", "Max", "Min"])
    names = [x.name, y.name]
    b.random.shuffle(names)
    made = b.add(op, shape, *names)
    b.pool[-1] = Tensor(made.name, shape, False)


def _where(b: Builder) -> None:
    x = b.pick()
    assert x is not None
    y = b.pick(lambda t: broadcast(x.shape, t.shape) is not None)
    z = b.pick(lambda t: broadcast(x.shape, t.shape) == x.shape)
    if y is None or z is None:
        return
    shape = broadcast(x.shape, y.shape)
    assert shape is not None
    (low,) = b.node(b.random.choice(["Less", "Greater"]), z.name, b.constant(np.float32(0.1)))
    b.add("Where", shape, low, x.name, y.name, bounded=x.is_bounded and y.is_bounded)


def _matmul(b: Builder) -> None:
    x = b.pick(lambda t: len(t.shape) >= 2 and isinstance(t.shape[-1], int))
    if x is None:
        return
    k, n = x.shape[-1], b.random.choice([1, 4, 7, 16, 33])
    assert isinstance(k, int)
    x = bound_values(b, x)
    if len(x.shape) == 2 and b.random.random() < 0.4:
        w = b.floats(n, k)
        b.add("Gemm", (x.shape[0], n), x.name, w, b.floats(n), transB=1, alpha=0.5)
    else:
        b.add("MatMul", (*x.shape[:-1], n), x.name, b.floats(k, n))


def _attention(b: Builder) -> None:
    """Products of two values: x x', and a x'."""
    x = b.pick(lambda t: len(t.shape) >= 2)
    if x is None:
        return
    x = bound_values(b, x)
    order = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
    turned = b.add("Transpose", tuple(x.shape[d] for d in order), x.name, perm=order, bounded=True)
    y = b.add("MatMul", (*x.shape[:-1], x.shape[-2]), x.name, turned.name)
    if b.random.random() < 0.6:
        (scaled,) = b.node("Mul", y.name, b.constant(np.float32(0.3)))
        p = b.add("Softmax", y.shape, scaled, axis=-1, bounded=True)
        b.add("MatMul", x.shape, p.name, x.name)


def _softmax(b: Builder) -> None:
    x = b.pick(lambda t: len(t.shape) >= 1)
    if x is not None:
        op = b.random.choice(["Softmax", "Softmax", "LogSoftmax"])
        axis = b.random.randrange(len(x.shape))
        b.add(op, x.shape, bound_values(b, x).name, axis=axis, bounded=op == "Softmax")


def _layer_norm(b: Builder) -> None:
    x = b.pick(lambda t: len(t.shape) >= 1 and isinstance(t.shape[-1], int))
    if x is None:
        return
    n = x.shape[-1]
    assert isinstance(n, int)
    b.add("LayerNormalization", x.shape, x.name, b.floats(n), b.floats(n), axis=-1, epsilon=0.1)


def _normalize(b: Builder) -> None:
    """(x - mean) / sqrt(variance), over any axis."""
    x = b.pick(lambda t: len(t.shape) >= 1)
    if x is None:
        return
    axes = b.ints(b.random.randrange(len(x.shape)))
    (mean,) = b.node("ReduceMean", x.name, axes, keepdims=1)
    (centered,) = b.node("Sub", x.name, mean)
    (square,) = b.node("Mul", centered, centered)
    (variance,) = b.node("ReduceMean", square, axes, keepdims=1)
    (more,) = b.node("Add", variance, b.constant(np.float32(0.1)))
    (root,) = b.node("Sqrt", more)
    b.add("Div", x.shape, centered, root)


def _reduce(b: Builder) -> None:
    x = b.pick(lambda t: len(t.shape) >= 1)
    if x is None:
        return
    axes = b.random.sample(range(len(x.shape)), b.random.randint(1, min(2, len(x.shape))))
    kept = b.random.randint(0, 1)
    shape = tuple(1 if d in axes else n for d, n in enumerate(x.shape) if kept or d not in axes)
    op = b.random.choice(["ReduceMean", "ReduceMax", "ReduceSum", "ReduceMin", "ReduceL2"])
    b.add(op, shape, x.name, b.ints(*axes), keepdims=kept)


def _arg(b: Builder) -> None:
    x = b.pick(lambda t: len(t.shape) >= 1)
    if x is None:
        return
    axis = b.random.randrange(len(x.shape))
    op = b.random.choice(["ArgMax", "ArgMin"])
    (scaled,) = b.node("Mul", bound_values(b, x).name, b.constant(np.float32(3.3)))
    (rounded,) = b.node("Round", scaled)  # ties, which rounding errors do not decide
    (found,) = b.node(op, rounded, axis=axis, keepdims=1)
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    b.add("Cast", shape, found, to=TensorProto.FLOAT)


def _cumsum(b: Builder) -> None:
    x = b.pick(lambda t: len(t.shape) >= 1)
    if x is None:
        return
    axis = b.constant(np.int64(b.random.randrange(len(x.shape))))
    flags = {"exclusive": b.random.randint(0, 1), "reverse": b.random.randint(0, 1)}
    b.add("CumSum", x.shape, bound_values(b, x).name, axis, **flags)


def _top_k(b: Builder) -> None:
    x = b.pick(lambda t: len(t.shape) >= 1)
    if x is None:
        return
    axis = b.random.randrange(len(x.shape))
    n = x.shape[axis]
    k = 1 if isinstance(n, str) else b.random.randint(1, n)
    values, _ = b.node("TopK", x.name, b.ints(k), outputs=2, axis=axis)
    b.pool.append(Tensor(values, (*x.shape[:axis], k, *x.shape[axis + 1 :]), x.is_bounded))


def _conv(b: Builder) -> None:
    """A convolution over one or two axes."""
    x = b.pick(lambda t: len(t.shape) in (3, 4) and isinstance(t.shape[1], int))
    if x is None:
        return
    rank, channels = len(x.shape) - 2, x.shape[1]
    assert isinstance(channels, int)
    kernel, stride = b.random.choice([1, 3, 5]), b.random.choice([1, 1, 2])
    pad = b.random.choice([kernel // 2, kernel - 1])
    group = channels if channels <= 8 and b.random.random() < 0.3 else 1
    filters = group if group > 1 else b.random.choice([1, 4, 8, 16])
    w = b.floats(filters, channels // group, *[kernel] * rank)
    sizes = [_window(n, kernel, stride, 2 * pad) for n in x.shape[2:]]
    attrs = {"strides": [stride] * rank, "pads": [pad] * (2 * rank), "group": group}
    b.add(
        "Conv",
        (x.shape[0], filters, *sizes),
        bound_values(b, x).name,
        w,
        b.floats(filters),
        **attrs,
    )


def _window(n: Dim, kernel: int, stride: int, pads: int) -> Dim:
    if isinstance(n, int):
        return (n + pads - kernel) // stride + 1
    text = n if pads == kernel - 1 else f"({n}+{pads - kernel + 1})"
    return text if stride == 1 else f"(({text}-1)//{stride}+1)"


def _pool(b: Builder) -> None:
    x = b.pick(lambda t: len(t.shape) in (3, 4))
    if x is None:
        return
    rank = len(x.shape) - 2
    op = b.random.choice(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"])
    if op.startswith("Global"):
        b.add(op, (*x.shape[:2], *[1] * rank), x.name, bounded=x.is_bounded)
        return
    kernel, stride = b.random.choice([(2, 2), (3, 1), (3, 2)])
    pad = kernel // 2
    sizes = [_window(n, kernel, stride, 2 * pad) for n in x.shape[2:]]
    attrs = {"kernel_shape": [kernel] * rank, "strides": [stride] * rank, "pads": [pad] * 2 * rank}
    b.add(op, (*x.shape[:2], *sizes), x.name, bounded=x.is_bounded, **attrs)


def _size_value(b: Builder) -> None:
    """A value computed from a size."""
    x = b.pick(lambda t: len(t.shape) >= 1)
    if x is None:
        return
    (whole,) = b.node("Shape", x.name)
    (one,) = b.node("Gather", whole, b.ints(b.random.randrange(len(x.shape))))
    (number,) = b.node("Cast", one, to=TensorProto.FLOAT)
    b.add("Div", x.shape, x.name, number, bounded=x.is_bounded)


STEPS = (
    _unary, _cast, _binary, _binary, _binary, _where, _matmul, _matmul, _attention, _softmax,
    _layer_norm, _normalize, _reduce, _reduce, *MOVEMENT_STEPS, _arg, _cumsum,
    *SIZE_STEPS, _top_k, _conv, _conv, _pool, _size_value, add_recurrent, add_scan,
)  # fmt: skip


def dynamic_model(
    seed: int, more_steps: Sequence[Callable[[Builder], None]] = ()
) -> tuple[onnx.ModelProto, dict[str, tuple[Dim, ...]]]:
    """Return a random model, and the shapes of its inputs. more_steps: kinds of nodes of which it
    has at least one each, if a value fits."""
    random = Random(seed)
    b = Builder(random)
    symbols = ["n", "m"][: random.choice([1, 1, 2])]
    inputs: dict[str, tuple[Dim, ...]] = {}
    for k in range(random.randint(1, 3)):
        rank = random.choice([1, 2, 2, 3, 3, 4])
        shape: list[Dim] = [random.choice(FEATURES) for _ in range(rank)]
        for s in random.sample(symbols, random.randint(1, len(symbols))) if k else symbols:
            shape[random.randrange(rank)] = s
        inputs[f"x{k}"] = tuple(shape)
    used = {d for s in inputs.values() for d in s if isinstance(d, str)}
    if used != set(symbols):
        inputs["x9"] = tuple(symbols)
    b.pool = [Tensor(name, shape, True) for name, shape in inputs.items()]
    for _ in range(random.randint(2, 12)):
        random.choice(STEPS)(b)
    for step in more_steps:
        step(b)
        random.choice(STEPS)(b)
    while not b.nodes:
        _unary(b)
    made = [t for t in b.pool if t.name not in inputs]
    if not made:
        _unary(b)
        made = [b.pool[-1]]
    outputs = list({t.name: t for t in (*random.sample(made, min(len(made), 1)), made[-1])})
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    graph = helper.make_graph(b.nodes, "g", given, results, b.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    return model, inputs


def feeds(
    inputs: Mapping[str, tuple[Dim, ...]], sizes: Mapping[str, int], seed: int
) -> dict[str, np.ndarray]:
    """Return random inputs at given sizes."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal([value(d, sizes) for d in shape]).astype(np.float32)
        for name, shape in inputs.items()
    }
