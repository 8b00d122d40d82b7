"""Derive rules of a family until all its equalities follow from them.

Laws are processed in order, small ones first. A law that follows from the rules so far by a chain
of rewrites needs no rule; any other one becomes a rule, as general as possible. So the library is
complete up to the limits of chains, and small without pruning.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, groupby
from typing import Any

from superopt.generate.biases import biased
from superopt.generate.build import ONE, covered, derived, instance
from superopt.generate.choice import IDLE, REFUTED, mirrored, most_general
from superopt.generate.claims import Claim, claims, stated
from superopt.generate.complete import BOUNDS
from superopt.generate.enumerated import Enumerated
from superopt.generate.family import Family
from superopt.generate.find import general, weight
from superopt.generate.generalise import only_there, title
from superopt.generate.naming import renamed, said_of, text_of
from superopt.generate.pattern import Equation, show, size
from superopt.generate.sound import Held
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.match.derive import DeriveLimits
from superopt.rules.match.rule_index import RuleIndex
from superopt.rules.trial.counterexample import smallest_counterexample
from superopt.rules.trial.instances import Instance

CHUNK = 32  # laws of one task, approximately

# The statements of rules, independent of names: a checksum of each.
Chain = frozenset[int]

# Runs tasks by their keys, possibly in several processes, and caches their results.
Done = Callable[[Callable[[Any], str], Mapping[str, Any]], Iterable[tuple[str, str]]]


@dataclass(slots=True)
class Closed:
    """The rules of a family, and for each the missing proof, if it is only tested.

    refuted_readings: generalizations that do not hold, with counterexamples. law_count: equations,
    pairs, and candidates with a bias; derived_count: laws that follow from rules of other families.
    candidate_count: made from the rest; covered_count: those covered by one rule;
    without_rule_count: without a valid generalization; without_effect: those whose rules do
    nothing. size_specific: laws without a rule, as rules for their own sizes: no generalization
    held, and some are coincidences of few samples. derivations: of each law, by index, the rules
    from which it follows.
    """

    rules: list[Rule] = field(default_factory=list)
    lacks: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    stands: dict[int, Chain] = field(default_factory=dict)
    laws: int = 0
    followed: int = 0
    claims: int = 0
    covered: int = 0
    unread: int = 0
    idle: list[str] = field(default_factory=list)
    refuted: list[Rule] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Law:
    """A law that must follow from the rules. equation: the source of candidates; without one,
    `candidate` is the only candidate. both_directions: rules are wanted in both directions, not
    only those that do not grow. index: among a family's laws."""

    is_: Claim
    equation: Equation | None = None
    either: bool = True
    place: int = 0


def close(
    family: Family,
    found: Enumerated,
    before: Sequence[Rule],
    last: Closed,
    seed: int,
    done: Done,
    progress: Callable[[str], None],
) -> Closed:
    """Derive the rules that a family needs beside `earlier_rules`, in waves: of the laws of one
    shape the first becomes a rule, and the others only if they do not follow then.

    last_round: the result for this family in the last round; a law whose chain still exists still
        follows, and a size-specific law stays one.
    """
    there = {said_of(r) for r in before}
    made = Closed(
        refuted=list(last.refuted),
        stands={n: used for n, used in last.stands.items() if used <= there},
    )
    begin = time.monotonic()
    every = _laws(family, found)
    made.laws = made.followed = len(every)
    for rank, some in groupby(every, key=_rank):
        about = f"laws of {rank[0]} and {rank[2]} operators" if rank else "laws with a bias"
        queues: dict[str, list[Law]] = {}
        for law in some:
            if law.place not in made.stands:
                queues.setdefault(title(law.is_, family), []).append(law)
        while wave := _first(family, queues, before, made, done):
            made.followed -= len(wave)
            progress(f"{family.name}: {len(wave)} {about} that do not follow")
            _state(made, family, wave, before, seed, done)
        progress(f"{family.name}: {len(made.rules)} rules after {about}")
    made.seconds = time.monotonic() - begin
    return made


def _state(
    made: Closed,
    family: Family,
    wave: Sequence[Law],
    before: Sequence[Rule],
    seed: int,
    done: Done,
) -> None:
    """Make rules of laws, each independently."""
    index = RuleIndex([*before, *made.rules])
    names = {r.name for r in (*before, *made.rules)}
    tasks: dict[str, tuple[Sequence[Claim], Family, int]] = {}
    keys: list[list[str]] = []
    for law in wave:
        every = _claims(law, family, seed)
        fresh = [c for c in every if not covered(c, family, index)]
        made.claims += len(every)
        made.covered += len(every) - len(fresh)
        some = {_key(group, family): group for group in together(fresh)}
        keys.append([key for key in some if key not in tasks])
        tasks |= {key: (group, family, seed) for key, group in some.items()}
    texts = {key: json.loads(text) for key, text in done(attempt, tasks)}
    for law, own in zip(wave, keys, strict=True):
        found = 0
        results = (zip(tasks[key][0], texts[key], strict=True) for key in own)
        for c, (t, why, wrong) in chain.from_iterable(results):
            made.wrong += [wrong] if wrong else []
            if t == IDLE:
                made.idle.append(said(c, family))
            elif t == REFUTED:
                made.unread += 1
            else:
                found += 1
                made.rules.append(renamed(_rule(t), names))
                made.lacks.append(why)
        if not found:
            made.refuted += only_there(law.is_, family)


def _key(some: Sequence[Claim], family: Family) -> str:
    return f"{family.name}: " + "; ".join(f"{said(c, family)} of {c.shapes}" for c in some)


def together(some: Sequence[Claim]) -> list[list[Claim]]:
    """Group each candidate with its mirror image; others are alone."""
    groups: list[list[Claim]] = []
    turned: dict[tuple[object, ...], list[Claim]] = {}
    for c in some:
        group = turned.get((c.right, *c.left))
        if group is None:
            groups.append(group := [])
        group.append(c)
        if c.axis is None:
            turned[c.left[0], c.right] = group
    return groups


def _laws(family: Family, found: Enumerated) -> list[Law]:
    """Return the laws in order; those with a bias come last."""
    if not family.rules:
        return []
    plain = [
        Law(stated(e, family), e, either=max(size(e.left), size(e.right)) <= family.whole)
        for e in found.equations
    ]
    plain += [Law(stated(e, family), e, either=False) for e in found.pairs]
    plain.sort(key=lambda law: weight(law.equation) if law.equation else ())
    if family.biases:
        every = (biased(c, family) for e in found.equations for c in claims(e, family))
        plain += [Law(b) for b in every if b is not None]
    return [replace(law, place=n) for n, law in enumerate(plain)]


def _rank(law: Law) -> tuple[int, ...]:
    """Return the rank of a law; laws of one rank are processed together."""
    return () if law.equation is None else weight(law.equation)[:3]


def _claims(law: Law, family: Family, seed: int) -> list[Claim]:
    """Return the candidates whose rules would make a law follow."""
    if law.equation is None:
        return [law.is_]
    if law.either:
        return claims(law.equation, family)
    wide = general(law.equation, family, seed)
    every = claims(wide, family) if wide is not None else []
    shrink = [c for c in every if sum(map(size, c.left)) >= size(c.right)]
    return shrink or every


# --- tasks ----------------------------------------------------------------------------------------


def _first(
    family: Family,
    queues: dict[str, list[Law]],
    before: Sequence[Rule],
    made: Closed,
    done: Done,
) -> list[Law]:
    """Return of each queue the first law that neither follows from rules nor is an instance of a
    size-specific law.

    It leaves its queue with the laws before it, which follow; those behind it may follow from its
    rule.
    """
    rules = (*before, *made.rules)
    said_by = {r.name: said_of(r) for r in rules}
    texts = tuple(map(text_of, rules))
    odd = tuple(map(text_of, made.refuted))
    every = zlib.crc32("\n".join((*texts, "", *odd)).encode())
    wave: list[Law] = []
    open_ = [q for q in queues.values() if q]
    while open_:
        tasks: dict[str, Task] = {}
        for n, group in enumerate(_groups(open_)):
            some = tuple(tuple(law.is_ for law in q[:CHUNK]) for q in group)
            which = zlib.crc32("\n".join(said(c, family) for cs in some for c in cs).encode())
            tasks[f"followed {family.name} {every:08x} {which:08x} {n}"] = (
                family, some, texts, odd, BOUNDS,
            )  # fmt: skip
        found = chain.from_iterable(json.loads(text) for _, text in done(followed, tasks))
        left: list[list[Law]] = []
        for q, results in zip(open_, found, strict=True):
            for used in results:
                law = q.pop(0)
                if used is None:
                    wave.append(law)
                    break
                made.stands[law.place] = frozenset(said_by[name] for name in used)
            else:
                left += [q] if q else []
        open_ = left
    return sorted(wave, key=lambda law: law.place)


def _groups(queues: Sequence[list[Law]]) -> Iterator[list[list[Law]]]:
    """Yield groups of queues of about one task's size; few laws give two tasks."""
    most = min(CHUNK, sum(min(len(q), CHUNK) for q in queues) // 2)
    group: list[list[Law]] = []
    for q in queues:
        group.append(q)
        if sum(min(len(q), CHUNK) for q in group) >= most:
            yield group
            group = []
    if group:
        yield group


Task = tuple[Family, Sequence[Sequence[Claim]], tuple[str, ...], tuple[str, ...], DeriveLimits]


def followed(what: Task) -> str:
    """Return as JSON, for the candidates of each queue, the names of the rules from which each
    follows; an empty list for an instance of a size-specific law; null, and nothing more of this
    queue, if it follows from neither. Rules are sent as texts."""
    family, queues, texts, odd, bounds = what
    rules, others = _index(texts), _index(odd)
    instance = replace(ONE, forward_only=False)
    found: list[list[list[str] | None]] = []
    for some in queues:
        found.append(results := [])
        for c in some:
            used = derived(c, family, rules, bounds)
            if used is None and derived(c, family, others, instance) is not None:
                used = []
            results.append(used)
            if used is None:
                break
    return json.dumps(found)


@lru_cache(maxsize=4)
def _index(texts: tuple[str, ...]) -> RuleIndex:
    return RuleIndex([_rule(text) for text in texts])


@lru_cache(maxsize=1 << 12)
def _rule(text: str) -> Rule:
    (rule,) = parse_rules(text)
    return rule


def attempt(what: tuple[Sequence[Claim], Family, int]) -> str:
    """Return as JSON for each candidate the text of its most general rule, the missing proof, and
    the most general refuted generalization; REFUTED or IDLE without a rule. The mirror image of an
    earlier candidate gets that one's rule, if possible."""
    some, family, seed = what
    texts: list[tuple[str, str, str]] = []
    known: dict[tuple[object, ...], Held] = {}
    for c in some:
        back = known.get((c.right, *c.left))

        def as_instance(rule: Rule, c: Claim = c) -> Instance | None:
            return instance(c, family, rule)

        made = None if back is None else mirrored(back, title(c, family), seed)
        off: list[tuple[Rule, Instance]] = []

        def heard(rule: Rule, one: Instance, off: list[tuple[Rule, Instance]] = off) -> None:
            off.append((rule, one))

        if made is None or as_instance(made.rule) is None:
            found = most_general(c, family, seed, as_instance, heard)
        else:
            found = made
        wrong = refuted(*off[0], seed) if off else ""
        if isinstance(found, str):
            texts.append((found, "", wrong))
            continue
        if c.axis is None:
            known[c.left[0], c.right] = found
        texts.append((str(found.rule), "" if found.proved else found.why, wrong))
    return json.dumps(texts)


def refuted(rule: Rule, one: Instance, seed: int) -> str:
    """Return a refuted generalization with its minimized counterexample."""
    sides, _, _ = str(rule).partition(" ; ")
    found = smallest_counterexample(rule, seed, [one], attempts=0)
    lines = [f"not over a prime field: {one}"] if found is None else found.lines()
    return "\n    ".join([sides, *lines])


def said(c: Claim, family: Family) -> str:
    """Return a candidate as text."""
    left = ", ".join(show(p, family) for p in c.left)
    axis = "" if c.axis is None else f" on axis {c.axis}"
    return f"({left}) => {show(c.right, family)}{axis}"
