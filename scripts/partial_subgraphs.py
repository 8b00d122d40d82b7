"""Programs and mutants of them at sizes of models, to time how regions are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from superopt.ir import graph
from superopt.ops import OPS
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

Pair = tuple[str, graph.Value, graph.Value]
Made = Callable[[graph.Value], graph.Value]


def given(name: str, *shape: int) -> graph.Input:
    return graph.Input(name, TensorType(F32, shape))


def apply(op: str, *operands: graph.Value, **attrs: Any) -> graph.Value:
    return graph.node(OPS[op], operands, **attrs)


def subgraphs() -> Iterator[Pair]:
    yield from _of_models()
    yield from _side_by_side()
    yield from _others()
    yield from _of_one_matrix()
    yield from _joins()


def _of_models() -> Iterator[Pair]:
    """Mutants of layers of the models of scripts/bench_models.py."""
    for c, side in ((64, 56), (512, 7)):
        x, y, k = given("x", 1, c, side, side), given("y", 1, c, side, side), given("k", c, c, 3, 3)
        pads = (1, 1, 1, 1)
        a = apply("Concat", *(apply("Conv", v, k, pads=pads) for v in (x, y)), axis=3)
        b = apply("Conv", apply("Concat", x, y, axis=3), k, pads=pads)
        yield f"two images of {c} x {side} x {side} side by side", a, b
    c, h, w = 512, 64, 96
    x, k = given("x", 1, c, h, w), given("k", c, c, 3, 3)
    a = apply("Conv", x, k, pads=(2, 2, 2, 2), dilations=(2, 2))
    folded = apply("Reshape", x, shape=(1, c, h // 2, 2, w // 2, 2))
    folded = apply("Transpose", folded, perm=(3, 5, 0, 1, 2, 4))
    folded = apply("Reshape", folded, shape=(4, c, h // 2, w // 2))
    made = apply("Conv", folded, k, pads=(1, 1, 1, 1))
    made = apply("Reshape", made, shape=(2, 2, 1, c, h // 2, w // 2))
    made = apply("Transpose", made, perm=(2, 3, 4, 0, 5, 1))
    yield (
        "csrnet's dilated convolution as a dense one",
        a,
        apply("Reshape", made, shape=(1, c, h, w)),
    )
    x, y, k = given("x", 128, 768), given("y", 384, 768), given("k", 768, 768)
    a = apply("Concat", apply("MatMul", x, k), apply("MatMul", y, k), axis=0)
    yield "products of 128 and 384 rows", a, apply("MatMul", apply("Concat", x, y, axis=0), k)
    a = apply(
        "Conv", x := given("z", 16, 256, 14, 14), k := given("q", 256, 256, 3, 3), pads=(1, 1, 1, 1)
    )
    row = apply("Reshape", apply("Transpose", x, perm=(1, 2, 0, 3)), shape=(1, 256, 14, 16 * 14))
    made = apply("Conv", row, k, pads=(1, 1, 1, 1))
    made = apply("Transpose", apply("Reshape", made, shape=(256, 14, 16, 14)), perm=(2, 0, 1, 3))
    yield "sixteen images of 256 x 14 x 14 in a row", a, made


def window(op: str, k: int, **attrs: Any) -> Made:
    """A pool, or a convolution of 64 channels, whose results are as many as what it is given."""
    pads = (k // 2 * attrs.get("dilations", (1,))[0],) * 4
    if op == "Conv":
        kernel = given(attrs.pop("kernel", "k"), 64, 64, k, k)
        return lambda v: apply(op, v, kernel, pads=pads, **attrs)
    return lambda v: apply(op, v, kernel_shape=(k, k), pads=pads, **attrs)


def chain(*some: Made) -> Made:
    def of(v: graph.Value) -> graph.Value:
        for make in some:
            v = make(v)
        return v

    return of


def clip(v: graph.Value) -> graph.Value:
    return apply("Clip", v, *(graph.constant(np.array(n, np.float32)) for n in (0, 6)))


def relu(v: graph.Value) -> graph.Value:
    return apply("Relu", v)


def silu(v: graph.Value) -> graph.Value:
    return apply("Mul", v, apply("Sigmoid", v))


def added(make: Made) -> Made:
    return lambda v: apply("Add", v, make(v))


def pyramid(v: graph.Value) -> graph.Value:
    """Pools of pools, joined with what they are of."""
    some = [v]
    for _ in range(3):
        some.append(window("MaxPool", 5)(some[-1]))
    return apply("Concat", *some, axis=1)


def shuffled(v: graph.Value) -> graph.Value:
    """Channels of two groups in turns."""
    shape = tuple(v.type.shape)
    apart = apply("Reshape", v, shape=(1, 2, shape[1] // 2, *shape[2:]))
    return apply("Reshape", apply("Transpose", apart, perm=(0, 2, 1, 3, 4)), shape=shape)


def _side_by_side() -> Iterator[Pair]:
    """Of two images one behind the other: each by itself, or both at once."""
    three, five, seven = (window("MaxPool", k) for k in (3, 5, 7))
    conv, other = window("Conv", 3), window("Conv", 3, kernel="q")
    spread = given("u", 64, 32, 4, 4)
    for name, make, side in (
        ("pools of 7 x 7", seven, 56),
        ("pools of 7 x 7", seven, 512),
        ("pools of 3 x 3, dilated", window("MaxPool", 3, dilations=(2, 2)), 56),
        ("pools of 7 x 7 of what is clipped", chain(clip, seven), 56),
        ("three pools of 5 x 5", chain(five, five, five), 20),
        ("means of 7 x 7", window("AveragePool", 7), 56),
        ("means of 7 x 7 with padding", window("AveragePool", 7, count_include_pad=1), 56),
        ("convolutions of 9 x 9", window("Conv", 9), 56),
        ("convolutions of 5 x 5", window("Conv", 5), 512),
        ("a convolution, Relu and a pool of 3 x 3", chain(conv, relu, three), 56),
        ("a pool of 7 x 7 and a convolution", chain(seven, conv), 56),
        ("two convolutions, and Relu between", chain(conv, relu, other), 56),
        ("three convolutions by one kernel", chain(conv, conv, conv), 28),
        ("a residual block", added(chain(conv, relu, other)), 56),
        ("two convolutions, and SiLU behind each", chain(conv, silu, other, silu), 56),
        ("a pyramid of pools", pyramid, 20),
        ("a shuffle of channels and a convolution", chain(shuffled, conv), 28),
        ("transposed convolutions", lambda v: apply(
            "ConvTranspose", v, spread, strides=(2, 2), pads=(1, 1, 1, 1)), 28),
        ("Softmax over channels", lambda v: apply("Softmax", v, axis=1), 56),
    ):  # fmt: skip
        some = [given(n, 1, 64, side, side) for n in "xy"]
        a = apply("Concat", *map(make, some), axis=3)
        yield f"{name}, of two of {side} x {side}", a, make(apply("Concat", *some, axis=3))


def _others() -> Iterator[Pair]:
    x = given("x", 1, 64, 56, 56)
    frame = {"pads": (0, 0, 1, 1, 0, 0, 1, 1)}
    for k in (3, 7):
        make = window("MaxPool", k)
        a, b = make(apply("Pad", x, **frame)), apply("Pad", make(x), **frame)
        yield f"zeros around, then a pool of {k} x {k}", a, b
    three = window("MaxPool", 3)
    yield (
        "a pool of 7 x 7 as three of 3 x 3",
        window("MaxPool", 7)(x),
        chain(three, three, three)(x),
    )
    x = given("x", 1, 64, 256, 256)
    for name, make in (("pool of 7 x 7", window("MaxPool", 7)), ("convolution", window("Conv", 3))):
        yield f"a {name} of 16 parts of an image", make(x), _parts(make, x, 4)
    some = [given(f"x{n}", 1, 64, 28, 28) for n in range(16)]
    make = window("Conv", 3)
    a = apply("Concat", *map(make, some), axis=3)
    yield "16 images of 28 x 28 side by side", a, make(apply("Concat", *some, axis=3))


def _of_one_matrix() -> Iterator[Pair]:
    """What reads a matrix again, or what functions of functions do and do not change."""
    a, b = given("a", 512, 512), given("b", 512, 512)
    left, right = apply("MatMul", apply("MatMul", a, b), a), apply("MatMul", b, a)
    yield "(a b) a and a (b a) of 512 x 512", left, apply("MatMul", a, right)
    yield "(a b) a and b a of 512 x 512", left, right
    x = given("x", 1, 64, 28, 28)
    some = (apply("DepthToSpace", x, blocksize=4, mode=m) for m in ("DCR", "CRD"))
    yield ("depth to space of 64 x 28 x 28, DCR and CRD", *some)
    p = apply("Softmax", given("p", 4, 70), axis=-1)
    yield "a Softmax over 70 and its Relu", p, relu(p)


def _parts(make: Made, x: graph.Value, count: int) -> graph.Value:
    """Of so many parts each way."""
    step = 256 // count
    rows = []
    for i in range(0, 256, step):
        cut = [
            apply("Slice", x, starts=(i, j), ends=(i + step, j + step), axes=(2, 3))
            for j in range(0, 256, step)
        ]
        rows.append(apply("Concat", *map(make, cut), axis=3))
    return apply("Concat", *rows, axis=2)


def _joins() -> Iterator[Pair]:
    """Of 32 images one behind the other."""
    some = [given(f"x{n}", 1, 8, 6, 6) for n in range(32)]
    kernel = given("k", 8, 8, 3, 3)
    for name, make in (
        ("convolutions", lambda v: apply("Conv", v, kernel, pads=(1, 1, 1, 1))),
        ("pools of 3 x 3", window("MaxPool", 3)),
        ("Relu", relu),
    ):
        a = apply("Concat", *map(make, some), axis=3)
        yield f"{name}, of 32 of 6 x 6", a, make(apply("Concat", *some, axis=3))
