"""A one-line summary of a compiled model's output."""

from __future__ import annotations

import numpy as np

from superopt.report.compiled import OutputValue


def described(name: str, x: np.ndarray) -> OutputValue:
    """Return an output as one line."""
    numbers = isinstance(x, np.ndarray) and x.size > 0 and x.dtype.kind in "biuf"
    least, most = (float(np.min(x)), float(np.max(x))) if numbers else (None, None)
    shape = list(x.shape) if isinstance(x, np.ndarray) else ""
    kind = x.dtype if isinstance(x, np.ndarray) else type(x).__name__
    return OutputValue(name, f"{kind}{shape}", least, most)
