"""Products of quantized operands in com.microsoft, at random operands."""

from __future__ import annotations

import numpy as np

from tests.support.onnx_io.integer_definitions import (
    Array,
    integer_convolution,
    integer_product,
    quantize,
    softmax,
)
from tests.support.onnx_io.quantized_case import (
    MAX_PRODUCT_WEIGHT,
    Case,
    Rng,
    draw_bytes,
    draw_scale,
    draw_shape,
    draw_type,
    is_drawn,
)


def draw_weights(rng: Rng, shape: tuple[int, int], per_column: bool) -> tuple[Array, Array, Array]:
    """Return weights that saturate nowhere, their scale and their zero point."""
    dtype, columns = draw_type(rng), (shape[1],) if per_column else ()
    w = draw_bytes(rng, shape, dtype, MAX_PRODUCT_WEIGHT)
    return w, draw_scale(rng, columns), draw_bytes(rng, columns, dtype, MAX_PRODUCT_WEIGHT)


def matmul_integer_to_float(rng: Rng) -> Case:
    m, k, n = (int(v) for v in rng.integers(1, 40, 3))
    x = draw_bytes(rng, (2, m, k) if is_drawn(rng) else (m, k), np.dtype(np.uint8))
    w, scale, zero = draw_weights(rng, (k, n), is_drawn(rng))
    x_scale = draw_scale(rng)
    x_zero = draw_bytes(rng, (), x.dtype) if is_drawn(rng, 0.7) else None
    bias = rng.standard_normal(n).astype(np.float32) if is_drawn(rng) else None
    w_zero = zero if is_drawn(rng, 0.7) else None
    y = integer_product(x, w, x_zero, w_zero) * (np.float64(x_scale) * scale)
    y = (y if bias is None else y + bias).astype(np.float32)
    operands = [("x", x), ("w", w), ("xs", x_scale), ("ws", scale), ("xz", x_zero)]
    operands += [("wz", w_zero), ("bias", bias)]
    return Case("MatMulIntegerToFloat", operands, {}, ("x", "xs"), [y])


def dynamic_quantize_matmul(rng: Rng) -> Case:
    m, k, n = (int(v) for v in rng.integers(1, 40, 3))
    x = rng.standard_normal((2, m, k) if is_drawn(rng) else (m, k)).astype(np.float32)
    w, scale, zero = draw_weights(rng, (k, n), is_drawn(rng))
    w_zero = zero if is_drawn(rng, 0.7) else None
    bias = rng.standard_normal(n).astype(np.float32) if is_drawn(rng) else None
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    x_scale = (high - low) / np.float32(255) if high > low else np.float32(1)
    x_zero = np.uint8(np.rint(np.clip(-low / x_scale, 0, 255)))
    q = np.clip(np.rint(x / x_scale) + np.float32(x_zero), 0, 255).astype(np.uint8)
    y = integer_product(q, w, np.asarray(x_zero), w_zero) * (np.float64(x_scale) * scale)
    y = (y if bias is None else y + bias).astype(np.float32)
    operands = [("x", x), ("w", w), ("ws", scale), ("wz", w_zero), ("bias", bias)]
    return Case("DynamicQuantizeMatMul", operands, {}, ("x",), [y])


def quantized_gemm(rng: Rng) -> Case:
    m, k, n = (int(v) for v in rng.integers(1, 40, 3))
    x_type = draw_type(rng)
    x, (w, scale, zero) = draw_bytes(rng, (m, k), x_type), draw_weights(rng, (k, n), is_drawn(rng))
    if x_type == np.int8 and w.dtype == np.uint8:  # not in onnxruntime
        w, zero = (w ^ 128).view(np.int8), (zero ^ 128).view(np.int8)
    x_scale, x_zero = draw_scale(rng), draw_bytes(rng, (), x_type)
    c_shape = [(n,), (1, n), (m, 1), (m, n), (), (1,)][rng.integers(6)]
    c = rng.integers(-5000, 5000, c_shape).astype(np.int32) if is_drawn(rng) else None
    alpha = float(np.float32(rng.choice([1, 0.5, 1.3])))
    total = integer_product(x, w, x_zero, zero) + (0 if c is None else c)
    y = total * (alpha * np.float64(x_scale) * scale)
    y_scale = np.float32(np.abs(y).max() / 100 + 0.01)
    y_zero = None if is_drawn(rng, 0.3) else draw_bytes(rng, (), x_type)
    transposed = [int(rng.integers(2)) for _ in range(2)]
    operands = [("x", x.T.copy() if transposed[0] else x), ("xs", x_scale), ("xz", x_zero)]
    operands += [("w", w.T.copy() if transposed[1] else w), ("ws", scale), ("wz", zero), ("c", c)]
    if y_zero is not None:
        operands += [("ys", y_scale), ("yz", y_zero)]
    wanted = y.astype(np.float32) if y_zero is None else quantize(y, y_scale, y_zero, x_type)
    attrs = {"transA": transposed[0], "transB": transposed[1], "alpha": alpha}
    return Case("QGemm", operands, attrs, ("x",), [wanted])


def quantized_attention(rng: Rng) -> Case:
    batch, length, heads, size = (int(v) for v in rng.integers(1, 6, 4))
    width, hidden, past = int(rng.integers(1, 20)), heads * size, int(rng.integers(0, 4))
    x = draw_bytes(rng, (batch, length, width), np.dtype(np.uint8))
    w, scale, zero = draw_weights(rng, (width, 3 * hidden), is_drawn(rng))
    x_scale = draw_scale(rng)
    x_zero = draw_bytes(rng, (), x.dtype) if is_drawn(rng, 0.7) else None
    scale = scale / 10
    bias = rng.standard_normal(3 * hidden).astype(np.float32)
    one_way, least = is_drawn(rng), -10000.0
    total = past + length
    old = rng.standard_normal((2, batch, heads, past, size)).astype(np.float32) if past else None
    kinds = [(batch,), (2 * batch,), (batch, total), (batch, 1), (batch, length, total), None]
    shape = kinds[rng.integers(6)]
    mask = None if shape is None else rng.integers(0, 2, shape).astype(np.int32)
    places, visible = np.arange(total), np.ones((batch, length, total), bool)
    if mask is not None and len(mask.shape) == 1:
        mask[:] = rng.integers(1, total + 1, shape)
        mask[batch:] = 0
        visible &= (places < mask[:batch, None])[:, None, :]
        if shape == (2 * batch,):
            mask[batch:] = rng.integers(0, mask[:batch])
            visible &= (places >= mask[batch:, None])[:, None, :]
    elif mask is not None and (shape != (batch, 1) or total == 1):
        visible &= (mask > 0).reshape(batch, -1, total)
    qkv = integer_product(x, w, x_zero, zero) * (np.float64(x_scale) * scale) + bias
    q, k, v = (
        part.reshape(batch, length, heads, size).transpose(0, 2, 1, 3)
        for part in np.split(qkv, 3, axis=2)
    )
    if old is not None:
        k, v = (np.concatenate([p, own], axis=2) for p, own in zip(old, (k, v), strict=True))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(size)
    scores = scores + np.where(visible, 0, least)[:, None]
    if one_way:
        ahead = places > past + np.arange(length)[:, None]
        scores = np.where(ahead, np.finfo(np.float32).min, scores)
    y = (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(batch, length, hidden)
    operands = [("x", x), ("w", w), ("b", bias), ("xs", x_scale), ("ws", scale), ("mask", mask)]
    operands += [("xz", x_zero), ("wz", zero), ("past", old)]
    wanted = [y.astype(np.float32)] + [np.stack([k, v]).astype(np.float32)] * (old is not None)
    attrs = {"num_heads": heads, "unidirectional": int(one_way)}
    return Case("QAttention", operands, attrs, ("x", "mask", "past"), wanted)


def quantized_conv(rng: Rng) -> Case:
    last, group = is_drawn(rng), int(rng.choice([1, 1, 2, 3]))
    kernel = tuple(int(k) for k in rng.integers(1, 4, 2))
    x = draw_bytes(rng, (2, 6, *draw_shape(rng, 2)), np.dtype(np.uint8))
    attrs: dict[str, object] = {"strides": (2, 1), "pads": (2, 1, 0, 2), "group": group}
    w = draw_bytes(rng, (6, 6 // group, *kernel), draw_type(rng), MAX_PRODUCT_WEIGHT)
    scales, w_scale = [draw_scale(rng) for _ in range(2)], draw_scale(rng, (6,))
    zeros = [draw_bytes(rng, (), x.dtype) for _ in range(2)]
    w_zero = draw_bytes(rng, (), w.dtype, MAX_PRODUCT_WEIGHT)
    bias = rng.integers(-5000, 5000, 6).astype(np.int32) if is_drawn(rng) else None
    total = integer_convolution(x, w, zeros[0], w_zero, (2, 1), (2, 1, 0, 2), (1, 1), group)
    total = total if bias is None else total + bias[:, None, None]
    y = total * (np.float64(scales[0]) * w_scale[:, None, None])
    scales[1] = np.float32(np.abs(y).max() / 100 + 0.01)
    wanted = quantize(y, scales[1], zeros[1], x.dtype)
    moved = [np.moveaxis(v, 1, -1).copy() if last else v for v in (x, wanted)]
    operands = [("x", moved[0]), ("xs", scales[0]), ("xz", zeros[0])]
    operands += [("w", w), ("ws", w_scale), ("wz", w_zero)]
    operands += [("ys", scales[1]), ("yz", zeros[1]), ("b", bias)]
    return Case("QLinearConv", operands, attrs | {"channels_last": int(last)}, ("x",), [moved[1]])
