"""Names and texts of values in reports: the model's own names where it has them."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.ir import graph
from superopt.ir.text import show_node
from superopt.report.data import Reason

# Reasons of the matcher, and the corresponding reasons of a report.
REASONS: Mapping[str, Reason] = {
    "cost": "cost", "untaken": "untaken", "condition": "condition", "shape": "shape",
    "infer": "shape", "cycle": "cycle", "opset": "opset", "unsafe": "unsafe",
    "rounding": "rounding",
}  # fmt: skip
DEPTH = 3  # operators deep, in the text of a rewrite


class Names:
    """Names of values: the model's, else the operator and a number."""

    def __init__(self, given: Mapping[graph.Value, str]) -> None:
        self._given = given
        self._made: dict[graph.Value, str] = {}

    def __getitem__(self, v: graph.Value) -> str:
        if v in self._given:
            return self._given[v]
        if v not in self._made:
            p = graph.producer(v)
            kind = "weight" if p is None else p.op.title.lower()
            self._made[v] = f"{kind}_{len(self._made)}"
        return self._made[v]

    def text(self, v: graph.Value, depth: int = DEPTH) -> str:
        """Return `v` as a term that is `depth` operators deep."""
        p = graph.producer(v)
        if p is None or depth == 0:
            return self[v]
        suffix = f"[{v.index}]" if isinstance(v, graph.Item) else ""
        return show_node(p, _Inner(self, depth - 1)) + suffix  # type: ignore[arg-type]


class _Inner:
    """Operands as terms one operator less deep."""

    def __init__(self, names: Names, depth: int) -> None:
        self._names = names
        self._depth = depth

    def __getitem__(self, v: graph.Value) -> str:
        return self._names.text(v, self._depth)
