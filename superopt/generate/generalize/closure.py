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

from superopt.generate.enumeration.find_equations import equation_weight, generalize_variables
from superopt.generate.enumeration.pattern import Equation, call_count, term_text
from superopt.generate.enumeration.serialize import Enumeration
from superopt.generate.families.family import Family
from superopt.generate.generalize.candidates import (
    RewriteCandidate,
    as_candidate,
    rewrite_candidates,
)
from superopt.generate.generalize.completeness import DERIVE_LIMITS
from superopt.generate.generalize.conv_bias import add_bias
from superopt.generate.generalize.generalizations import rule_title, rules_at_own_sizes
from superopt.generate.generalize.rule_names import (
    parse_rule,
    rename_rule,
    rule_text,
    statement_checksum,
)
from superopt.generate.generalize.select_rule import IDLE, REFUTED, mirror_rule, most_general_rule
from superopt.generate.generalize.soundness import SoundRule
from superopt.generate.generalize.term_graphs import (
    ONE_STEP,
    derive_candidate,
    is_covered,
    rule_instance,
)
from superopt.rules.lang.rule import Rule
from superopt.rules.match.derive import DeriveLimits
from superopt.rules.match.rule_index import RuleIndex
from superopt.rules.trial.counterexample import smallest_counterexample
from superopt.rules.trial.instances import Instance

MAX_TASK_LAWS = 32  # laws of one task, approximately

# The statements of rules, independent of names: a checksum of each.
RuleChecksums = frozenset[int]

# Runs tasks by their keys, possibly in several processes, and caches their results.
TaskRunner = Callable[[Callable[[Any], str], Mapping[str, Any]], Iterable[tuple[str, str]]]


@dataclass(slots=True)
class FamilyRules:
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
    missing_proofs: list[str] = field(default_factory=list)
    refuted_readings: list[str] = field(default_factory=list)
    derivations: dict[int, RuleChecksums] = field(default_factory=dict)
    law_count: int = 0
    derived_count: int = 0
    candidate_count: int = 0
    covered_count: int = 0
    without_rule_count: int = 0
    without_effect: list[str] = field(default_factory=list)
    size_specific: list[Rule] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Law:
    """A law that must follow from the rules. equation: the source of candidates; without one,
    `candidate` is the only candidate. both_directions: rules are wanted in both directions, not
    only those that do not grow. index: among a family's laws."""

    candidate: RewriteCandidate
    equation: Equation | None = None
    both_directions: bool = True
    index: int = 0


def derive_family_rules(
    family: Family,
    found: Enumeration,
    earlier_rules: Sequence[Rule],
    last_round: FamilyRules,
    seed: int,
    run_tasks: TaskRunner,
    progress: Callable[[str], None],
) -> FamilyRules:
    """Derive the rules that a family needs beside `earlier_rules`, in waves: of the laws of one
    shape the first becomes a rule, and the others only if they do not follow then.

    last_round: the result for this family in the last round; a law whose chain still exists still
        follows, and a size-specific law stays one.
    """
    there = {statement_checksum(r) for r in earlier_rules}
    made = FamilyRules(
        size_specific=list(last_round.size_specific),
        derivations={n: used for n, used in last_round.derivations.items() if used <= there},
    )
    begin = time.monotonic()
    every = _family_laws(family, found)
    made.law_count = made.derived_count = len(every)
    for rank, some in groupby(every, key=_law_rank):
        about = f"laws of {rank[0]} and {rank[2]} operators" if rank else "laws with a bias"
        queues: dict[str, list[Law]] = {}
        for law in some:
            if law.index not in made.derivations:
                queues.setdefault(rule_title(law.candidate, family), []).append(law)
        while wave := _underived_laws(family, queues, earlier_rules, made, run_tasks):
            made.derived_count -= len(wave)
            progress(f"{family.name}: {len(wave)} {about} that do not follow")
            _make_rules(made, family, wave, earlier_rules, seed, run_tasks)
        progress(f"{family.name}: {len(made.rules)} rules after {about}")
    made.seconds = time.monotonic() - begin
    return made


def _make_rules(
    made: FamilyRules,
    family: Family,
    wave: Sequence[Law],
    earlier_rules: Sequence[Rule],
    seed: int,
    run_tasks: TaskRunner,
) -> None:
    """Make rules of laws, each independently."""
    index = RuleIndex([*earlier_rules, *made.rules])
    names = {r.name for r in (*earlier_rules, *made.rules)}
    tasks: dict[str, tuple[Sequence[RewriteCandidate], Family, int]] = {}
    keys: list[list[str]] = []
    for law in wave:
        every = _law_candidates(law, family, seed)
        fresh = [c for c in every if not is_covered(c, family, index)]
        made.candidate_count += len(every)
        made.covered_count += len(every) - len(fresh)
        some = {_task_key(group, family): group for group in group_mirrored(fresh)}
        keys.append([key for key in some if key not in tasks])
        tasks |= {key: (group, family, seed) for key, group in some.items()}
    texts = {key: json.loads(text) for key, text in run_tasks(generalize_candidates, tasks)}
    for law, own in zip(wave, keys, strict=True):
        found = 0
        results = (zip(tasks[key][0], texts[key], strict=True) for key in own)
        for c, (t, why, wrong) in chain.from_iterable(results):
            made.refuted_readings += [wrong] if wrong else []
            if t == IDLE:
                made.without_effect.append(candidate_text(c, family))
            elif t == REFUTED:
                made.without_rule_count += 1
            else:
                found += 1
                made.rules.append(rename_rule(parse_rule(t), names))
                made.missing_proofs.append(why)
        if not found:
            made.size_specific += rules_at_own_sizes(law.candidate, family)


def _task_key(candidates: Sequence[RewriteCandidate], family: Family) -> str:
    return f"{family.name}: " + "; ".join(
        f"{candidate_text(c, family)} of {c.shapes}" for c in candidates
    )


def group_mirrored(candidates: Sequence[RewriteCandidate]) -> list[list[RewriteCandidate]]:
    """Group each candidate with its mirror image; others are alone."""
    groups: list[list[RewriteCandidate]] = []
    turned: dict[tuple[object, ...], list[RewriteCandidate]] = {}
    for c in candidates:
        group = turned.get((c.right, *c.left))
        if group is None:
            groups.append(group := [])
        group.append(c)
        if c.axis is None:
            turned[c.left[0], c.right] = group
    return groups


def _family_laws(family: Family, found: Enumeration) -> list[Law]:
    """Return the laws in order; those with a bias come last."""
    if not family.makes_rules:
        return []
    plain = [
        Law(
            as_candidate(e, family),
            e,
            both_directions=max(call_count(e.left), call_count(e.right)) <= family.complete_ops,
        )
        for e in found.equations
    ]
    plain += [Law(as_candidate(e, family), e, both_directions=False) for e in found.pairs]
    plain.sort(key=lambda law: equation_weight(law.equation) if law.equation else ())
    if family.adds_biases:
        every = (
            add_bias(c, family) for e in found.equations for c in rewrite_candidates(e, family)
        )
        plain += [Law(b) for b in every if b is not None]
    return [replace(law, index=n) for n, law in enumerate(plain)]


def _law_rank(law: Law) -> tuple[int, ...]:
    """Return the rank of a law; laws of one rank are processed together."""
    return () if law.equation is None else equation_weight(law.equation)[:3]


def _law_candidates(law: Law, family: Family, seed: int) -> list[RewriteCandidate]:
    """Return the candidates whose rules would make a law follow."""
    if law.equation is None:
        return [law.candidate]
    if law.both_directions:
        return rewrite_candidates(law.equation, family)
    wide = generalize_variables(law.equation, family, seed)
    every = rewrite_candidates(wide, family) if wide is not None else []
    shrink = [c for c in every if sum(map(call_count, c.left)) >= call_count(c.right)]
    return shrink or every


# --- tasks ----------------------------------------------------------------------------------------


def _underived_laws(
    family: Family,
    queues: dict[str, list[Law]],
    earlier_rules: Sequence[Rule],
    made: FamilyRules,
    run_tasks: TaskRunner,
) -> list[Law]:
    """Return of each queue the first law that neither follows from rules nor is an instance of a
    size-specific law.

    It leaves its queue with the laws before it, which follow; those behind it may follow from its
    rule.
    """
    rules = (*earlier_rules, *made.rules)
    said_by = {r.name: statement_checksum(r) for r in rules}
    texts = tuple(map(rule_text, rules))
    odd = tuple(map(rule_text, made.size_specific))
    every = zlib.crc32("\n".join((*texts, "", *odd)).encode())
    wave: list[Law] = []
    open_ = [q for q in queues.values() if q]
    while open_:
        tasks: dict[str, Task] = {}
        for n, group in enumerate(_task_groups(open_)):
            some = tuple(tuple(law.candidate for law in q[:MAX_TASK_LAWS]) for q in group)
            which = zlib.crc32(
                "\n".join(candidate_text(c, family) for cs in some for c in cs).encode()
            )
            tasks[f"followed {family.name} {every:08x} {which:08x} {n}"] = (
                family, some, texts, odd, DERIVE_LIMITS,
            )  # fmt: skip
        found = chain.from_iterable(json.loads(text) for _, text in run_tasks(derive_laws, tasks))
        left: list[list[Law]] = []
        for q, results in zip(open_, found, strict=True):
            for used in results:
                law = q.pop(0)
                if used is None:
                    wave.append(law)
                    break
                made.derivations[law.index] = frozenset(said_by[name] for name in used)
            else:
                left += [q] if q else []
        open_ = left
    return sorted(wave, key=lambda law: law.index)


def _task_groups(queues: Sequence[list[Law]]) -> Iterator[list[list[Law]]]:
    """Yield groups of queues of about one task's size; few laws give two tasks."""
    most = min(MAX_TASK_LAWS, sum(min(len(q), MAX_TASK_LAWS) for q in queues) // 2)
    group: list[list[Law]] = []
    for q in queues:
        group.append(q)
        if sum(min(len(q), MAX_TASK_LAWS) for q in group) >= most:
            yield group
            group = []
    if group:
        yield group


Task = tuple[
    Family, Sequence[Sequence[RewriteCandidate]], tuple[str, ...], tuple[str, ...], DeriveLimits
]


def derive_laws(task: Task) -> str:
    """Return as JSON, for the candidates of each queue, the names of the rules from which each
    follows; an empty list for an instance of a size-specific law; null, and nothing more of this
    queue, if it follows from neither. Rules are sent as texts."""
    family, queues, texts, odd, bounds = task
    rules, others = _index(texts), _index(odd)
    instance = replace(ONE_STEP, forward_only=False)
    found: list[list[list[str] | None]] = []
    for some in queues:
        found.append(results := [])
        for c in some:
            used = derive_candidate(c, family, rules, bounds)
            if used is None and derive_candidate(c, family, others, instance) is not None:
                used = []
            results.append(used)
            if used is None:
                break
    return json.dumps(found)


@lru_cache(maxsize=4)
def _index(texts: tuple[str, ...]) -> RuleIndex:
    return RuleIndex(map(parse_rule, texts))


def generalize_candidates(task: tuple[Sequence[RewriteCandidate], Family, int]) -> str:
    """Return as JSON for each candidate the text of its most general rule, the missing proof, and
    the most general refuted generalization; REFUTED or IDLE without a rule. The mirror image of an
    earlier candidate gets that one's rule, if possible."""
    some, family, seed = task
    texts: list[tuple[str, str, str]] = []
    known: dict[tuple[object, ...], SoundRule] = {}
    for c in some:
        back = known.get((c.right, *c.left))

        def as_instance(rule: Rule, c: RewriteCandidate = c) -> Instance | None:
            return rule_instance(c, family, rule)

        made = None if back is None else mirror_rule(back, rule_title(c, family), seed)
        off: list[tuple[Rule, Instance]] = []

        def heard(rule: Rule, one: Instance, off: list[tuple[Rule, Instance]] = off) -> None:
            off.append((rule, one))

        if made is None or as_instance(made.rule) is None:
            found = most_general_rule(c, family, seed, as_instance, heard)
        else:
            found = made
        wrong = counterexample_text(*off[0], seed) if off else ""
        if isinstance(found, str):
            texts.append((found, "", wrong))
            continue
        if c.axis is None:
            known[c.left[0], c.right] = found
        texts.append((str(found.rule), "" if found.is_proved else found.missing_proof, wrong))
    return json.dumps(texts)


def counterexample_text(rule: Rule, one: Instance, seed: int) -> str:
    """Return a refuted generalization with its minimized counterexample."""
    sides, _, _ = str(rule).partition(" ; ")
    found = smallest_counterexample(rule, seed, [one], attempts=0)
    lines = [f"not over a prime field: {one}"] if found is None else found.lines()
    return "\n    ".join([sides, *lines])


def candidate_text(c: RewriteCandidate, family: Family) -> str:
    """Return a candidate as text."""
    left = ", ".join(term_text(p, family) for p in c.left)
    axis = "" if c.axis is None else f" on axis {c.axis}"
    return f"({left}) => {term_text(c.right, family)}{axis}"
