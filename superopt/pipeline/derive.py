"""`derive`: is the equality of two models a consequence of the rules?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from superopt.errors import UsageError
from superopt.ir import graph as g
from superopt.onnx_io.importer import import_model
from superopt.onnx_io.source import Source
from superopt.onnx_io.validate import validate
from superopt.pipeline.naming import Names
from superopt.pipeline.verify import interface, joined
from superopt.report.data import Derivation, DerivedStep, Event
from superopt.report.words import count
from superopt.rules.derive import Bounds, Derived, derive
from superopt.rules.index import Index
from superopt.rules.rule import Rule
from superopt.rules.term import Call

STEPS, GRAPHS = 16, 1_000_000  # it is the seconds that end a search


@dataclass(frozen=True, slots=True)
class Asked:
    """What the caller asked; see `superopt.api.derive`."""

    rules: tuple[Rule, ...]
    limit: float = 60.0
    progress: Callable[[Event], None] = lambda event: None
    stop: Callable[[], bool] = lambda: False


def derivation(a: Source, b: Source, asked: Asked) -> Derivation:
    """A chain of rules from model `a` to model `b`, or why there is none."""
    begin = time.monotonic()
    asked.progress(Event("load", f"{a.label} and {b.label}", 0.0))
    for source in (a, b):
        validate(source)
    one, two = import_model(a), import_model(b)
    mismatch = interface(one, two)
    other = None if mismatch else joined(one, two)
    if other is None:
        raise UsageError(
            f"{a.label} and {b.label} have different interfaces",
            mismatch or "their symbolic sizes have other names",
            "give models with the same inputs and outputs",
        )
    asked.progress(Event("derive", "chains of rules from either model", 0.1))
    bounds = Bounds(steps=STEPS, graphs=GRAPHS, seconds=asked.limit)
    found = derive(one.graph, other, Index(anywhere(asked.rules)), bounds, asked.stop)
    seconds = time.monotonic() - begin
    if not isinstance(found, Derived):
        reason = f"{found.reason}, after {count(found.visited, 'graph')}"
        return Derivation(False, reason, (), found.visited, seconds)
    names = Names(one.names)
    steps = [
        *(DerivedStep(s.rule, True, _text(names, s.after)) for s in found.forth),
        *(DerivedStep(s.rule, False, _text(names, s.before)) for s in reversed(found.back)),
    ]
    reason = f"by {count(len(steps), 'rewrite')}" if steps else "they are the same graph"
    return Derivation(True, reason, tuple(steps), found.visited, seconds)


def anywhere(rules: Iterable[Rule]) -> list[Rule]:
    """The rules without `const(x)` among their conditions, which says where a rule pays, not where
    it holds: their trial draws any value there."""
    return [
        replace(r, where=tuple(f for f in r.where if not (isinstance(f, Call) and f.fn == "const")))
        for r in rules
    ]


def _text(names: Names, graph: g.Graph) -> str:
    return "; ".join(names.text(v) for v in graph.outputs)
