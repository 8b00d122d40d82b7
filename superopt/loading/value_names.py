"""Names and texts of values in reports: the model's own names where it has them."""

from __future__ import annotations

from collections import deque
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
    """Names of values: the model's; for others the operator and the nearest of the model's values
    above, such as "new Conv after /3/Relu_output_0"."""

    def __init__(self, model_names: Mapping[graph.Value, str]) -> None:
        self._model_names = model_names

    def __getitem__(self, v: graph.Value) -> str:
        found = self._model_names.get(v)
        if found is not None:
            return found
        p = graph.producer(v)
        above = self._nearest_above(v)
        place = "" if above is None else f" after {self._model_names[above]}"
        return f"new {'weight' if p is None else p.op.title}{place}"

    def _nearest_above(self, v: graph.Value) -> graph.Value | None:
        """Return the nearest named value that `v` is computed from; weights come last."""
        todo, seen = deque(graph.operands(v)), {v}
        weights = list[graph.Value]()
        while todo:
            w = todo.popleft()
            if w in seen:
                continue
            seen.add(w)
            if w not in self._model_names:
                todo += graph.operands(w)
            elif isinstance(w, graph.Constant):
                weights.append(w)
            else:
                return w
        return weights[0] if weights else None

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
