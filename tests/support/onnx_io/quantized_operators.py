"""Operators of com.microsoft on quantized values, with random attributes and operands, and what
they give by their definition in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.onnx_io.integer_definitions import (
    Array,
    average_windows,
    dequantize,
    quantize,
    softmax,
)
from tests.support.onnx_io.quantized_case import (
    Case,
    Rng,
    draw_bytes,
    draw_scale,
    draw_shape,
    draw_type,
    is_drawn,
)
from tests.support.onnx_io.quantized_product_cases import (
    dynamic_quantize_matmul,
    matmul_integer_to_float,
    quantized_attention,
    quantized_conv,
    quantized_gemm,
)


def qlinear_binary(op: str, combine: Callable[[Array, Array], Array], rng: Rng) -> Case:
    dtype, shape = draw_type(rng), draw_shape(rng, 3)
    other = [(*shape,), shape[1:], (shape[0], 1, shape[2]), ()][rng.integers(4)]
    a, b = draw_bytes(rng, shape, dtype), draw_bytes(rng, other, dtype)
    scales, zeros = (
        [draw_scale(rng) for _ in range(3)],
        [draw_bytes(rng, (), dtype) for _ in range(3)],
    )
    y = combine(dequantize(a, scales[0], zeros[0]), dequantize(b, scales[1], zeros[1]))
    operands = [("a", a), ("as", scales[0]), ("az", zeros[0])]
    operands += [("b", b), ("bs", scales[1]), ("bz", zeros[1])]
    operands += [("ys", scales[2]), ("yz", zeros[2])]
    return Case(op, operands, {}, ("a", "b"), [quantize(y, scales[2], zeros[2], dtype)])


def qlinear_unary(
    op: str, f: Callable[[Array], Array], x: Array, rng: Rng, **attrs: object
) -> Case:
    scales = [draw_scale(rng) for _ in range(2)]
    zeros = [draw_bytes(rng, (), x.dtype) for _ in range(2)]
    if op == "QLinearSigmoid":
        scales[1] = np.float32(1 / 256)
    y = quantize(f(dequantize(x, scales[0], zeros[0])), scales[1], zeros[1], x.dtype)
    operands = [("x", x), ("xs", scales[0]), ("xz", zeros[0]), ("ys", scales[1]), ("yz", zeros[1])]
    return Case(op, operands, attrs, ("x",), [y])


def qlinear_sigmoid(rng: Rng) -> Case:
    x = draw_bytes(rng, draw_shape(rng, 3), draw_type(rng))
    return qlinear_unary("QLinearSigmoid", lambda v: 1 / (1 + np.exp(-v)), x, rng)


def qlinear_leaky_relu(rng: Rng) -> Case:
    alpha = float(np.float32(rng.choice([0.01, 0.1, 0.5])))
    x = draw_bytes(rng, draw_shape(rng, 3), draw_type(rng))
    attrs = {} if alpha == float(np.float32(0.01)) else {"alpha": alpha}
    return qlinear_unary(
        "QLinearLeakyRelu", lambda v: np.where(v < 0, alpha * v, v), x, rng, **attrs
    )


def channels_last_case(rng: Rng, op: str, f: Callable[[Array], Array], **attrs: object) -> Case:
    """f: of an image whose channels are the second axis."""
    last, shape = is_drawn(rng), tuple(int(n) for n in rng.integers(4, 9, 4))
    x = draw_bytes(rng, shape, draw_type(rng))
    if last:
        return qlinear_unary(
            op, lambda v: np.moveaxis(f(np.moveaxis(v, -1, 1)), 1, -1), x, rng, channels_last=1,
            **attrs,
        )  # fmt: skip
    return qlinear_unary(op, f, x, rng, **attrs)


def qlinear_average_pool(rng: Rng) -> Case:
    kernel = tuple(int(k) for k in rng.integers(1, 4, 2))
    strides = tuple(int(k) for k in rng.integers(1, 3, 2))
    pads = tuple(int(rng.integers(0, kernel[d % 2])) for d in range(4))
    padded = is_drawn(rng)
    attrs = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    return channels_last_case(
        rng, "QLinearAveragePool", lambda v: average_windows(v, kernel, strides, pads, padded),
        count_include_pad=int(padded), **attrs,
    )  # fmt: skip


def qlinear_global_average_pool(rng: Rng) -> Case:
    return channels_last_case(
        rng, "QLinearGlobalAveragePool", lambda v: v.mean((2, 3), keepdims=True)
    )


def qlinear_softmax(rng: Rng) -> Case:
    each, axis = is_drawn(rng), int(rng.integers(-3, 3))
    x = draw_bytes(rng, draw_shape(rng, 3), draw_type(rng))
    axes = axis if each else tuple(range(axis % 3, 3))
    case = qlinear_unary("QLinearSoftmax", lambda v: softmax(v, axes), x, rng)
    names = dict(case.operands)
    names["ys"] = np.float32(1 / 256)
    names["yz"] = x.dtype.type(0 if x.dtype == np.uint8 else -128)
    assert names["xs"] is not None
    y = softmax(dequantize(x, names["xs"], names["xz"]), axes)
    case.operands = [*names.items()]
    case.attrs = {"axis": axis, "opset": 13 if each else 12}
    case.wanted = [quantize(y, names["ys"], names["yz"], x.dtype)]
    return case


def qlinear_reduce_mean(rng: Rng) -> Case:
    axes, keep = (0, 2), int(rng.integers(2))
    x = draw_bytes(rng, draw_shape(rng, 3), draw_type(rng))
    return qlinear_unary(
        "QLinearReduceMean", lambda v: v.mean(axes, keepdims=bool(keep)), x, rng, axes=axes,
        keepdims=keep,
    )  # fmt: skip


def qlinear_concat(rng: Rng) -> Case:
    dtype, shape, axis = draw_type(rng), draw_shape(rng, 3), int(rng.integers(3))
    scale, zero = draw_scale(rng), draw_bytes(rng, (), dtype)
    operands: list[tuple[str, Array | None]] = [("ys", scale), ("yz", zero)]
    parts = []
    for k in range(rng.integers(1, 4)):
        own = tuple(int(rng.integers(1, 6)) if d == axis else n for d, n in enumerate(shape))
        x, same = draw_bytes(rng, own, dtype), is_drawn(rng, 0.3)
        of_x = (scale, zero) if same else (draw_scale(rng), draw_bytes(rng, (), dtype))
        operands += [(f"x{k}", x), (f"s{k}", of_x[0]), (f"z{k}", of_x[1])]
        parts.append(dequantize(x, *of_x))
    y = quantize(np.concatenate(parts, axis), scale, zero, dtype)
    inputs = tuple(name for name, _ in operands if name[0] == "x")
    return Case("QLinearConcat", operands, {"axis": axis}, inputs, [y])


def qlinear_where(rng: Rng) -> Case:
    dtype, shape = draw_type(rng), draw_shape(rng, 3)
    condition = rng.random(shape[1:]) < 0.5
    x, y = draw_bytes(rng, shape, dtype), draw_bytes(rng, (shape[0], 1, shape[2]), dtype)
    scales = [draw_scale(rng) for _ in range(3)]
    zeros = [draw_bytes(rng, (), dtype) for _ in range(3)]
    values = [dequantize(v, scales[k], zeros[k]) for k, v in enumerate((x, y))]
    wanted = quantize(np.where(condition, *values), scales[2], zeros[2], dtype)
    operands = [("c", condition), ("x", x), ("xs", scales[0]), ("xz", zeros[0])]
    operands += [("y", y), ("ys", scales[1]), ("yz", zeros[1]), ("zs", scales[2]), ("zz", zeros[2])]
    return Case("QLinearWhere", operands, {}, ("c", "x", "y"), [wanted])


def quantize_linear(rng: Rng) -> Case:
    dtype = np.dtype(rng.choice([np.uint8, np.int8, np.int16, np.uint16]))
    per_axis, shape = is_drawn(rng), draw_shape(rng, 3)
    axis, own = int(rng.integers(3)), ()
    x = (rng.standard_normal(shape) * 3).astype(np.float32)
    own = (shape[axis],) if per_axis else ()
    scale, zero = draw_scale(rng, own), draw_bytes(rng, own, dtype)
    along = [-1 if d == axis else 1 for d in range(3)] if per_axis else []
    y = quantize(x, scale.reshape(along), zero.reshape(along), dtype)
    attrs = {"axis": axis} if per_axis else {}
    return Case("QuantizeLinear", [("x", x), ("s", scale), ("z", zero)], attrs, ("x",), [y])


def dequantize_linear(rng: Rng) -> Case:
    case = quantize_linear(rng)
    (_, scale), (_, zero) = case.operands[1:]
    (x,) = case.wanted
    assert scale is not None
    along = [-1 if d == case.attrs.get("axis") else 1 for d in range(3)] if scale.shape else []
    assert zero is not None
    y = dequantize(x, scale.reshape(along), zero.reshape(along)).astype(np.float32)
    operands = [("x", x), ("s", scale), ("z", zero)]
    return Case("DequantizeLinear", operands, case.attrs, ("x",), [y])


def pack_bits(x: Array, bits: int) -> Array:
    """Return fields of bytes along the last axis, the lowest bits first."""
    per_byte = 8 // bits
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % per_byte)])
    parts = padded.reshape(*x.shape[:-1], -1, per_byte).astype(np.uint16)
    return (parts << (np.arange(per_byte) * bits)).sum(-1).astype(np.uint8)


def gather_block_quantized(rng: Rng) -> Case:
    bits, block = int(rng.choice([2, 4, 8])), int(rng.choice([16, 32]))
    rows, columns = int(rng.integers(2, 9)), 8 * int(rng.integers(1, 10))
    q = rng.integers(0, 1 << bits, (rows, columns)).astype(np.uint8)
    groups = -(-columns // block)
    scale = draw_scale(rng, (rows, groups))
    zero = rng.integers(0, 1 << bits, (rows, groups)).astype(np.uint8) if is_drawn(rng) else None
    at = rng.integers(-rows, rows, draw_shape(rng, int(rng.integers(1, 3)))).astype(np.int64)
    subtracted = np.full((rows, groups), 1 << (bits - 1)) if zero is None else zero.astype(np.int64)
    at.reshape(-1)[0] = rows if is_drawn(rng, 0.2) else at.reshape(-1)[0]  # out of range: zeros
    each = np.arange(columns) // block
    table = (q.astype(np.int64) - subtracted[:, each]) * np.float64(scale)[:, each]
    known = (at < rows)[..., None]
    y = np.where(known, table[np.where(at < rows, at, 0)], 0).astype(np.float32)
    operands = [("data", pack_bits(q, bits)), ("at", at), ("scales", scale)]
    operands += [("zeros", None if zero is None else pack_bits(zero, bits))]
    attrs = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1}
    return Case("GatherBlockQuantized", operands, attrs, ("at",), [y])


def matmul_nbits_in_groups(rng: Rng) -> Case:
    """With g_idx. onnxruntime has 4 bits, and reads packed zero points otherwise."""
    bits, block, columns = 4, int(rng.choice([16, 32])), int(rng.integers(1, 40))
    terms = int(rng.integers(1, 150))
    groups = -(-terms // block)
    q = rng.integers(0, 1 << bits, (columns, groups * block)).astype(np.uint8)
    scale = draw_scale(rng, (columns, groups))
    own = np.arange(terms) // block
    own = rng.permutation(own) if is_drawn(rng, 0.8) else own
    zero = (rng.random((columns, groups)) * 16).astype(np.float32) if is_drawn(rng) else None
    bias = rng.standard_normal(columns).astype(np.float32) if is_drawn(rng) else None
    x = rng.standard_normal((2, 3, terms)).astype(np.float32)
    subtracted = 8 if zero is None else zero[:, own]
    w = (q[:, :terms].astype(np.float64) - subtracted) * scale[:, own]
    y = (x @ w.T + (0 if bias is None else bias)).astype(np.float32)
    packed = pack_bits(q.reshape(columns, groups, block), bits)
    operands = [("x", x), ("w", packed), ("scales", scale.reshape(-1))]
    operands += [("zeros", None if zero is None else zero.reshape(-1))]
    operands += [("groups", own.astype(np.int32)), ("bias", bias)]
    attrs = {"K": terms, "N": columns, "bits": bits, "block_size": block}
    return Case("MatMulNBits", operands, attrs, ("x",), [y])


DRAWS: dict[str, Callable[[Rng], Case]] = {
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeMatMul": dynamic_quantize_matmul,
    "GatherBlockQuantized": gather_block_quantized,
    "MatMulIntegerToFloat": matmul_integer_to_float,
    "MatMulNBits": matmul_nbits_in_groups,
    "QAttention": quantized_attention,
    "QGemm": quantized_gemm,
    "QLinearAdd": lambda rng: qlinear_binary("QLinearAdd", np.add, rng),
    "QLinearAveragePool": qlinear_average_pool,
    "QLinearConcat": qlinear_concat,
    "QLinearConv": quantized_conv,
    "QLinearGlobalAveragePool": qlinear_global_average_pool,
    "QLinearLeakyRelu": qlinear_leaky_relu,
    "QLinearMul": lambda rng: qlinear_binary("QLinearMul", np.multiply, rng),
    "QLinearReduceMean": qlinear_reduce_mean,
    "QLinearSigmoid": qlinear_sigmoid,
    "QLinearSoftmax": qlinear_softmax,
    "QLinearWhere": qlinear_where,
    "QuantizeLinear": quantize_linear,
}
