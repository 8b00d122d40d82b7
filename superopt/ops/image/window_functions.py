"""Window functions of signal processing, of a size known at graph construction."""

from __future__ import annotations

import math
from fractions import Fraction

from superopt.ir.op import Attr, InferError, Op, Types, op
from superopt.te.expr import index
from superopt.te.expr.dtype import F32, DType
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Dim, Tensor, apply, cast, compute, const


def _window_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    size = attrs["size"]
    if isinstance(size, tuple) and len(size) == 1:
        (size,) = size
    if isinstance(size, bool) or not isinstance(size, (int, Expr)):
        raise InferError(f"a window of size {size}")
    return attrs | {"size": size, "periodic": int(bool(attrs["periodic"]))}


def _window_op(name: str, terms: tuple[Fraction, ...]) -> Op:
    @op(name, example=("size=8", "size=5 periodic=0"), since=17, canonical=_window_attrs)
    def window(*, size: Dim, periodic: int = 1, output_datatype: DType | None = F32) -> Tensor:
        """The alternating sum of terms[k] * cos(2 pi k i / n), n the size or one less."""
        kind = output_datatype or F32
        if not kind.is_number:
            raise InferError(f"{name} of {kind}, which is not a number")
        period = cast(index.as_index(size if periodic else size - 1), F32)

        def element(i: Expr) -> Expr:
            angle = cast(i, F32) * Fraction(2 * math.pi) / period
            total: Expr = const(terms[0], F32)
            for k, term in enumerate(terms[1:], start=1):
                wave = apply("cos", angle * k) * term
                total = total - wave if k % 2 else total + wave
            return cast(total, kind)

        return compute((size,), element)

    return window


hann = _window_op("HannWindow", (Fraction(1, 2), Fraction(1, 2)))
hamming = _window_op("HammingWindow", (Fraction(25, 46), Fraction(21, 46)))
blackman = _window_op("BlackmanWindow", (Fraction("0.42"), Fraction("0.5"), Fraction("0.08")))
