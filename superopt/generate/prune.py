"""Rules that follow from the other rules."""

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
NEAR = 3  # of these, and neighbours of each
# Forward, since a search could not go the other way; and by no graph that is larger than both
# sides: x - 0 is x + (0 - 0), but without its own rule whatever there is a zero in would need
# longer chains.
FORWARD = replace(BOUNDS, max_growth=0, forward_only=True)


@dataclass(frozen=True, slots=True)
class Follows:
    """A rule that went away, the rules of the chain that stands for it, and those of all chains:
    on other shapes there may be another one."""

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
    """The chain of rules of other names, and none of `without`, that does what `rule` does, on
    instances of unequal shapes; None where there is none within `bounds`."""
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
    """Drawn ones, and neighbours of the first of these: operands of all shapes that fit are hardly
    ever drawn unequal."""
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
    """The rules that do not follow from the rest, the last ones tried first; and those that do,
    with a chain of those that are left. done: does tasks by their keys, may be in several
    processes. needed: names of rules that stay, unless one other does at once what they do.
    apart: what rules say that do not follow from others, and what those say; it grows.

    What does not follow from all the others does not follow from fewer; and a chain stands as long
    as its rules do. One that went by a rule which went later may be too long without it, and comes
    back.
    """
    apart = {} if apart is None else apart
    left = {r.name: r for r in rules}
    gone: dict[str, Rule] = {}
    index = RuleIndex(rules)
    every = frozenset(map(said_of, rules))
    asked = [r for r in rules if not every - {said_of(r)} <= apart.get(said_of(r), frozenset())]
    for rule, known in reversed(list(zip(asked, _all(asked, rules, done, seed), strict=True))):
        if known is None:  # of all others
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
    """How each of some rules follows from the others."""
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
    """How a rule follows from those of the others that are not itself, as JSON: a chain, and the
    rules of all chains; none where it does not. Rules travel as texts."""
    text, texts, seed = what
    (rule,) = parse_rules(text)
    found = follows(rule, _index(texts), seed)
    return json.dumps(([], []) if found is None else (found.chain, sorted(found.used)))


@lru_cache(maxsize=1)
def _index(texts: tuple[str, ...]) -> RuleIndex:
    return RuleIndex(r for text in texts for r in parse_rules(text))
