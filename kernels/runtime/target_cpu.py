"""The levels of the x86-64 psABI as compilation targets, and the one the user requests.

`SUPEROPT_TARGET_CPU=x86-64-v3` compiles kernels for that level instead of for this processor: to
export code for an older one, or to test its code.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from superopt.errors import UsageError

VARIABLE = "SUPEROPT_TARGET_CPU"


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the psABI, or another kind of processors. features: LLVM's names of all its
    features; width: of a vector, bytes. cpu: LLVM's name, if that is another one."""

    features: tuple[str, ...]
    width: int
    cpu: str = ""


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
    """Code uses an instruction set that this processor lacks."""


def requested_level() -> str | None:
    """Return the level that SUPEROPT_TARGET_CPU names; None if it is unset, empty or "native".

    Raises UsageError for another name.
    """
    name = os.environ.get(VARIABLE) or "native"
    if name != "native" and name not in LEVELS:
        raise UsageError(
            f"{VARIABLE} is {name!r}",
            "it is not a level of x86-64",
            f"set it to one of {', '.join(LEVELS)}, or native",
        )
    return None if name == "native" else name


def missing_features(needed: str, present: str) -> list[str]:
    """Return the features of the target `needed` that `present` lacks; both as LLVM's feature
    strings ("+avx,+avx2,-avx512f")."""
    have = _enabled_features(present)
    return sorted(_enabled_features(needed) - have)


def _enabled_features(features: str) -> set[str]:
    return {f[1:] for f in features.split(",") if f.startswith("+")}
