"""A generation run: enumerate families, derive rules from their equations, prune the rules."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TypeVar

from superopt.generate.engine.journal import Journal
from superopt.generate.engine.workers import TaskMap, worker_pool
from superopt.generate.enumeration.find_equations import LevelStats
from superopt.generate.enumeration.partial_equality import PartialEquality
from superopt.generate.enumeration.serialize import Enumeration, enumerate_family, read_enumeration
from superopt.generate.families.family import Family
from superopt.generate.generalize.closure import FamilyRules, derive_family_rules
from superopt.generate.generalize.prune import DerivedRule, prune_rules
from superopt.generate.generalize.rule_names import rename_rule, statement_checksum
from superopt.rules.lang.rule import Rule

LOG = logging.getLogger("superopt.generate")
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """The families with the most operators of each. jobs, ray: see
    `superopt.generate.engine.workers`."""

    families: tuple[tuple[Family, int], ...]
    seed: int = 0
    jobs: int = 1
    ray: str | None = None


@dataclass(slots=True)
class FamilyAccount:
    """The counts of a family: by level; equations and further pairs; the laws of these, how many
    follow from rules, the candidates from the rest, how many another rule covered, laws without a
    rule, and candidates whose rules have no effect; the remaining rules, those that are not proved,
    and those derivable from others; refuted generalizations, the most general one of each
    candidate; partially equal pairs; seconds of both parts."""

    family: str
    levels: list[LevelStats] = field(default_factory=list)
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

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class GeneratedRules:
    """The rules and the partially equal pairs of each family; missing proofs, by rule name; refuted
    generalizations of each family, with counterexamples; the counts, and the seconds of pruning."""

    rules: dict[str, list[Rule]]
    unproved: dict[str, str]
    refuted_readings: dict[str, list[str]]
    partial: dict[str, list[PartialEquality]]
    accounts: list[FamilyAccount]
    prune_seconds: float


MAX_ROUNDS = 5
# Families at once: while one waits, tasks of the others run. They do not see each other's rules.
CONCURRENT_FAMILIES = 3


def run_generation(
    request: GenerationRequest,
    journal: Journal,
    progress: Callable[[str], None] = lambda text: None,
) -> GeneratedRules:
    """Find the rules of every family. The result depends only on the request, not on the workers.

    In rounds: if pruning removed a rule, a law that needed it may need a longer chain than the
    limits allow; it becomes a rule in the next round.
    """
    made = _RunState()
    with worker_pool(request.jobs, request.ray) as each:
        done = _TaskRunner(journal, each, _TaskProgress(progress))
        tasks = {f"enumerated {f.name}": (f, top, request.seed) for f, top in request.families}
        every: list[tuple[Family, Enumeration]] = []
        for (family, _), (_, text) in zip(
            request.families, done(enumerate_family, tasks), strict=True
        ):
            every.append((family, read_enumeration(text)))
            made.accounts[family.name] = account = _make_account(*every[-1])
            candidates = sum(v.candidates for v in account.levels)
            rate = candidates / max(account.enumerating, 1e-9)
            text = (
                f"{family.name}: {candidates:,} candidates ({rate:,.0f} a second),"
                f" {account.equations} equations"
            )
            LOG.info(text)
            progress(text)
        for number in range(MAX_ROUNDS):
            before = made.rule_count
            made.next_round(every, request.seed, done, progress)
            if number and made.rule_count == before:
                break
            begin = time.monotonic()
            progress(f"pruning {len(made.all_rules())} rules")
            left, gone = prune_rules(
                made.all_rules(), done, request.seed, made.needed_names, made.underivable_from
            )
            made.prune(left, gone)
            LOG.info("round %d: %d rules, %d pruned", number + 1, len(left), len(gone))
            made.prune_seconds += time.monotonic() - begin
            if not gone:
                break
    return GeneratedRules(
        made.rules,
        made.unproved,
        {name: sorted(wrong) for name, wrong in made.refuted_readings.items()},
        {family.name: found.partial for family, found in every},
        made.final_accounts(),
        made.prune_seconds,
    )


@dataclass(slots=True)
class _RunState:
    """The state of a run.

    unproved: missing proofs, by rule name; refuted_readings: generalizations of each family;
    pruned_checksums: of removed rules; needed_names: of removed rules that had to come back;
    last_round: its result for each family; taken_names: of rules; underivable_from: see
    `prune_rules`; rule_count: of all rules ever made.
    """

    rules: dict[str, list[Rule]] = field(default_factory=dict)
    accounts: dict[str, FamilyAccount] = field(default_factory=dict)
    unproved: dict[str, str] = field(default_factory=dict)
    refuted_readings: dict[str, set[str]] = field(default_factory=dict)
    pruned_checksums: set[int] = field(default_factory=set)
    needed_names: set[str] = field(default_factory=set)
    last_round: dict[str, FamilyRules] = field(default_factory=dict)
    taken_names: set[str] = field(default_factory=set)
    underivable_from: dict[int, frozenset[int]] = field(default_factory=dict)
    rule_count: int = 0
    prune_seconds: float = 0.0

    def all_rules(self) -> list[Rule]:
        return [r for rules in self.rules.values() for r in rules]

    def next_round(
        self,
        enumerations: Sequence[tuple[Family, Enumeration]],
        seed: int,
        run_tasks: _TaskRunner,
        progress: Callable[[str], None],
    ) -> None:
        """Derive the rules that each family needs beside those of the last round, and of the
        families some places before it in this round, whoever finishes first."""
        together = min(CONCURRENT_FAMILIES, max(len(enumerations) // 2, 1))
        before = {name: list(rules) for name, rules in self.rules.items()}

        def call(n: int) -> Callable[[_TaskRunner], FamilyRules]:
            family, found = enumerations[n]
            for earlier, _ in enumerations[: max(n - together + 1, 0)]:
                before[earlier.name] = list(self.rules[earlier.name])
            known = [r for rules in before.values() for r in rules]
            last = self.last_round.get(family.name, FamilyRules())
            return partial(derive_family_rules, family, found, known, last, seed, progress=progress)

        def take(n: int, closed: FamilyRules) -> None:
            self.add_family(enumerations[n][0], closed)
            progress(
                f"{n + 1} of {len(enumerations)} families closed, {self.rule_count} rules made"
            )

        _run_in_order(len(enumerations), together, call, take, run_tasks)

    def add_family(self, family: Family, closed: FamilyRules) -> None:
        """Add the result of a round for a family."""
        account = self.accounts[family.name]
        first = family.name not in self.last_round
        self.last_round[family.name] = closed
        own = self.rules.setdefault(family.name, [])
        for r, why in zip(closed.rules, closed.missing_proofs, strict=True):
            named = rename_rule(r, self.taken_names)
            own.append(named)
            if why:
                self.unproved[named.name] = why
            if statement_checksum(named) in self.pruned_checksums:
                self.needed_names.add(named.name)
        self.refuted_readings.setdefault(family.name, set()).update(closed.refuted_readings)
        self.rule_count += len(closed.rules)
        LOG.info(
            "%s: %d laws, %d follow from rules, %d rules made, %d not proved", family.name,
            closed.law_count, closed.derived_count, len(closed.rules),
            sum(map(bool, closed.missing_proofs)),
        )  # fmt: skip
        if first:
            account.laws, account.followed = closed.law_count, closed.derived_count
        account.claims += closed.candidate_count
        account.covered += closed.covered_count
        account.unread += closed.without_rule_count
        account.refuted = [str(r) for r in closed.size_specific]
        account.idle += closed.without_effect
        account.closing += closed.seconds

    def prune(self, left: Sequence[Rule], gone: Sequence[DerivedRule]) -> None:
        """Keep only some rules."""
        kept = {r.name for r in left}
        chains = {f.rule.name: f"{f.rule.name}: {', '.join(f.chain)}" for f in gone}
        self.pruned_checksums |= {statement_checksum(f.rule) for f in gone}
        for name, rules in self.rules.items():
            self.accounts[name].derivable += [chains[r.name] for r in rules if r.name in chains]
            self.rules[name] = [r for r in rules if r.name in kept]

    def final_accounts(self) -> list[FamilyAccount]:
        for name, account in self.accounts.items():
            own = self.rules[name]
            account.rules = len(own)
            account.unproved = [str(r) for r in own if r.name in self.unproved]
            account.wrong = len(self.refuted_readings[name])
        return list(self.accounts.values())


def _make_account(family: Family, found: Enumeration) -> FamilyAccount:
    return FamilyAccount(
        family.name,
        found.levels,
        found.doubtful,
        found.unsayable,
        len(found.equations),
        len(found.pairs),
        partial=len(found.partial),
        enumerating=found.seconds,
    )


TASK_LABELS = {
    "enumerate_family": "families enumerated",
    "derive_laws": "shapes of laws derived",
    "generalize_candidates": "rules tried and proved",
    "derive_from_others": "rules derived from others",
}


@dataclass(slots=True)
class _TaskProgress:
    """Reports how many tasks are done, and how fast."""

    progress: Callable[[str], None]
    count: int = 0
    begin: float = field(default_factory=time.monotonic)

    def report(self, name: str, place: int, total: int) -> None:
        self.count += 1
        rate = self.count / max(time.monotonic() - self.begin, 1e-9)
        self.progress(
            f"{TASK_LABELS.get(name, name)}: {place} of {total}"
            f" ({self.count:,} tasks so far, {rate:.1f} a second)"
        )


@dataclass(frozen=True, slots=True)
class _TaskRunner:
    """Yields the result of each task by its key: from the journal, or computed and written there.

    lock: held by the one thread that does anything but wait. stopped: no more results are needed.
    """

    journal: Journal
    task_map: TaskMap
    task_progress: _TaskProgress
    lock: threading.Lock | None = None
    stopped: threading.Event = field(default_factory=threading.Event)

    def __call__(self, do: Callable[[T], str], tasks: Mapping[str, T]) -> Iterator[tuple[str, str]]:
        known = self.journal.known
        pending = dict.fromkeys(key for key in tasks if key not in known)
        places = {key: n for n, key in enumerate(pending, 1)}
        fresh = iter(self.task_map(do, [tasks[key] for key in pending]))
        for key in tasks:
            if self.stopped.is_set():
                raise CancelledError
            if key in pending:
                self.journal.add(key, self.next_result(fresh))
                self.task_progress.report(do.__name__, places[key], len(places))
            yield key, known[key]

    def next_result(self, fresh: Iterator[str]) -> str:
        """Return the next result; while another process computes it, other threads may run."""
        if self.lock is None or self.task_map is map:
            return next(fresh)
        self.lock.release()
        try:
            return next(fresh)
        finally:
            self.lock.acquire()
            if self.stopped.is_set():
                raise CancelledError


def _run_in_order(
    count: int,
    concurrency: int,
    start: Callable[[int], Callable[[_TaskRunner], R]],
    on_result: Callable[[int, R], None],
    run_tasks: _TaskRunner,
) -> None:
    """Process the results of calls in order; each call starts when all those `concurrency` places
    before it are processed.

    They mostly wait for tasks, in a thread each, and run one at a time: interning graphs is not
    thread-safe.
    """
    turns = replace(run_tasks, lock=threading.Lock())
    assert turns.lock is not None

    def in_turn(one: Callable[[_TaskRunner], R]) -> R:
        assert turns.lock is not None
        with turns.lock:
            return one(turns)

    futures: list[Future[R]] = []
    with ThreadPoolExecutor(concurrency) as pool:
        try:
            for n in range(count + concurrency):
                if n >= concurrency and n - concurrency < count:
                    result = futures[n - concurrency].result()
                    with turns.lock:
                        on_result(n - concurrency, result)
                if n < count:
                    with turns.lock:
                        one = start(n)
                    futures.append(pool.submit(in_turn, one))
        except BaseException:
            turns.stopped.set()
            raise
