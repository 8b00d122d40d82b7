"""A whole run: families enumerated, their equations made rules, what is left over pruned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TypeVar

from superopt.generate.closing import Closed, close
from superopt.generate.enumerated import Enumerated, enumerated, read
from superopt.generate.family import Family
from superopt.generate.find import Level
from superopt.generate.journal import Journal
from superopt.generate.partial import Partial
from superopt.generate.prune import minimal
from superopt.generate.sound import verdict
from superopt.generate.workers import Each, workers
from superopt.rules.rule import Rule, parse_rules

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be generated: families with the most operators of each. jobs, ray: see
    `superopt.generate.workers`."""

    families: tuple[tuple[Family, int], ...]
    seed: int = 0
    jobs: int = 1
    ray: str | None = None


@dataclass(slots=True)
class Account:
    """What became of a family's candidates: by level; equations, and pairs beside them; the laws
    that these are, how many of them follow from rules, the claims that were made of the rest, how
    many of these another rule covered, laws that are true at the family's sizes only, and claims of
    which rules do nothing; the rules that are left, and those that others make superfluous; pairs
    that are equal in parts. Seconds of both parts."""

    family: str
    levels: list[Level] = field(default_factory=list)
    doubtful: int = 0
    unsayable: int = 0
    equations: int = 0
    pairs: int = 0
    laws: int = 0
    followed: int = 0
    claims: int = 0
    covered: int = 0
    unread: int = 0
    refuted: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    fallen: list[str] = field(default_factory=list)
    rules: int = 0
    derivable: list[str] = field(default_factory=list)
    partial: int = 0
    enumerating: float = 0.0
    closing: float = 0.0

    def plain(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Generated:
    """The rules and the partially equal pairs of each family, the account, and how long it took to
    find the rules that others make superfluous."""

    rules: dict[str, list[Rule]]
    partial: dict[str, list[Partial]]
    accounts: list[Account]
    pruning: float


def generate(
    wanted: Wanted, journal: Journal, progress: Callable[[str], None] = lambda text: None
) -> Generated:
    """Find the rules of every family. The result depends on `wanted` only, not on who does it."""
    made: dict[str, list[Rule]] = {}
    pairs: dict[str, list[Partial]] = {}
    accounts: list[Account] = []
    taken: dict[str, int] = {}
    with workers(wanted.jobs, wanted.ray) as each:
        done = partial(_remembered, journal, each)
        tasks = {f"enumerated {f.name}": (f, top, wanted.seed) for f, top in wanted.families}
        for (family, _), (_, text) in zip(wanted.families, done(enumerated, tasks), strict=True):
            found = read(text)
            candidates = sum(v.candidates for v in found.levels)
            progress(f"{family.name}: {candidates:,} candidates, {len(found.equations)} equations")
            pairs[family.name] = found.partial
            before = [r for rules in made.values() for r in rules]
            begin = time.monotonic()
            closed = close(family, found, before, wanted.seed, done, progress)
            made[family.name] = [_renamed(r, taken) for r in closed.rules]
            accounts.append(_account(family, found, closed, time.monotonic() - begin))
        begin = time.monotonic()
        every = [r for rules in made.values() for r in rules]
        progress(f"trying {len(every)} rules once more")
        held, fallen = _held(every, wanted.seed, done)
        progress(f"pruning {len(held)} rules")
        left, gone = minimal(held, done, wanted.seed)
    kept = {r.name for r in left}
    for account in accounts:
        own = made[account.family]
        names = {r.name for r in own}
        account.derivable = [
            f"{f.rule.name}: {', '.join(f.chain)}" for f in gone if f.rule.name in names
        ]
        account.fallen = [said for name, said in fallen.items() if name in names]
        made[account.family] = [r for r in own if r.name in kept]
        account.rules = len(made[account.family])
    return Generated(made, pairs, accounts, time.monotonic() - begin)


AGAIN = (1000, 2000, 3000)  # what is added to the seed for further trials


def _held(
    rules: Sequence[Rule], seed: int, done: Callable[..., Iterator[tuple[str, str]]]
) -> tuple[list[Rule], dict[str, str]]:
    """The rules that stand further trials, of other seeds; and what these say of the others."""
    fallen: dict[str, str] = {}
    for more in AGAIN:
        tasks = {f"again {seed + more} {r}": (str(r), seed + more) for r in rules}
        said = [text for _, text in done(again, tasks)]
        fallen |= {r.name: f"{r}: {text}" for r, text in zip(rules, said, strict=True) if text}
        rules = [r for r in rules if r.name not in fallen]
    return list(rules), fallen


def again(what: tuple[str, int]) -> str:
    """What is wrong with a rule on shapes of a seed; empty where both sides agree."""
    text, seed = what
    (rule,) = parse_rules(text)
    found = verdict(rule, seed)
    return "" if found else str(found)


def _account(family: Family, found: Enumerated, closed: Closed, seconds: float) -> Account:
    return Account(
        family.name,
        found.levels,
        found.doubtful,
        found.unsayable,
        len(found.equations),
        len(found.pairs),
        closed.laws,
        closed.followed,
        closed.claims,
        closed.covered,
        closed.unread,
        [str(r) for r in closed.refuted],
        closed.idle,
        partial=len(found.partial),
        enumerating=found.seconds,
        closing=seconds,
    )


def _remembered(
    journal: Journal, each: Each, do: Callable[[T], str], tasks: Mapping[str, T]
) -> Iterator[tuple[str, str]]:
    """The result of each task by its key: the journal's, or found now and written there."""
    pending = [key for key in tasks if key not in journal.known]
    fresh = iter(each(do, [tasks[key] for key in pending]))
    for key in tasks:
        if key not in journal.known:
            journal.add(key, next(fresh))
        yield key, journal.known[key]


def _renamed(r: Rule, taken: dict[str, int]) -> Rule:
    """The rule under a name that no other has."""
    taken[r.name] = taken.get(r.name, 0) + 1
    if taken[r.name] == 1:
        return r
    (made,) = parse_rules(str(r).replace(r.name, f"{r.name}-{taken[r.name]}", 1))
    return made
