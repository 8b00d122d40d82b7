"""Proofs that single layers of quantized models are within steps."""

from __future__ import annotations

import time

from superopt.ir import graph as ir_graph
from superopt.verifier.rounding.affine_sums import AffineReader
from superopt.verifier.rounding.graph_bounds import is_small_integer
from superopt.verifier.rounding.graph_steps import StepProver, WithinSteps

__all__ = ["LayerProver", "is_small_integer"]


class LayerProver:
    """Proves layers until a time is over; keeps what it has proved of their products."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._reader = AffineReader()

    def steps(self, before: ir_graph.Value, after: ir_graph.Value) -> int | None:
        """Return by how many steps two results of the same operands may differ; None if that is not
        proved."""
        if time.monotonic() > self._end:
            return None
        prover = StepProver(self._end, reader=self._reader)
        found = prover.prove(before, after, numbers_only=True)
        return found.steps if isinstance(found, WithinSteps) else None
