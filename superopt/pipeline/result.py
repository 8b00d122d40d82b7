"""What `optimize` gives to its caller."""

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
    """What `optimize` returns.

    report: everything that was found, as plain data; changed: is the model another than the input.
    """

    report: Report
    changed: bool
    _done: optimize_.Done

    @property
    def model(self) -> ModelProto:
        """The optimized model (the input's own when nothing changed), weights included."""
        with tempfile.TemporaryDirectory(prefix="superopt-") as folder:
            path = Path(folder, "model.onnx")
            optimize_.save(self._done, path)
            return load_proto(path)

    @property
    def decisions(self) -> str:
        """The log of what was decided, which `replay` takes."""
        return optimize_.decisions(self._done)

    @property
    def cost_before(self) -> float:
        """Microseconds of the input by the cost model."""
        return self.report.cost_before_us

    @property
    def cost_after(self) -> float:
        """Microseconds of the result by the cost model."""
        return self.report.cost_after_us

    def explain(self, names: Iterable[str]) -> tuple[Rejected, ...]:
        """What stood in the way of the rules among `names`, and of any rule at the values among
        `names`, in the model as it was given."""
        return explain_.attempts(self._done, names)

    @property
    def certificate(self) -> str | None:
        """How the model was made of the input, as JSON; None if nothing changed.

        It names the model's file as `save` writes it; with external data, only the file that
        `save` writes beside the model does.
        """
        winner = self._done.winner
        found = None if winner is None else winner.certificate
        return None if found is None else certificate_json(found)

    def save(self, path: str | Path) -> Path | None:
        """Write the model by rename, and its certificate beside it, whose path is returned;
        a byte-identical copy of the input, and no certificate, if nothing changed."""
        found = optimize_.save(self._done, Path(path))
        return None if found is None else certify_.write_file(found, Path(path))
