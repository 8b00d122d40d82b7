"""A generation run: enumerate families, derive rules from their equations, prune the rules."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TypeVar

from superopt.generate.closing import Closed, close
from superopt.generate.enumerated import Enumerated, enumerated, read
from superopt.generate.family import Family
from superopt.generate.find import Level
from superopt.generate.journal import Journal
from superopt.generate.naming import renamed, said_of
from superopt.generate.partial import Partial
from superopt.generate.prune import Follows, minimal
from superopt.generate.workers import Each, workers
from superopt.rules.lang.rule import Rule

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The families with the most operators of each. jobs, ray: see
    `superopt.generate.engine.workers`."""

    families: tuple[tuple[Family, int], ...]
    seed: int = 0
    jobs: int = 1
    ray: str | None = None


@dataclass(slots=True)
class Account:
    """The counts of a family: by level; equations and further pairs; the laws of these, how many
    follow from rules, the candidates from the rest, how many another rule covered, laws without a
    rule, and candidates whose rules have no effect; the remaining rules, those that are not proved,
    and those derivable from others; refuted generalizations, the most general one of each
    candidate; partially equal pairs; seconds of both parts."""

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
    rules: int = 0
    unproved: list[str] = field(default_factory=list)
    derivable: list[str] = field(default_factory=list)
    wrong: int = 0
    partial: int = 0
    enumerating: float = 0.0
    closing: float = 0.0

    def plain(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Generated:
    """The rules and the partially equal pairs of each family; missing proofs, by rule name; refuted
    generalizations of each family, with counterexamples; the counts, and the seconds of pruning."""

    rules: dict[str, list[Rule]]
    unproved: dict[str, str]
    wrong: dict[str, list[str]]
    partial: dict[str, list[Partial]]
    accounts: list[Account]
    pruning: float


ROUNDS = 5
# Families at once: while one waits, tasks of the others run. They do not see each other's rules.
AT_ONCE = 3


def generate(
    wanted: Wanted, journal: Journal, progress: Callable[[str], None] = lambda text: None
) -> Generated:
    """Find the rules of every family. The result depends only on the request, not on the workers.

    In rounds: if pruning removed a rule, a law that needed it may need a longer chain than the
    limits allow; it becomes a rule in the next round.
    """
    made = _Made()
    with workers(wanted.jobs, wanted.ray) as each:
        done = _Done(journal, each, _Tasks(progress))
        tasks = {f"enumerated {f.name}": (f, top, wanted.seed) for f, top in wanted.families}
        every: list[tuple[Family, Enumerated]] = []
        for (family, _), (_, text) in zip(wanted.families, done(enumerated, tasks), strict=True):
            every.append((family, read(text)))
            made.accounts[family.name] = account = _account(*every[-1])
            candidates = sum(v.candidates for v in account.levels)
            rate = candidates / max(account.enumerating, 1e-9)
            progress(
                f"{family.name}: {candidates:,} candidates ({rate:,.0f} a second),"
                f" {account.equations} equations"
            )
        for number in range(ROUNDS):
            before = made.count
            made.next_round(every, wanted.seed, done, progress)
            if number and made.count == before:
                break
            begin = time.monotonic()
            progress(f"pruning {len(made.every())} rules")
            left, gone = minimal(made.every(), done, wanted.seed, made.needed, made.apart)
            made.prune(left, gone)
            made.pruning += time.monotonic() - begin
            if not gone:
                break
    return Generated(
        made.rules,
        made.unproved,
        {name: sorted(wrong) for name, wrong in made.wrong.items()},
        {family.name: found.partial for family, found in every},
        made.done(),
        made.pruning,
    )


@dataclass(slots=True)
class _Made:
    """The state of a run.

    unproved: missing proofs, by rule name; refuted_readings: generalizations of each family;
    pruned_checksums: of removed rules; needed_names: of removed rules that had to come back;
    last_round: its result for each family; taken_names: of rules; underivable_from: see
    `prune_rules`; rule_count: of all rules ever made.
    """

    rules: dict[str, list[Rule]] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    unproved: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, set[str]] = field(default_factory=dict)
    went: set[int] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)
    last: dict[str, Closed] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    apart: dict[int, frozenset[int]] = field(default_factory=dict)
    count: int = 0
    pruning: float = 0.0

    def every(self) -> list[Rule]:
        return [r for rules in self.rules.values() for r in rules]

    def next_round(
        self,
        every: Sequence[tuple[Family, Enumerated]],
        seed: int,
        done: _Done,
        progress: Callable[[str], None],
    ) -> None:
        """Derive the rules that each family needs beside those of the last round, and of the
        families some places before it in this round, whoever finishes first."""
        together = min(AT_ONCE, max(len(every) // 2, 1))
        before = {name: list(rules) for name, rules in self.rules.items()}

        def call(n: int) -> Callable[[_Done], Closed]:
            family, found = every[n]
            for earlier, _ in every[: max(n - together + 1, 0)]:
                before[earlier.name] = list(self.rules[earlier.name])
            known = [r for rules in before.values() for r in rules]
            last = self.last.get(family.name, Closed())
            return partial(close, family, found, known, last, seed, progress=progress)

        def take(n: int, closed: Closed) -> None:
            self.add(every[n][0], closed)
            progress(f"{n + 1} of {len(every)} families closed, {self.count} rules made")

        _one_after_another(len(every), together, call, take, done)

    def add(self, family: Family, closed: Closed) -> None:
        """Add the result of a round for a family."""
        account = self.accounts[family.name]
        first = family.name not in self.last
        self.last[family.name] = closed
        own = self.rules.setdefault(family.name, [])
        for r, why in zip(closed.rules, closed.lacks, strict=True):
            named = renamed(r, self.names)
            own.append(named)
            if why:
                self.unproved[named.name] = why
            if said_of(named) in self.went:
                self.needed.add(named.name)
        self.wrong.setdefault(family.name, set()).update(closed.wrong)
        self.count += len(closed.rules)
        if first:
            account.laws, account.followed = closed.laws, closed.followed
        account.claims += closed.claims
        account.covered += closed.covered
        account.unread += closed.unread
        account.refuted = [str(r) for r in closed.refuted]
        account.idle += closed.idle
        account.closing += closed.seconds

    def prune(self, left: Sequence[Rule], gone: Sequence[Follows]) -> None:
        """Keep only some rules."""
        kept = {r.name for r in left}
        chains = {f.rule.name: f"{f.rule.name}: {', '.join(f.chain)}" for f in gone}
        self.went |= {said_of(f.rule) for f in gone}
        for name, rules in self.rules.items():
            self.accounts[name].derivable += [chains[r.name] for r in rules if r.name in chains]
            self.rules[name] = [r for r in rules if r.name in kept]

    def done(self) -> list[Account]:
        for name, account in self.accounts.items():
            own = self.rules[name]
            account.rules = len(own)
            account.unproved = [str(r) for r in own if r.name in self.unproved]
            account.wrong = len(self.wrong[name])
        return list(self.accounts.values())


def _account(family: Family, found: Enumerated) -> Account:
    return Account(
        family.name,
        found.levels,
        found.doubtful,
        found.unsayable,
        len(found.equations),
        len(found.pairs),
        partial=len(found.partial),
        enumerating=found.seconds,
    )


DOING = {
    "enumerated": "families enumerated",
    "followed": "shapes of laws derived",
    "attempt": "rules tried and proved",
    "chains": "rules derived from others",
}


@dataclass(slots=True)
class _Tasks:
    """Reports how many tasks are done, and how fast."""

    progress: Callable[[str], None]
    count: int = 0
    begin: float = field(default_factory=time.monotonic)

    def tell(self, name: str, place: int, of: int) -> None:
        self.count += 1
        rate = self.count / max(time.monotonic() - self.begin, 1e-9)
        self.progress(
            f"{DOING.get(name, name)}: {place} of {of}"
            f" ({self.count:,} tasks so far, {rate:.1f} a second)"
        )


@dataclass(frozen=True, slots=True)
class _Done:
    """Yields the result of each task by its key: from the journal, or computed and written there.

    lock: held by the one thread that does anything but wait. stopped: no more results are needed.
    """

    journal: Journal
    each: Each
    tasks: _Tasks
    turn: threading.Lock | None = None
    stopped: threading.Event = field(default_factory=threading.Event)

    def __call__(self, do: Callable[[T], str], tasks: Mapping[str, T]) -> Iterator[tuple[str, str]]:
        known = self.journal.known
        pending = dict.fromkeys(key for key in tasks if key not in known)
        places = {key: n for n, key in enumerate(pending, 1)}
        fresh = iter(self.each(do, [tasks[key] for key in pending]))
        for key in tasks:
            if self.stopped.is_set():
                raise CancelledError
            if key in pending:
                self.journal.add(key, self.waited(fresh))
                self.tasks.tell(do.__name__, places[key], len(places))
            yield key, known[key]

    def waited(self, fresh: Iterator[str]) -> str:
        """Return the next result; while another process computes it, other threads may run."""
        if self.turn is None or self.each is map:
            return next(fresh)
        self.turn.release()
        try:
            return next(fresh)
        finally:
            self.turn.acquire()
            if self.stopped.is_set():
                raise CancelledError


def _one_after_another(
    count: int,
    together: int,
    call: Callable[[int], Callable[[_Done], R]],
    take: Callable[[int, R], None],
    done: _Done,
) -> None:
    """Process the results of calls in order; each call starts when all those `concurrency` places
    before it are processed.

    They mostly wait for tasks, in a thread each, and run one at a time: interning graphs is not
    thread-safe.
    """
    turns = replace(done, turn=threading.Lock())
    assert turns.turn is not None

    def in_turn(one: Callable[[_Done], R]) -> R:
        assert turns.turn is not None
        with turns.turn:
            return one(turns)

    futures: list[Future[R]] = []
    with ThreadPoolExecutor(together) as pool:
        try:
            for n in range(count + together):
                if n >= together and n - together < count:
                    result = futures[n - together].result()
                    with turns.turn:
                        take(n - together, result)
                if n < count:
                    with turns.turn:
                        one = call(n)
                    futures.append(pool.submit(in_turn, one))
        except BaseException:
            turns.stopped.set()
            raise
