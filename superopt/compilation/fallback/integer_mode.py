"""Exact 8-bit integer products in sessions, on processors where ONNX Runtime's default would
saturate (int8_saturation.py)."""

from __future__ import annotations

import platform
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from superopt.onnx_io.check.int8_saturation import Remedy, SaturatingNode

X86_ARCHITECTURES = frozenset(("x86_64", "amd64", "i386", "i686"))
AVX512_CORE_FLAGS = frozenset(("avx512f", "avx512bw", "avx512dq", "avx512vl"))


@dataclass(frozen=True, slots=True)
class IntegerMode:
    """level: ONNX Runtime's optimization level; unsigned_weights: its session option
    `session.x64quantprecision`; notes: the cost, and what remains inexact."""

    level: str = "all"
    unsigned_weights: bool = False
    notes: tuple[str, ...] = ()


DEFAULT_MODE = IntegerMode()


def saturates_uint8_products(
    flags: Collection[str], architecture: str | None = None, system: str | None = None
) -> bool:
    """True if onnxruntime's products of uint8 by int8 saturate on a processor with these flags (as
    /proc/cpuinfo has them; none: unknown), as MLAS chooses its kernels (`platform.cpp`).
    architecture, system: as `platform.machine` and `platform.system` name them; by default this
    machine's.

    >>> saturates_uint8_products({"avx2", "fma"}, "x86_64")
    True
    >>> saturates_uint8_products({"avx2", "fma", "avx_vnni"}, "x86_64")
    False
    """
    if (architecture or platform.machine()).lower() not in X86_ARCHITECTURES:
        return False
    if not flags:
        return True
    if not {"avx2", "fma"} <= {*flags}:
        # Only Windows builds have kernels for SSE4.1; those for SSE2 accumulate in 32 bits.
        return (system or platform.system()) == "Windows"
    if {*flags} >= AVX512_CORE_FLAGS:
        return "avx512_vnni" not in flags
    return "avx_vnni" not in flags


def choose_integer_mode(nodes: Sequence[SaturatingNode]) -> IntegerMode:
    """Return the mode for a model with these nodes, on a processor that saturates."""
    some = {r: [n for n in nodes if n.remedy is r] for r in Remedy}
    unsigned, floats, none = (some[r] for r in Remedy)
    notes: list[str] = []
    if unsigned:
        notes.append(
            f"{_nodes_text(unsigned)}: products of uint8 by int8 saturate at 16 bits on this "
            "processor, which has no VNNI; onnxruntime multiplies by uint8 weights, half as many "
            "at a time"
        )
        none = none + floats
    elif floats:
        notes.append(
            f"{_nodes_text(floats)}: products of uint8 by int8 saturate at 16 bits on this "
            "processor, which has no VNNI; onnxruntime multiplies floats, at its optimization "
            "level basic"
        )
    if none:
        notes.append(
            f"{_nodes_text(none)}: products of uint8 by int8 may saturate at 16 bits on this "
            "processor, which has no VNNI; quantize weights to uint8, or to 7 bits (reduce_range)"
        )
    level = "basic" if floats and not unsigned else "all"
    return IntegerMode(level, bool(unsigned), tuple(notes))


def _nodes_text(nodes: Sequence[SaturatingNode]) -> str:
    """Return the first node, and how many more there are."""
    first, *more = nodes
    return f"{first.op} {first.name}".strip() + (f" and {len(more)} more" if more else "")
