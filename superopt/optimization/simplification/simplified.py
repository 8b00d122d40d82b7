"""The result of `simplify` for its caller."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from superopt.optimization import optimization_result as result_
from superopt.optimization.result import OptimizedModel
from superopt.report.formatting.phrases import count_text, printable


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Simplified(OptimizedModel):
    """The result of `superopt.simplify`.

    Attributes:
        report: The nodes before and after, the rewrites, the errors and notes, as plain data.
        changed: Whether the model differs from the input.
        seconds: How long it took.
        has_new_input_shapes: Whether input shapes were given.

    Example:
        >>> superopt.simplify("model.onnx").report.nodes_before
        4
    """

    seconds: float
    has_new_input_shapes: bool

    def __repr__(self) -> str:
        r = self.report
        return f"<Simplified {r.model_name}: {r.nodes_before} -> {r.nodes_after} nodes>"

    def __str__(self) -> str:
        r = self.report
        if not self.changed:
            lines = [f"{r.model_name}: {count_text(r.nodes_before, 'node')}, nothing to remove"]
        else:
            removed = f"{r.nodes_before} -> {r.nodes_after} nodes in {self.seconds:.1f} s"
            lines = [f"{r.model_name}: {removed}"]
            lines += [
                f"  {kind:20}  {before:>6} -> {after}"
                for kind, before, after in r.operators
                if before != after
            ]
            counts = Counter(s.rule for s in r.steps)
            lines += [f"  {n}x {rule}" for rule, n in counts.most_common()]
        lines += [f"  note: {note}" for note in r.notes]
        return "\n".join(map(printable, lines))

    def save(self, path: str | Path) -> Path | None:
        """Write the model by an atomic rename, and its certificate beside it; return the
        certificate's path. If nothing changed, write a byte-identical copy of the input, and return
        None. With new input shapes there is no certificate: it would be of another original."""
        if self.has_new_input_shapes:
            result_.save_model(self._result, Path(path))
            return None
        return OptimizedModel.save(self, path)
