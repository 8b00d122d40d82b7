"""Inputs of a timed run: given ones, or random ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from superopt.check.random_inputs import random_feeds
from superopt.errors import UsageError
from superopt.loading.representative_sizes import representative_sizes
from superopt.onnx_io.import_.model import Model


def given_or_random_inputs(
    model: Model, inputs: Mapping[str, Any] | None, shapes: Mapping[str, int], seconds: float
) -> Mapping[str, Any]:
    """Return the given inputs, or random ones for the symbolic sizes in `shapes`. Raises UsageError
    if none can be drawn, and for seconds that are not positive."""
    if not 0 < seconds < float("inf"):
        raise UsageError(
            f"{seconds} seconds", "seconds must be positive and finite", "use another value"
        )
    if inputs is not None:
        return inputs
    try:
        return next(random_feeds(model.graph, representative_sizes(model, shapes), 0)).arrays
    except (TypeError, KeyError, MemoryError) as e:
        raise UsageError(
            f"{model.source.label}: no inputs can be drawn", str(e), "give inputs"
        ) from None
