"""Remove rules that follow from the other rules."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

from superopt.generate.generalize.completeness import DERIVE_LIMITS
from superopt.generate.generalize.rule_names import parse_rule, rule_text, statement_checksum
from superopt.ir import graph
from superopt.rules.lang.rule import Rule
from superopt.rules.match.derive import Derived, DeriveLimits, derive
from superopt.rules.match.rule_index import RuleIndex
from superopt.rules.trial.instances import Instance, instances, neighbor_instances

TEST_INSTANCES = 12  # on which a rule must follow
NEIGHBOUR_INSTANCES = 3  # of these, with as many neighbours of each
# Forward only, since a search could not go backward; and by no graph larger than both sides: x - 0
# is x + (0 - 0), but without its own rule every graph with a zero would need longer chains.
FORWARD_LIMITS = replace(DERIVE_LIMITS, max_growth=0, forward_only=True)


@dataclass(frozen=True, slots=True)
class DerivedRule:
    """A removed rule, the chain of rules that replaces it, and the rules of all chains: at other
    shapes the chain may differ."""

    rule: Rule
    chain: tuple[str, ...]
    used_rules: frozenset[str]


def derive_rule(
    rule: Rule,
    index: RuleIndex,
    seed: int,
    excluded_names: Collection[str] = (),
    limits: DeriveLimits = FORWARD_LIMITS,
) -> DerivedRule | None:
    """Return the chain of other rules, none in `excluded_names`, with the effect of `rule`, on
    instances of different shapes; None without one within `limits`."""
    chains: list[tuple[str, ...]] = []
    for one in _test_instances(rule, seed):
        left, right = graph.Graph(one.inputs, one.lhs), graph.Graph(one.inputs, one.rhs)
        found = derive(left, right, index, limits, excluded={rule.name, *excluded_names})
        if not isinstance(found, Derived):
            return None
        chains.append(tuple(link.rule for link in (*found.forward, *reversed(found.backward))))
    if not chains:
        return None
    return DerivedRule(rule, chains[0], frozenset(name for chain in chains for name in chain))


def _test_instances(rule: Rule, seed: int) -> Iterator[Instance]:
    """Yield random instances, and neighbours of the first ones: random operands of any fitting
    shape rarely differ in shape."""
    first: list[Instance] = []
    for one in islice(instances(rule, seed), TEST_INSTANCES):
        first.append(one)
        yield one
    for k, one in enumerate(first[:NEIGHBOUR_INSTANCES]):
        yield from islice(neighbor_instances(rule, one, seed + k), NEIGHBOUR_INSTANCES)


def prune_rules(
    rules: Sequence[Rule],
    run_tasks: TaskRunner,
    seed: int,
    needed_names: Collection[str] = (),
    underivable_from: dict[int, frozenset[int]] | None = None,
) -> tuple[list[Rule], list[DerivedRule]]:
    """Return the rules that do not follow from the rest, tried from the last one, and those that
    do, each with a chain of the remaining rules.

    run_tasks: runs tasks by their keys, possibly in several processes. needed_names: rules that
    stay unless one other rule subsumes them. underivable_from: checksums of rules that do not
    follow from the rules with these checksums; it is extended.

    A rule that does not follow from all the others does not follow from fewer. A chain is valid
    while its rules remain; a rule whose chain used a rule that was removed later may need too long
    a chain, and comes back.
    """
    underivable_from = {} if underivable_from is None else underivable_from
    left = {r.name: r for r in rules}
    gone: dict[str, Rule] = {}
    index = RuleIndex(rules)
    every = frozenset(map(statement_checksum, rules))
    asked = [
        r
        for r in rules
        if not every - {statement_checksum(r)}
        <= underivable_from.get(statement_checksum(r), frozenset())
    ]
    for rule, known in reversed(
        list(zip(asked, _derive_all(asked, rules, run_tasks, seed), strict=True))
    ):
        if known is None:  # from all others
            underivable_from[statement_checksum(rule)] = every - {statement_checksum(rule)}
        others = {n: r for n, r in left.items() if n != rule.name}
        if known is not None and not known.used_rules <= others.keys():
            known = derive_rule(rule, index, seed, gone.keys())
        at_once = known is not None and len(known.used_rules) == len(known.chain) == 1
        if known is None or (rule.name in needed_names and not at_once):
            continue
        left = others
        gone[rule.name] = rule
    kept = list(left.values())
    found = _derive_all(list(gone.values()), kept, run_tasks, seed)
    lost = {r.name for r, f in zip(gone.values(), found, strict=True) if f is None}
    kept = [r for r in rules if r.name in left or r.name in lost]
    return kept, [f for f in found if f is not None]


def _derive_all(
    candidates: Sequence[Rule], others: Sequence[Rule], run_tasks: TaskRunner, seed: int
) -> list[DerivedRule | None]:
    """Derive each of some rules from the others."""
    texts = tuple(map(rule_text, others))
    every = zlib.crc32("\n".join(texts).encode())
    tasks = {f"chains {every:08x} {r.name}": (rule_text(r), texts, seed) for r in candidates}
    found: list[DerivedRule | None] = []
    for rule, (_, text) in zip(candidates, run_tasks(derive_from_others, tasks), strict=True):
        chain, used = json.loads(text)
        found.append(DerivedRule(rule, tuple(chain), frozenset(used)) if used else None)
    return found


Task = tuple[str, tuple[str, ...], int]
TaskRunner = Callable[[Callable[[Task], str], Mapping[str, Task]], Iterable[tuple[str, str]]]


def derive_from_others(task: Task) -> str:
    """Return as JSON how a rule follows from the other texts: a chain, and the rules of all chains;
    empty if it does not. Rules are sent as texts."""
    text, texts, seed = task
    rule = parse_rule(text)
    found = derive_rule(rule, _index(texts), seed)
    return json.dumps(([], []) if found is None else (found.chain, sorted(found.used_rules)))


@lru_cache(maxsize=1)
def _index(texts: tuple[str, ...]) -> RuleIndex:
    return RuleIndex(map(parse_rule, texts))
