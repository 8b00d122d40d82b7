"""What a model is compiled with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from superopt.compilation.frontend.allowed_transforms import ALL_TRANSFORMS, AllowedTransforms


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The options of `superopt.compile`. store: the file of measurements, if not in the user's
    cache."""

    target: str = "cpu"
    threads: int = 1
    allowed: AllowedTransforms = ALL_TRANSFORMS
    precision: str = "fp32"
    vendor: bool = True
    streams: int = 4
    store: Path | None = None
