"""A whole run: families enumerated, their equations made rules, what is left over pruned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import repeat
from multiprocessing import get_context

from superopt.generate.build import covered
from superopt.generate.families import FAMILIES
from superopt.generate.family import Family
from superopt.generate.find import Found, Level, find
from superopt.generate.generalise import Claim, claims, most_general, title
from superopt.generate.journal import Journal
from superopt.generate.pattern import Equation, carried, show
from superopt.generate.prune import minimal
from superopt.rules.rule import Rule, parse_rules


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be generated: families with the most operators of each."""

    families: tuple[tuple[Family, int], ...]
    seed: int = 0
    jobs: int = 1


@dataclass(slots=True)
class Account:
    """What became of a family's candidates: by level; equations, those left after pruning what
    follows from others, the claims made of these, how many a more general rule covered, those of
    which no reading survived; the rules, and those that the others make superfluous. Seconds of
    each part."""

    family: str
    levels: list[Level] = field(default_factory=list)
    doubtful: int = 0
    equations: int = 0
    minimal: int = 0
    claims: int = 0
    covered: int = 0
    refuted: list[str] = field(default_factory=list)
    rules: int = 0
    derivable: list[str] = field(default_factory=list)
    enumerating: float = 0.0
    pruning: float = 0.0
    generalising: float = 0.0

    def plain(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Generated:
    """The rules of each family, and the account."""

    rules: dict[str, list[Rule]]
    accounts: list[Account]


def generate(
    wanted: Wanted, journal: Journal, progress: Callable[[str], None] = lambda text: None
) -> Generated:
    """Find the rules of every family. The result depends on `wanted` without its jobs only."""
    rules: dict[str, list[Rule]] = {}
    accounts: list[Account] = []
    taken: dict[str, int] = {}
    with _pool(wanted.jobs) as each:
        for family, top in wanted.families:
            name = family.name
            begin = time.monotonic()
            theory = known(family, wanted.seed)
            found = find(family, top, wanted.seed, theory=theory, progress=progress)
            account = Account(name, found.levels, found.doubtful, len(found.equations))
            account.minimal, account.pruning = len(found.minimal), found.pruning
            account.enumerating = time.monotonic() - begin - found.pruning
            begin = time.monotonic()
            made = _rules(found, wanted, each, journal, account, progress)
            account.generalising = time.monotonic() - begin
            named = [_renamed(r, taken) for r in made]
            rules[name], gone = minimal(named, wanted.seed)
            account.derivable = [f"{f.rule.name}: {', '.join(f.chain)}" for f in gone]
            account.rules = len(rules[name])
            accounts.append(account)
    return Generated(rules, accounts)


@cache
def _theory(name: str, seed: int) -> Found:
    family = FAMILIES[name]()
    return find(family, family.top, seed)


def known(family: Family, seed: int) -> list[Equation]:
    """The equations of the family's theories, in its own terms."""
    theories = (_theory(name, seed) for name in family.theory)
    return [e for t in theories for e in carried(t.equations, t.bank.family, family)]


Attempts = Callable[[Sequence[Claim], Family, int], Iterator[str]]


@contextmanager
def _pool(jobs: int) -> Iterator[Attempts]:
    """What tries claims, and gives their rules' texts in order: here, or in several processes."""
    if jobs == 1:
        yield lambda some, family, seed: (_attempt(c, family, seed) for c in some)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:

        def attempts(some: Sequence[Claim], family: Family, seed: int) -> Iterator[str]:
            return pool.map(_attempt, some, repeat(family), repeat(seed))

        yield attempts


def _rules(
    found: Found,
    wanted: Wanted,
    each: Attempts,
    journal: Journal,
    account: Account,
    progress: Callable[[str], None],
) -> list[Rule]:
    """The rules of a family. In waves: of the claims of one shape the first is made a rule, and
    the others are only where that does not cover them."""
    family = found.bank.family
    every = [c for e in found.minimal for c in claims(e, family)]
    account.claims = len(every)
    known: dict[int, Rule] = {}
    left = list(enumerate(every))
    while left:
        wave: dict[str, tuple[int, Claim]] = {}
        rest: list[tuple[int, Claim]] = []
        for n, c in left:
            if title(c, family) in wave:
                rest.append((n, c))
            else:
                wave[title(c, family)] = (n, c)
        texts = _tried([c for _, c in wave.values()], family, wanted, each, journal)
        for (n, c), text in zip(wave.values(), texts, strict=True):
            if text:
                (known[n],) = parse_rules(text)
            else:
                account.refuted.append(_said(c, family))
        fresh: dict[str, list[Rule]] = {}
        for n, c in wave.values():
            if n in known:
                fresh.setdefault(title(c, family), []).append(known[n])
        left = [(n, c) for n, c in rest if not covered(c, family, fresh.get(title(c, family), ()))]
        account.covered += len(rest) - len(left)
        progress(f"{family.name}: {len(known)} rules, {len(left)} claims left")
    return [known[n] for n in sorted(known)]


def _tried(
    some: Sequence[Claim],
    family: Family,
    wanted: Wanted,
    each: Attempts,
    journal: Journal,
) -> Iterable[str]:
    """The text of each claim's most general rule, empty where there is none; what the journal
    knows is not tried again."""
    keys = [f"{family.name}: {_said(c, family)}" for c in some]
    pending = [(k, c) for k, c in zip(keys, some, strict=True) if k not in journal.known]
    texts = each([c for _, c in pending], family, wanted.seed)
    for (k, _), text in zip(pending, texts, strict=True):
        journal.add(k, text)
    return [journal.known[k] for k in keys]


def _attempt(c: Claim, family: Family, seed: int) -> str:
    rule = most_general(c, family, seed)
    return "" if rule is None else str(rule)


def _said(c: Claim, family: Family) -> str:
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
