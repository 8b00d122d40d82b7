"""The levels of the x86-64 psABI as compilation targets, and which of them the user asks for.

`SUPEROPT_TARGET_CPU=x86-64-v3` compiles kernels for that level instead of for this processor: to
export code for an older one, or to test the code that other processors get.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from superopt.errors import UsageError

VARIABLE = "SUPEROPT_TARGET_CPU"


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the psABI. features: LLVM's names of all that it has; width: of a vector, in
    bytes."""

    features: tuple[str, ...]
    width: int


_SSE2 = ("64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2")
_SSE4 = (*_SSE2, "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_AVX2 = (*_SSE4, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_AVX512 = (*_AVX2, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")

LEVELS = {
    "x86-64": Level(_SSE2, 16),
    "x86-64-v2": Level(_SSE4, 16),
    "x86-64-v3": Level(_AVX2, 32),
    "x86-64-v4": Level(_AVX512, 64),
}


class MissingInstructions(UsageError):
    """Code is to run on a processor that lacks an instruction set that it uses."""


def requested_level() -> str | None:
    """The level that SUPEROPT_TARGET_CPU names; None where it is unset, empty or "native".

    Raises UsageError for another name.
    """
    name = os.environ.get(VARIABLE) or "native"
    if name != "native" and name not in LEVELS:
        raise UsageError(
            f"{VARIABLE} is {name!r}",
            "this is no level of x86-64",
            f"set it to one of {', '.join(LEVELS)}, or native",
        )
    return None if name == "native" else name


def missing_features(needed: str, present: str) -> list[str]:
    """The features of the target `needed` that `present` lacks; both as LLVM's feature strings
    ("+avx,+avx2,-avx512f")."""
    have = _enabled_features(present)
    return sorted(_enabled_features(needed) - have)


def _enabled_features(features: str) -> set[str]:
    return {f[1:] for f in features.split(",") if f.startswith("+")}
