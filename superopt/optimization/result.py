"""The result of `optimize` for its caller."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from superopt.onnx_io.read.protos import ModelProto, load_proto
from superopt.optimization import certificate as certify_
from superopt.optimization import optimization_result as result_
from superopt.optimization.report import explain as explain_
from superopt.report.data.certificate import certificate_json
from superopt.report.data.notebook import preformatted
from superopt.report.data.report import Rejected, Report
from superopt.report.formatting import phrases
from superopt.report.text.report_text import short_summary


@dataclass(frozen=True, slots=True, eq=False)
class OptimizedModel:
    """A model after `optimize`, with its report; `superopt.Optimized` also compiles it."""

    report: Report
    changed: bool
    _result: result_.OptimizationResult

    def __repr__(self) -> str:
        r = self.report
        verdict = phrases.report_verdict_text(r)
        return f"<Optimized {r.model_name}: {verdict}, {r.nodes_before} -> {r.nodes_after} nodes>"

    def __str__(self) -> str:
        return short_summary(self.report)

    def _repr_html_(self) -> str:
        return preformatted(str(self))

    @property
    def model(self) -> ModelProto:
        """The optimized model with its weights; the input's own if nothing changed."""
        with tempfile.TemporaryDirectory(prefix="superopt-") as folder:
            path = Path(folder, "model.onnx")
            result_.save_model(self._result, path)
            return load_proto(path)

    @property
    def decisions(self) -> str:
        """The decision log, which `replay` takes."""
        return result_.decision_log(self._result)

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
        return explain_.explain_rejections(self._result, names)

    @property
    def certificate(self) -> str | None:
        """How the model was derived from the input, as JSON; None if nothing changed.

        It is valid for the file that `save` writes; with external data, only the certificate that
        `save` writes beside the model is.
        """
        winner = self._result.winner
        found = None if winner is None else winner.certificate
        return None if found is None else certificate_json(found)

    def save(self, path: str | Path) -> Path | None:
        """Write the model by an atomic rename, and its certificate beside it; return the
        certificate's path. If nothing changed, write a byte-identical copy of the input, and return
        None."""
        found = result_.save_model(self._result, Path(path))
        return None if found is None else certify_.write_certificate_file(found, Path(path))
