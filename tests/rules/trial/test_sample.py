"""What the trial makes of a sample of rules: its instances, verdicts and counterexamples. Equal
seeds give equal instances, so that what a report says can be repeated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

import pytest

from superopt.ir.graph import Graph
from superopt.ir.text import show_graph
from superopt.rules.lang.rule import Rule
from superopt.rules.trial.cases import cases
from superopt.rules.trial.counterexample import smallest_counterexample
from superopt.rules.trial.float_class import float_class
from superopt.rules.trial.instances import Instance, neighbor_instances, resized_instances
from superopt.rules.trial.new_divisors import new_divisors
from superopt.rules.trial.try_rule import try_rule
from tests.support.rules.sample import GROUPS, changed_sample, check_golden, sample

SEED = 7
COUNT = 3  # instances


def show_side(one: Instance) -> str:
    """The right side of an instance on one line, without its types."""
    lines = show_graph(Graph(one.inputs, one.rhs)).splitlines()
    return "; ".join(line.strip() for line in lines if line.strip().startswith(("%", "return")))


def round_numbers(text: str) -> str:
    """Processors differ in the last digits of functions."""
    return re.sub(r"\d+\.\d{6,}", lambda m: f"{float(m[0]):.5g}", text)


def instances_of(rule: Rule) -> Iterator[str]:
    found = cases(rule, SEED, COUNT)
    plain = list(found.plain)
    for one in plain:
        yield f"  {one}"
    if plain:
        yield f"    {show_side(plain[-1])}"
        for kind, some in (
            ("cramped", found.cramped), ("neighbor", neighbor_instances(rule, plain[-1], SEED)),
            ("resized", resized_instances(rule, plain[-1])),
        ):  # fmt: skip
            for one in islice(some, 2):
                yield f"    {kind}: {one}"


@pytest.mark.parametrize("group", GROUPS)
def test_instances(group: str) -> None:
    check_golden("instances", group, (t for r in sample(group) for t in (r.name, *instances_of(r))))


def results_of(rule: Rule) -> Iterator[str]:
    yield f"{rule.name}: {try_rule(rule, SEED, COUNT)}"
    yield f"    {float_class(rule, SEED, COUNT)}"
    if divisors := new_divisors(rule):
        yield f"    divides by {divisors}"


@pytest.mark.ci
@pytest.mark.parametrize("group", GROUPS)
def test_results(group: str) -> None:
    check_golden("trials", group, (t for r in sample(group)[::2] for t in results_of(r)))


@pytest.mark.ci
@pytest.mark.parametrize("group", GROUPS)
def test_counterexamples(group: str) -> None:
    rules = changed_sample(group)[::2]
    found = ((r, smallest_counterexample(r, SEED, attempts=2)) for r in rules)
    lines = (f"{r}\n    {round_numbers(str(c))}" for r, c in found)
    check_golden("counterexamples", group, lines)
