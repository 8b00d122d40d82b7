"""Attention by torch (cuDNN or flash attention): plain data, which prints as text that parses back,
and the call.

    sdpa 2x2x2x8x8x16 0:768x16x96x1+0 0:768x16x96x1+32 0:768x16x96x1+64 256x16x32x1+0 0.25 1

stands for batch 2, 2 heads, 2 key heads, 8 queries, 8 keys and head size 16; for queries, keys and
values the operand, its strides and offset; strides and offset of the result; the scale of scores;
and whether the mask is causal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from superopt.kernels.cuda.driver import capture_exclusively

CALL_NAME = "sdpa"
VECTOR_ELEMENTS = 8  # 16-bit elements of a vector load


@dataclass(frozen=True, slots=True)
class View:
    """Elements of a buffer: strides along (batch, head, position, channel), and the first one's
    offset."""

    strides: tuple[int, ...]
    offset: int

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.strides))}+{self.offset}"

    @property
    def is_vector_aligned(self) -> bool:
        """True if channels are contiguous and each row of them is aligned to vector loads."""
        *steps, last = self.strides
        return last == 1 and not any(n % VECTOR_ELEMENTS for n in (*steps, self.offset))

    def view_of(self, x: Any, *sizes: int) -> Any:
        return x.as_strided(sizes, self.strides, x.storage_offset() + self.offset)


@dataclass(frozen=True, slots=True)
class Sdpa:
    """sizes: batch, heads, key heads, queries, keys, head size. operands: for queries, keys and
    values the number of the operand and its view."""

    sizes: tuple[int, int, int, int, int, int]
    operands: tuple[tuple[int, View], ...]
    result: View
    scale: float
    causal: bool

    def __str__(self) -> str:
        given = (f"{n}:{x}" for n, x in self.operands)
        sizes = "x".join(map(str, self.sizes))
        return " ".join(
            (CALL_NAME, sizes, *given, str(self.result), repr(self.scale), f"{self.causal:d}")
        )

    def run(self, *tensors: Any) -> None:
        """Compute the result, the last tensor: contiguous torch tensors on one device."""
        from torch.nn.functional import scaled_dot_product_attention

        *some, out = tensors
        batch, heads, groups, queries, keys, width = self.sizes
        sizes = (heads, queries), (groups, keys), (groups, keys)
        q, k, v = (
            at.view_of(some[n], batch, *own, width)
            for (n, at), own in zip(self.operands, sizes, strict=True)
        )
        how: Any = {"enable_gqa": True} if groups != heads else {}
        with fused_backends() if out.is_cuda else nullcontext():
            found = scaled_dot_product_attention(
                q, k, v, is_causal=self.causal, scale=self.scale, **how
            )
        self.result.view_of(out, batch, heads, queries, width).copy_(found)


@contextmanager
def fused_backends() -> Iterator[None]:
    """A context that excludes torch's unfused attention by cuBLAS, whose workspace no graph may
    keep (vendor/cublas.py). The setting is global: threads exclude each other."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    names = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION")
    some = [x for n in names if (x := getattr(SDPBackend, n, None)) is not None]
    with capture_exclusively(), sdpa_kernel(some):
        yield


def parse_sdpa(text: str) -> Sdpa:
    """Parse an attention. Raises ValueError for other text."""
    name, *words = text.split()
    if name != CALL_NAME or len(words) != 7:
        raise ValueError(f"{text!r} is not an attention, such as {CALL_NAME} 1x2x8x8x16 0:...")
    sizes, *given, made, scale, causal = words
    batch, heads, groups, queries, keys, width = map(int, sizes.split("x"))
    some = [x.split(":") for x in given]
    return Sdpa(
        (batch, heads, groups, queries, keys, width),
        tuple((int(n), _parse_view(x)) for n, x in some),
        _parse_view(made),
        float(scale),
        causal == "1",
    )


def _parse_view(text: str) -> View:
    steps, first = text.split("+")
    return View(tuple(map(int, steps.split("x"))), int(first))
