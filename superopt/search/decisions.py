"""The log of a search: which matches were applied, so that a run can be repeated without measuring.

A round is a list of [rule, number]: the number-th match of the rule in the graph before the round.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby

from superopt.errors import UsageError
from superopt.ir import graph as g
from superopt.rules.build import Refusal, rewrite
from superopt.rules.context import context
from superopt.rules.match import matches
from superopt.rules.rule import Rule
from superopt.search.move import Step
from superopt.search.view import together

FORMAT = 1
Change = Mapping[g.Value, g.Value]


def changes(rule: Rule, graph: g.Graph) -> list[Change]:
    """What each match of `rule` would replace, in the matcher's order."""
    ctx = context(graph)
    built = (rewrite(m, ctx) for m in matches(rule, ctx))
    return [c for c in built if not isinstance(c, Refusal)]


def log(steps: Sequence[Step], rules: Sequence[Rule], model: str) -> str:
    """The decisions behind `steps` as JSON; `model` is the digest of the file they belong to."""
    book = {r.name: r for r in rules}
    rounds: list[list[tuple[str, int]]] = []
    for before, group in groupby(steps, key=lambda s: id(s.before)):
        row: list[tuple[str, int]] = []
        known: dict[str, list[Change]] = {}
        for s in group:
            if s.rule not in known:
                known[s.rule] = changes(book[s.rule], s.before)
            row.append((s.rule, _number(known[s.rule], s)))
        rounds.append(row)
        del before
    return json.dumps({"format": FORMAT, "model": model, "rounds": rounds}, indent=1) + "\n"


def _number(known: Sequence[Change], step: Step) -> int:
    for n, change in enumerate(known):
        if dict(change) == dict(step.change):
            return n
    raise AssertionError(f"the step {step.rule} is no match of its own rule")


def replay(text: str, graph: g.Graph, rules: Sequence[Rule], model: str) -> list[Step]:
    """The steps that a log says, taken again from `graph`.

    Raises UsageError for a log of another model, of other rules or that is none.
    """
    book = {r.name: r for r in rules}
    try:
        data = json.loads(text)
        rounds = [[(str(r), int(n)) for r, n in row] for row in data["rounds"]]
        same = data["format"] == FORMAT and data["model"] == model
    except (ValueError, KeyError, TypeError) as e:
        raise UsageError(
            "--replay: this is no log of decisions", str(e), "give one of --decisions"
        ) from None
    if not same:
        raise UsageError(
            "--replay: the log belongs to another model",
            f"it names {data['model']}, this is {model}",
            "optimize this model anew",
        )  # fmt: skip
    steps: list[Step] = []
    for row in rounds:
        taken: list[tuple[str, Change]] = []
        for name, n in row:
            known = changes(book[name], graph) if name in book else []
            if n >= len(known):
                raise UsageError(
                    f"--replay: rule {name} has no match number {n}", "the rules have changed",
                    "optimize the model anew",
                )  # fmt: skip
            taken.append((name, known[n]))
        after = together(graph, [c for _, c in taken])
        steps += [Step(name, None, c, 0.0, graph, after) for name, c in taken]
        graph = after
    return steps
