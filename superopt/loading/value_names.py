"""Names and texts of values in reports: the model's own names where it has them."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.ir import graph
from superopt.ir.text import show_node
from superopt.report.data.report import Reason

# Reasons of the matcher, and the corresponding reasons of a report.
REPORT_REASONS: Mapping[str, Reason] = {
    "cost": "cost", "untaken": "untaken", "condition": "condition", "shape": "shape",
    "infer": "shape", "cycle": "cycle", "opset": "opset", "unsafe": "unsafe",
    "rounding": "rounding",
}  # fmt: skip
TERM_DEPTH = 3  # operators deep, in the text of a rewrite


class ValueNames:
    """Names of values: the model's, else the operator and a number."""

    def __init__(self, model_names: Mapping[graph.Value, str]) -> None:
        self._model_names = model_names
        self._generated_names: dict[graph.Value, str] = {}

    def __getitem__(self, v: graph.Value) -> str:
        if v in self._model_names:
            return self._model_names[v]
        if v not in self._generated_names:
            p = graph.producer(v)
            kind = "weight" if p is None else p.op.title.lower()
            self._generated_names[v] = f"{kind}_{len(self._generated_names)}"
        return self._generated_names[v]

    def term_text(self, v: graph.Value, depth: int = TERM_DEPTH) -> str:
        """Return `v` as a term that is `depth` operators deep."""
        p = graph.producer(v)
        if p is None or depth == 0:
            return self[v]
        suffix = f"[{v.index}]" if isinstance(v, graph.Item) else ""
        return show_node(p, _OperandTexts(self, depth - 1)) + suffix  # type: ignore[arg-type]


class _OperandTexts:
    """Operands as terms one operator less deep."""

    def __init__(self, names: ValueNames, depth: int) -> None:
        self._names = names
        self._depth = depth

    def __getitem__(self, v: graph.Value) -> str:
        return self._names.term_text(v, self._depth)
