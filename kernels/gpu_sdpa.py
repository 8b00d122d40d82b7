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

from superopt.kernels.gpu_driver import alone

NAME = "sdpa"
VECTOR = 8  # 16-bit elements of a vector load


@dataclass(frozen=True, slots=True)
class View:
    """Elements of a buffer: strides along (batch, head, position, channel), and the first one's
    offset."""

    steps: tuple[int, ...]
    first: int

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.steps))}+{self.first}"

    @property
    def whole(self) -> bool:
        """True if channels are contiguous and each row of them is aligned to vector loads."""
        *steps, last = self.steps
        return last == 1 and not any(n % VECTOR for n in (*steps, self.first))

    def of(self, x: Any, *sizes: int) -> Any:
        return x.as_strided(sizes, self.steps, x.storage_offset() + self.first)


@dataclass(frozen=True, slots=True)
class Sdpa:
    """sizes: batch, heads, key heads, queries, keys, head size. operands: for queries, keys and
    values the number of the operand and its view."""

    sizes: tuple[int, int, int, int, int, int]
    given: tuple[tuple[int, View], ...]
    made: View
    scale: float
    causal: bool

    def __str__(self) -> str:
        given = (f"{n}:{x}" for n, x in self.given)
        sizes = "x".join(map(str, self.sizes))
        return " ".join((NAME, sizes, *given, str(self.made), repr(self.scale), f"{self.causal:d}"))

    def run(self, *tensors: Any) -> None:
        """Compute the result, the last tensor: contiguous torch tensors on one device."""
        from torch.nn.functional import scaled_dot_product_attention

        *some, out = tensors
        batch, heads, groups, queries, keys, width = self.sizes
        sizes = (heads, queries), (groups, keys), (groups, keys)
        q, k, v = (
            at.of(some[n], batch, *own, width)
            for (n, at), own in zip(self.given, sizes, strict=True)
        )
        how: Any = {"enable_gqa": True} if groups != heads else {}
        with by_kernels() if out.is_cuda else nullcontext():
            found = scaled_dot_product_attention(
                q, k, v, is_causal=self.causal, scale=self.scale, **how
            )
        self.made.of(out, batch, heads, queries, width).copy_(found)


@contextmanager
def by_kernels() -> Iterator[None]:
    """A context that excludes torch's unfused attention by cuBLAS, whose workspace no graph may
    keep (vendor/cublas.py). The setting is global: threads exclude each other."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    names = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION")
    some = [x for n in names if (x := getattr(SDPBackend, n, None)) is not None]
    with alone(), sdpa_kernel(some):
        yield


def parsed(text: str) -> Sdpa:
    """Parse an attention. Raises ValueError for other text."""
    name, *words = text.split()
    if name != NAME or len(words) != 7:
        raise ValueError(f"{text!r} is not an attention, such as {NAME} 1x2x8x8x16 0:...")
    sizes, *given, made, scale, causal = words
    batch, heads, groups, queries, keys, width = map(int, sizes.split("x"))
    some = [x.split(":") for x in given]
    return Sdpa(
        (batch, heads, groups, queries, keys, width), tuple((int(n), _view(x)) for n, x in some),
        _view(made), float(scale), causal == "1",
    )  # fmt: skip


def _view(text: str) -> View:
    steps, first = text.split("+")
    return View(tuple(map(int, steps.split("x"))), int(first))
