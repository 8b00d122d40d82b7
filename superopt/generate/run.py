"""A whole run: families enumerated, their equations made rules, what is left over pruned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TypeVar

from superopt.generate import generalise
from superopt.generate.biases import biased
from superopt.generate.build import covered
from superopt.generate.enumerated import enumerated, read
from superopt.generate.family import Family
from superopt.generate.find import Level
from superopt.generate.generalise import Claim, claims, most_general, title
from superopt.generate.journal import Journal
from superopt.generate.partial import Partial
from superopt.generate.pattern import Equation, show
from superopt.generate.prune import minimal
from superopt.generate.workers import Each, workers
from superopt.rules.index import Index
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
    """What became of a family's candidates: by level; equations, those left after pruning what
    follows from others, the claims made of these, how many a more general rule covered, those of
    which no reading survived, and those of which rules do nothing; the rules that are left, and
    those that others make superfluous; pairs that are equal in parts. Seconds of each part."""

    family: str
    levels: list[Level] = field(default_factory=list)
    doubtful: int = 0
    unsayable: int = 0
    equations: int = 0
    minimal: int = 0
    claims: int = 0
    covered: int = 0
    refuted: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    rules: int = 0
    derivable: list[str] = field(default_factory=list)
    partial: int = 0
    enumerating: float = 0.0
    pruning: float = 0.0
    generalising: float = 0.0

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
        tasks = {f"enumerated {f.name}": (f, top, wanted.seed) for f, top in wanted.families}
        texts = _remembered(journal, each, enumerated, tasks)
        for (family, _), (_, text) in zip(wanted.families, texts, strict=True):
            found = read(text)
            candidates = sum(v.candidates for v in found.levels)
            progress(f"{family.name}: {candidates:,} candidates, {found.equations} equations")
            account = Account(family.name, found.levels, found.doubtful, found.unsayable)
            account.equations, account.minimal = found.equations, len(found.minimal)
            account.pruning, account.enumerating = found.pruning, found.seconds - found.pruning
            account.partial = len(found.partial)
            pairs[family.name] = found.partial
            begin = time.monotonic()
            before = [r for rules in made.values() for r in rules]
            some = _rules(family, found.minimal, before, wanted, each, journal, account, progress)
            made[family.name] = [_renamed(r, taken) for r in some]
            account.generalising = time.monotonic() - begin
            accounts.append(account)
        begin = time.monotonic()
        every = [r for rules in made.values() for r in rules]
        progress(f"pruning {len(every)} rules")
        left, gone = minimal(every, partial(_remembered, journal, each), wanted.seed)
    kept = {r.name for r in left}
    for account in accounts:
        own = made[account.family]
        names = {r.name for r in own}
        account.derivable = [
            f"{f.rule.name}: {', '.join(f.chain)}" for f in gone if f.rule.name in names
        ]
        made[account.family] = [r for r in own if r.name in kept]
        account.rules = len(made[account.family])
    return Generated(made, pairs, accounts, time.monotonic() - begin)


def _rules(
    family: Family,
    equations: Sequence[Equation],
    before: Sequence[Rule],
    wanted: Wanted,
    each: Each,
    journal: Journal,
    account: Account,
    progress: Callable[[str], None],
) -> list[Rule]:
    """The rules of a family that those `before` do not cover. In waves: of the claims of one shape
    the first is made a rule, and the others are only where that does not cover them."""
    every = [c for e in equations for c in claims(e, family)] if family.rules else []
    if family.biases:
        every += [b for b in (biased(c, family) for c in every) if b is not None]
    account.claims = len(every)
    index = Index(before)
    left = [(n, c) for n, c in enumerate(every) if not covered(c, family, index)]
    account.covered = len(every) - len(left)
    made: dict[int, Rule] = {}
    while left:
        wave: dict[str, tuple[int, Claim]] = {}
        rest: list[tuple[int, Claim]] = []
        for n, c in left:
            if title(c, family) in wave:
                rest.append((n, c))
            else:
                wave[title(c, family)] = (n, c)
        tasks = {_key(c, family): (c, family, wanted.seed) for _, c in wave.values()}
        texts = dict(_remembered(journal, each, _attempt, tasks))
        for n, c in wave.values():
            match texts[_key(c, family)]:
                case generalise.REFUTED:
                    account.refuted.append(said(c, family))
                case generalise.IDLE:
                    account.idle.append(said(c, family))
                case text:
                    (made[n],) = parse_rules(text)
        fresh: dict[str, list[Rule]] = {}
        for n, c in wave.values():
            if n in made:
                fresh.setdefault(title(c, family), []).append(made[n])
        indices = {name: Index(rules) for name, rules in fresh.items()}
        left = [
            (n, c)
            for n, c in rest
            if (name := title(c, family)) not in indices or not covered(c, family, indices[name])
        ]
        account.covered += len(rest) - len(left)
        progress(f"{family.name}: {len(made)} rules, {len(left)} claims left")
    return [made[n] for n in sorted(made)]


def _attempt(what: tuple[Claim, Family, int]) -> str:
    """The text of a claim's most general rule; REFUTED or IDLE where there is none."""
    found = most_general(*what)
    return found if isinstance(found, str) else str(found)


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


def _key(c: Claim, family: Family) -> str:
    return f"{family.name}: {said(c, family)} of {c.shapes}"


def said(c: Claim, family: Family) -> str:
    """A claim to be read by people."""
    left = ", ".join(show(p, family) for p in c.left)
    axis = "" if c.axis is None else f" on axis {c.axis}"
    return f"({left}) => {show(c.right, family)}{axis}"


def _renamed(r: Rule, taken: dict[str, int]) -> Rule:
    """The rule under a name that no other has."""
    taken[r.name] = taken.get(r.name, 0) + 1
    if taken[r.name] == 1:
        return r
    (made,) = parse_rules(str(r).replace(r.name, f"{r.name}-{taken[r.name]}", 1))
    return made
