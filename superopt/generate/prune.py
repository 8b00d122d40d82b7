"""Remove rules that follow from the other rules."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

from superopt.generate.complete import BOUNDS
from superopt.generate.naming import said_of, text_of
from superopt.ir import graph
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.match.derive import Derived, DeriveLimits, derive
from superopt.rules.match.rule_index import RuleIndex
from superopt.rules.trial.instances import Instance, instances, neighbor_instances

INSTANCES = 12  # on which a rule must follow
NEAR = 3  # of these, with as many neighbours of each
# Forward only, since a search could not go backward; and by no graph larger than both sides: x - 0
# is x + (0 - 0), but without its own rule every graph with a zero would need longer chains.
FORWARD = replace(BOUNDS, max_growth=0, forward_only=True)


@dataclass(frozen=True, slots=True)
class Follows:
    """A removed rule, the chain of rules that replaces it, and the rules of all chains: at other
    shapes the chain may differ."""

    rule: Rule
    chain: tuple[str, ...]
    used: frozenset[str]


def follows(
    rule: Rule,
    index: RuleIndex,
    seed: int,
    without: Collection[str] = (),
    bounds: DeriveLimits = FORWARD,
) -> Follows | None:
    """Return the chain of other rules, none in `excluded_names`, with the effect of `rule`, on
    instances of different shapes; None without one within `limits`."""
    chains: list[tuple[str, ...]] = []
    for one in _instances(rule, seed):
        left, right = graph.Graph(one.inputs, one.lhs), graph.Graph(one.inputs, one.rhs)
        found = derive(left, right, index, bounds, excluded={rule.name, *without})
        if not isinstance(found, Derived):
            return None
        chains.append(tuple(link.rule for link in (*found.forward, *reversed(found.backward))))
    if not chains:
        return None
    return Follows(rule, chains[0], frozenset(name for chain in chains for name in chain))


def _instances(rule: Rule, seed: int) -> Iterator[Instance]:
    """Yield random instances, and neighbours of the first ones: random operands of any fitting
    shape rarely differ in shape."""
    first: list[Instance] = []
    for one in islice(instances(rule, seed), INSTANCES):
        first.append(one)
        yield one
    for k, one in enumerate(first[:NEAR]):
        yield from islice(neighbor_instances(rule, one, seed + k), NEAR)


def minimal(
    rules: Sequence[Rule],
    done: Done,
    seed: int,
    needed: Collection[str] = (),
    apart: dict[int, frozenset[int]] | None = None,
) -> tuple[list[Rule], list[Follows]]:
    """Return the rules that do not follow from the rest, tried from the last one, and those that
    do, each with a chain of the remaining rules.

    run_tasks: runs tasks by their keys, possibly in several processes. needed_names: rules that
    stay unless one other rule subsumes them. underivable_from: checksums of rules that do not
    follow from the rules with these checksums; it is extended.

    A rule that does not follow from all the others does not follow from fewer. A chain is valid
    while its rules remain; a rule whose chain used a rule that was removed later may need too long
    a chain, and comes back.
    """
    apart = {} if apart is None else apart
    left = {r.name: r for r in rules}
    gone: dict[str, Rule] = {}
    index = RuleIndex(rules)
    every = frozenset(map(said_of, rules))
    asked = [r for r in rules if not every - {said_of(r)} <= apart.get(said_of(r), frozenset())]
    for rule, known in reversed(list(zip(asked, _all(asked, rules, done, seed), strict=True))):
        if known is None:  # from all others
            apart[said_of(rule)] = every - {said_of(rule)}
        others = {n: r for n, r in left.items() if n != rule.name}
        if known is not None and not known.used <= others.keys():
            known = follows(rule, index, seed, gone.keys())
        at_once = known is not None and len(known.used) == len(known.chain) == 1
        if known is None or (rule.name in needed and not at_once):
            continue
        left = others
        gone[rule.name] = rule
    kept = list(left.values())
    found = _all(list(gone.values()), kept, done, seed)
    lost = {r.name for r, f in zip(gone.values(), found, strict=True) if f is None}
    kept = [r for r in rules if r.name in left or r.name in lost]
    return kept, [f for f in found if f is not None]


def _all(
    some: Sequence[Rule], others: Sequence[Rule], done: Done, seed: int
) -> list[Follows | None]:
    """Derive each of some rules from the others."""
    texts = tuple(map(text_of, others))
    every = zlib.crc32("\n".join(texts).encode())
    tasks = {f"chains {every:08x} {r.name}": (text_of(r), texts, seed) for r in some}
    found: list[Follows | None] = []
    for rule, (_, text) in zip(some, done(chains, tasks), strict=True):
        chain, used = json.loads(text)
        found.append(Follows(rule, tuple(chain), frozenset(used)) if used else None)
    return found


Task = tuple[str, tuple[str, ...], int]
Done = Callable[[Callable[[Task], str], Mapping[str, Task]], Iterable[tuple[str, str]]]


def chains(what: Task) -> str:
    """Return as JSON how a rule follows from the other texts: a chain, and the rules of all chains;
    empty if it does not. Rules are sent as texts."""
    text, texts, seed = what
    (rule,) = parse_rules(text)
    found = follows(rule, _index(texts), seed)
    return json.dumps(([], []) if found is None else (found.chain, sorted(found.used)))


@lru_cache(maxsize=1)
def _index(texts: tuple[str, ...]) -> RuleIndex:
    return RuleIndex(r for text in texts for r in parse_rules(text))
