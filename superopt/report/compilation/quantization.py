"""What is exact in a compiled quantized model, and what saturates elsewhere: data and text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from superopt.report.formatting import phrases
from superopt.report.formatting.table import table

# exact: bit-equal to ONNX's definition; one step: sums of integers instead of the definition's
# floats; floats: as the definition says, rounded as floats are; fallback: in ONNX Runtime
Exactness = Literal["exact", "one step", "floats", "fallback"]
EXPLANATIONS: dict[Exactness, tuple[str, ...]] = {
    "exact": ("sums of integers modulo 2^32, bit-equal to ONNX's definition",),
    "one step": (
        "exact sums of the integers that DequantizeLinear reads; the definition rounds floats:",
        "from equal operands, the next QuantizeLinear may differ by a step",
    ),
    "floats": ("products of dequantized floats, as the definition says",),
    "fallback": ("in onnxruntime, with its results",),
}
MAX_SHOWN_NODES = 5


@dataclass(frozen=True, slots=True)
class ProductCount:
    """How many products of an operator are computed in one way. why: empty if that says it."""

    op: str
    exactness: Exactness
    count: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class SaturatingProduct:
    """A product of uint8 by int8 in which two terms may overflow 16 bits. channels: output channels
    that may, of `of` (0: the weights are known only at run time); terms: of a sum; largest: sum of
    two products; remedy: how ONNX Runtime can be made to multiply exactly, or "none"."""

    node: str
    channels: int
    of: int
    terms: int
    largest: int
    remedy: str


@dataclass(frozen=True, slots=True)
class LayerProofs:
    """Layers, the operators between quantized values, that the compiler computes in another way.

    proved: the numbers of those that are proved to be within so many steps of the definition, for
    all operands, by steps; unproved: the number of others.
    """

    proved: tuple[tuple[int, int], ...]
    unproved: int


@dataclass(frozen=True, slots=True)
class QuantizationSummary:
    """quantizers: nodes that round to integers at run time; saturates_here: ONNX Runtime's default
    would saturate on this processor."""

    quantizers: int
    products: tuple[ProductCount, ...]
    saturating: tuple[SaturatingProduct, ...]
    saturates_here: bool
    layers: LayerProofs = LayerProofs((), 0)


def quantization_lines(q: QuantizationSummary) -> Iterator[str]:
    """Yield the lines of `superopt explain MODEL` about quantization."""
    yield f"  {phrases.count_text(q.quantizers, 'quantization')} at run time; products:"
    for exactness, meaning in EXPLANATIONS.items():
        rows = [p for p in q.products if p.exactness == exactness]
        if not rows:
            continue
        counts = ", ".join(f"{p.count} {p.op}{f' ({p.why})' if p.why else ''}" for p in rows)
        yield f"    {exactness}: {phrases.printable(counts)}"
        yield from (f"      {line}" for line in meaning)
    yield from _layer_lines(q.layers)
    yield from _peer_lines(q)


def _layer_lines(layers: LayerProofs) -> Iterator[str]:
    """Yield what is proved of layers."""
    if not layers.proved and not layers.unproved:
        return
    parts = [f"{n} within {phrases.steps_text(k)}" for k, n in layers.proved]
    if layers.unproved:
        parts.append(f"{layers.unproved} not proved")
    yield f"  layers, against the definition, for all equal operands: {', '.join(parts)}"


def saturation_text(q: QuantizationSummary) -> str:
    """Return where ONNX Runtime and OpenVINO may saturate, in one line; empty if nowhere."""
    if not q.saturating:
        return ""
    known = [s for s in q.saturating if s.of]
    channels, of = sum(s.channels for s in known), sum(s.of for s in known)
    some = f": {channels:,} of {of:,} output channels" if known else ""
    count = phrases.count_text(len(q.saturating), "product")
    return f"{count} may saturate in onnxruntime and OpenVINO on x86 without VNNI{some}"


def _peer_lines(q: QuantizationSummary) -> Iterator[str]:
    text = saturation_text(q)
    if not text:
        yield "  peers: no two products of uint8 by constant int8 weights exceed 16 bits"
        return
    here = "this processor is one" if q.saturates_here else "not on this processor"
    yield f"  peers: {text} ({here})"
    yield from (f"  {line}" for line in table(_saturating_rows(q.saturating), MAX_SHOWN_NODES + 1))


def _saturating_rows(saturating: Sequence[SaturatingProduct]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("node", "channels", "terms", "two products", "exact with")]
    for s in sorted(saturating, key=lambda s: -s.channels):
        known = (f"{s.channels} of {s.of}", str(s.terms), f"{s.largest:,} of 32,767")
        unknown = ("given at run time", "-", "-")
        rows.append((phrases.printable(s.node), *(known if s.of else unknown), s.remedy))
    return rows
