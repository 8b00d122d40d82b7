"""The result of `optimize` for its caller."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from superopt.onnx_io.read.protos import ModelProto, load_proto
from superopt.pipeline import certify as certify_
from superopt.pipeline import explain as explain_
from superopt.pipeline import optimize as optimize_
from superopt.report.certificate import certificate_json
from superopt.report.data import Rejected, Report


@dataclass(frozen=True, slots=True, eq=False)
class Optimized:
    """The result of `optimize`.

    report: all results, as plain data; changed: whether the model differs from the input.
    """

    report: Report
    changed: bool
    _done: optimize_.Done

    @property
    def model(self) -> ModelProto:
        """The optimized model with its weights; the input's own if nothing changed."""
        with tempfile.TemporaryDirectory(prefix="superopt-") as folder:
            path = Path(folder, "model.onnx")
            optimize_.save(self._done, path)
            return load_proto(path)

    @property
    def decisions(self) -> str:
        """The decision log, which `replay` takes."""
        return optimize_.decisions(self._done)

    @property
    def cost_before(self) -> float:
        """Estimated cost of the input in microseconds, by the cost model."""
        return self.report.cost_before_us

    @property
    def cost_after(self) -> float:
        """Estimated cost of the result in microseconds, by the cost model."""
        return self.report.cost_after_us

    def explain(self, names: Iterable[str]) -> tuple[Rejected, ...]:
        """Return why the rules among `names` were not applied, and why no rule was applied at the
        values among `names`, in the original model."""
        return explain_.attempts(self._done, names)

    @property
    def certificate(self) -> str | None:
        """How the model was derived from the input, as JSON; None if nothing changed.

        It is valid for the file that `save` writes; with external data, only the certificate that
        `save` writes beside the model is.
        """
        winner = self._done.winner
        found = None if winner is None else winner.certificate
        return None if found is None else certificate_json(found)

    def save(self, path: str | Path) -> Path | None:
        """Write the model by an atomic rename, and its certificate beside it; return the
        certificate's path. If nothing changed, write a byte-identical copy of the input, and return
        None."""
        found = optimize_.save(self._done, Path(path))
        return None if found is None else certify_.write_file(found, Path(path))
