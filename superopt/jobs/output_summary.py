"""A one-line summary of a compiled model's output."""

from __future__ import annotations

import numpy as np

from superopt.report.compilation.compile_report import OutputRange


def summarize_output(name: str, value: np.ndarray) -> OutputRange:
    """Return an output as one line."""
    numbers = isinstance(value, np.ndarray) and value.size > 0 and value.dtype.kind in "biuf"
    least, most = (float(np.min(value)), float(np.max(value))) if numbers else (None, None)
    shape = list(value.shape) if isinstance(value, np.ndarray) else ""
    kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
    return OutputRange(name, f"{kind}{shape}", least, most)
