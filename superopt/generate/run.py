"""A whole run: families enumerated, their equations made rules, what is left over pruned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import islice

from superopt.generate.build import covered
from superopt.generate.families import FAMILIES
from superopt.generate.family import Family
from superopt.generate.find import Found, Level, find
from superopt.generate.generalise import Claim, claims, most_general, title
from superopt.generate.journal import Journal
from superopt.generate.partial import Partial, partial
from superopt.generate.pattern import Equation, carried, show
from superopt.generate.prune import minimal
from superopt.generate.workers import Each, workers
from superopt.ir import graph as g
from superopt.rules.build import Refusal, rewrite
from superopt.rules.context import context
from superopt.rules.index import Index
from superopt.rules.instances import Instance, cramped, instances, neighbours
from superopt.rules.match import matches
from superopt.rules.rule import Rule, parse_rules
from superopt.rules.trial import Cases, Passed, try_on


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
    which no reading survived, the rules that fell in a trial on other shapes; the rules that are
    left, and those that others make superfluous; pairs that are equal in parts. Seconds of each
    part."""

    family: str
    levels: list[Level] = field(default_factory=list)
    doubtful: int = 0
    unsayable: int = 0
    equations: int = 0
    minimal: int = 0
    claims: int = 0
    covered: int = 0
    refuted: list[str] = field(default_factory=list)
    unsound: list[str] = field(default_factory=list)
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


@dataclass(frozen=True, slots=True)
class Enumerated:
    """What a family's bank comes to, without the bank: see `Found`. partial: pairs that are equal
    in parts. Seconds: of all, and of the pruning."""

    levels: list[Level]
    doubtful: int
    unsayable: int
    equations: int
    minimal: list[Equation]
    partial: list[Partial]
    seconds: float
    pruning: float


def enumerated(what: tuple[Family, int, int]) -> Enumerated:
    """Enumerate a family up to a number of operators, from a seed."""
    family, top, seed = what
    begin = time.monotonic()
    found = find(family, top, seed, theory=known(family, top, seed), keep=family.partial)
    return Enumerated(
        found.levels,
        found.doubtful,
        found.unsayable,
        len(found.equations),
        found.minimal,
        partial(found) if family.partial else [],
        time.monotonic() - begin,
        found.pruning,
    )


def generate(
    wanted: Wanted, journal: Journal, progress: Callable[[str], None] = lambda text: None
) -> Generated:
    """Find the rules of every family. The result depends on `wanted` only, not on who does it."""
    made: dict[str, list[Rule]] = {}
    pairs: dict[str, list[Partial]] = {}
    accounts: list[Account] = []
    taken: dict[str, int] = {}
    with workers(wanted.jobs, wanted.ray) as each:
        tasks = [(family, top, wanted.seed) for family, top in wanted.families]
        for (family, _), found in zip(wanted.families, each(enumerated, tasks), strict=True):
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
        progress(f"trying {len(every)} rules on other shapes")
        sound = list(each(_sound, [(str(r), wanted.seed + 1) for r in every]))
        fallen = {r.name for r, ok in zip(every, sound, strict=True) if not ok}
        # only then, since from a false rule anything follows
        right = [r for r in every if r.name not in fallen]
        progress(f"pruning {len(right)} rules")
        left, gone = minimal(right, wanted.seed, each)
    kept = {r.name for r in left}
    for account in accounts:
        own = made[account.family]
        names = {r.name for r in own}
        account.derivable = [
            f"{f.rule.name}: {', '.join(f.chain)}" for f in gone if f.rule.name in names
        ]
        account.unsound = [str(r) for r in own if r.name in fallen]
        made[account.family] = [r for r in own if r.name in kept]
        account.rules = len(made[account.family])
    return Generated(made, pairs, accounts, time.monotonic() - begin)


@cache
def _theory(name: str, top: int, seed: int) -> Found:
    family = FAMILIES[name]()
    return find(family, min(family.top, top), seed)


def known(family: Family, top: int, seed: int) -> list[Equation]:
    """The equations of the family's theories of up to `top` operators, in its own terms."""
    theories = (_theory(name, top, seed) for name in family.theory)
    return [e for t in theories for e in carried(t.equations, t.bank.family, family)]


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
        texts = _tried([c for _, c in wave.values()], family, wanted, each, journal)
        for (n, c), text in zip(wave.values(), texts, strict=True):
            if text:
                (made[n],) = parse_rules(text)
            else:
                account.refuted.append(said(c, family))
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


def _tried(
    some: Sequence[Claim],
    family: Family,
    wanted: Wanted,
    each: Each,
    journal: Journal,
) -> Iterable[str]:
    """The text of each claim's most general rule, empty where there is none; what the journal
    knows is not tried again."""
    keys = [f"{family.name}: {said(c, family)}" for c in some]
    pending = [(k, c) for k, c in zip(keys, some, strict=True) if k not in journal.known]
    texts = each(_attempt, [(c, family, wanted.seed) for _, c in pending])
    for (k, _), text in zip(pending, texts, strict=True):
        journal.add(k, text)
    return [journal.known[k] for k in keys]


def _attempt(what: tuple[Claim, Family, int]) -> str:
    rule = most_general(*what)
    return "" if rule is None else str(rule)


SOUND = 20  # shape assignments, unlike those that a reading was chosen by
NEAR = 6  # neighbours of each


def _sound(what: tuple[str, int]) -> bool:
    """Does a rule hold on new shapes and their neighbours, and does it do anything? A Concat in a
    Concat is one already."""
    text, seed = what
    (rule,) = parse_rules(text)
    some = list(islice(instances(rule, seed), SOUND))
    near = [n for k, one in enumerate(some) for n in islice(neighbours(rule, one, seed + k), NEAR)]
    crowded = list(islice(cramped(rule, seed, 30 * SOUND), SOUND))
    tried = try_on(rule, Cases(SOUND, some, [*near, *crowded]), seed)
    return isinstance(tried, Passed) and any(_fires(rule, one) for one in some[:3])


def _fires(rule: Rule, one: Instance) -> bool:
    """Does the matcher find an instance's left side, and make its right side of it?"""
    ctx = context(g.Graph(one.inputs, one.lhs))
    wanted = list(zip(one.lhs, one.rhs, strict=True))
    changes = (rewrite(m, ctx) for m in matches(rule, ctx))
    return any(not isinstance(c, Refusal) and list(c.items()) == wanted for c in changes)


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
