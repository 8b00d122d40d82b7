"""Decide whether a rule holds, in which float class, and whether it has an effect.

A short trial refutes most wrong rules; the others must be proved for all sizes. Without a verdict
of the prover, a long trial decides.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

from superopt.generate.generalize.extend_to_integers import extend_to_integers
from superopt.ir import graph
from superopt.rules.lang.printer import show
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import App, Name, Number, Scalar, Spread, walk
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.matcher import matches
from superopt.rules.match.rewrite import Refusal, rewrite
from superopt.rules.trial.cases import Cases
from superopt.rules.trial.cramped_instances import SPATIAL_OPS, cramped_instances
from superopt.rules.trial.float_class import class_on_instances
from superopt.rules.trial.instances import (
    Instance,
    instance_of_names,
    instances,
    neighbor_instances,
)
from superopt.rules.trial.try_rule import Refuted as Differs
from superopt.rules.trial.try_rule import Verdict as Outcome
from superopt.rules.trial.try_rule import try_on_instances, try_rule
from superopt.te.expr.dtype import DTYPES
from superopt.verifier.instances.scope import IMAGES, rank_scope
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved, Refuted, Verdict

MAX_INSTANCE_ATTEMPTS = 60  # attempts at an instance in one style
IMAGE_RANK = 4  # in the families: batch, channels, and two spatial axes
INTEGER_INSTANCES = 6  # integer instances, for a rule that is proved for integers


@dataclass(frozen=True, slots=True)
class TrialEffort:
    """Shape assignments; extra ones with one draw each; neighbours of each of the first; cramped
    instances, and attempts at them."""

    count: int
    extra: int
    neighbours: int
    cramped: int
    tries: int


SHORT_TRIAL = TrialEffort(5, 0, 1, 4, 40)
# Used without a verdict of the prover. Image rules have a fixed rank and slow convolutions; others
# may broadcast in many ways.
IMAGE_TRIAL = TrialEffort(20, 5, 3, 30, 400)
GENERAL_TRIAL = TrialEffort(20, 10, 3, 50, 500)
# The seconds only stop what the work count does not see; a verdict must not depend on time.
PROOF_LIMITS = Limits(seconds=60, work=15_000, work_beyond=25_000)


@dataclass(frozen=True, slots=True)
class SoundRule:
    """A rule that holds in its float class. is_proved: for all sizes; else it passed a long trial,
    and `missing_proof` says what the prover lacks. is_rank_bounded: for low ranks only, as its
    conditions say."""

    rule: Rule
    is_proved: bool
    is_rank_bounded: bool = False
    missing_proof: str = ""


@dataclass(frozen=True, slots=True)
class UnsoundRule:
    """A rule that does not hold; on this instance, if one is known."""

    instance: Instance | None = None


def decide_rule(
    rule: Rule,
    classes: Sequence[str],
    seed: int,
    trial_instances: Iterable[Instance],
    min_rank: int = 0,
) -> SoundRule | UnsoundRule:
    """Return the rule in the first of these float classes in which it holds; UnsoundRule if in
    none.

    The prover decides: a rule that it proves only for low ranks is restricted to these. Without a
    verdict, a long trial decides. trial_instances: for the short trial before the proof. min_rank:
    a rank that the rule must cover.
    """
    rule = _restrict_to_images(rule)
    found = _try_classes(rule, classes, seed, SHORT_TRIAL, trial_instances)
    if isinstance(found, UnsoundRule):
        return found
    results: dict[object, object] = {}
    found, verdict = prove_rule(found, seed, results)
    if isinstance(verdict, Refuted):
        one = instance_of_names(
            rule, verdict.names, seed
        )  # the prover's sizes: both sides, on numbers
        seen = one is not None and isinstance(
            try_on_instances(found, Cases(0, (), [one]), seed), Differs
        )
        return UnsoundRule(one if seen else None)
    if isinstance(verdict, Proved) and not verdict.is_complete and verdict.max_rank < min_rank:
        return UnsoundRule()
    if isinstance(verdict, Proved):
        within = restrict_to_proved_ranks(found, verdict, results)
        if within is not None:
            return SoundRule(within, True, within is not found)
    images = _has_operator(rule, SPATIAL_OPS)
    effort = IMAGE_TRIAL if images else GENERAL_TRIAL
    left = [c for c in classes if c >= found.float_class]
    fresh = instances(rule, seed + 1, max_tries=MAX_INSTANCE_ATTEMPTS)
    last = _try_classes(rule, left, seed + 1, effort, fresh)
    return (
        last
        if isinstance(last, UnsoundRule)
        else SoundRule(last, False, missing_proof=missing_proof_text(verdict))
    )


def missing_proof_text(verdict: Verdict) -> str:
    """Return why a verdict is not a proof. Numbers in names depend on earlier proofs and are
    renumbered: the text must not depend on the worker.
    """
    said = f"proved in part: {verdict.scope}" if isinstance(verdict, Proved) else str(verdict)
    known: dict[str, dict[str, str]] = {}

    def name(m: re.Match[str]) -> str:
        own = known.setdefault(m[1], {})
        return m[0] if m[0] in DTYPES else own.setdefault(m[0], f"{m[1]}{len(own)}")

    return re.sub(r"\b([A-Za-z_]+)\d+\b", name, said)


def prove_rule(
    rule: Rule, seed: int, results: dict[object, object] | None = None
) -> tuple[Rule, Verdict]:
    """Prove a rule; if it is a float law that also holds for integers, the extended rule. results:
    see `prove`."""
    results = {} if results is None else results
    wide = extend_to_integers(rule)
    if wide is not None:
        verdict = prove(wide, PROOF_LIMITS, results=results)
        if isinstance(verdict, Proved) and try_rule(wide, seed, INTEGER_INSTANCES):
            return wide, verdict
        if isinstance(verdict, Refuted) and _is_about_floats(verdict):
            return rule, verdict
    return rule, prove(rule, PROOF_LIMITS, results=results)


def _is_about_floats(verdict: Refuted) -> bool:
    """True if no operand of the counterexample is an integer: so it is one of the float rule."""
    inputs = [v for v in verdict.names.values() if isinstance(v, graph.Input)]
    return all(i.type.dtype is not None and i.type.dtype.is_float for i in inputs)


def restrict_to_proved_ranks(
    rule: Rule, verdict: Proved, results: dict[object, object]
) -> Rule | None:
    """Return the rule, if it is proved for all ranks; else restricted to the proved ranks. None if
    that cannot be expressed. results: of the proof, see `prove`."""
    if verdict.is_complete:
        return rule
    bounded = _bound_ranks(rule, verdict.max_rank)
    if bounded is None:
        return None
    again = prove(bounded, PROOF_LIMITS, known_rank=verdict.max_rank, results=results)
    return bounded if isinstance(again, Proved) and again.is_complete else None


def _restrict_to_images(rule: Rule) -> Rule:
    """Restrict a rule with spatial axes counted from the end to two spatial axes: with more, axis
    -3 is another one."""
    if not _has_operator(rule, IMAGES) or rank_scope(rule).max_rank <= IMAGE_RANK:
        return rule
    return _bound_ranks(rule, IMAGE_RANK) or rule


def _has_operator(rule: Rule, operators: Collection[str]) -> bool:
    """True if one of these operators is on the left."""
    return any(isinstance(t, App) and t.op.name in operators for s in rule.lhs for t in walk(s))


def _bound_ranks(rule: Rule, max_rank: int) -> Rule | None:
    """Return the rule for ranks up to `max_rank`; None if that cannot be expressed for its
    operands."""
    conditions = [
        f"rank({p.name}) <= {max_rank}"
        for p in rule.params
        if isinstance(p, Param)
        and not p.is_run
        and (p.shape is None or any(isinstance(f, Spread) for f in p.shape))
    ]
    shapes = {
        f.id
        for side in rule.lhs
        for t in walk(side)
        if isinstance(t, App)
        for key, f in t.attrs
        if key == "shape" and isinstance(f, Name)
    }
    conditions += [f"len({name}) <= {max_rank}" for name in sorted(shapes)]
    if any(isinstance(t, (Number, Scalar)) for side in rule.lhs for t in walk(side)):
        conditions += [f"rank({show(side)}) <= {max_rank}" for side in rule.lhs]
    if not conditions:
        return None
    known = set(map(show, rule.where))
    conditions = [c for c in conditions if c not in known]
    if not conditions:
        return rule
    head, _, rest = str(rule).partition(" ; ")
    sides, _, where = head.partition(" where ")
    said = ", ".join([*([where] if where else []), *conditions])
    (bounded,) = parse_rules(f"{sides} where {said} ; {rest}")
    return bounded


def _try_classes(
    rule: Rule,
    classes: Sequence[str],
    seed: int,
    effort: TrialEffort,
    all_instances: Iterable[Instance],
) -> Rule | UnsoundRule:
    """Return the rule in the first of these classes in which it passes a trial: on some of all
    instances, on their neighbours and on cramped ones."""
    fresh = iter(all_instances)
    some = CachedInstances(islice(fresh, effort.count))
    near = (
        n
        for k, one in enumerate(some)
        for n in islice(neighbor_instances(rule, one, seed + k), effort.neighbours)
    )
    crowded = islice(cramped_instances(rule, seed, effort.tries), effort.cramped)
    rest = CachedInstances(chain(near, islice(fresh, effort.extra), crowded))
    off = UnsoundRule()
    for c in classes:
        tried = _with_float_class(rule, c)
        for cases in (Cases(effort.count, some, ()), Cases(0, (), rest)):
            found = try_on_instances(tried, cases, seed)
            if not found:
                off = UnsoundRule(found.instance if isinstance(found, Differs) else None)
                break
        else:
            return _with_float_class(tried, max(c, class_on_instances(some, seed) or c))
    return off


@dataclass(slots=True)
class CachedInstances:
    """Instances that are drawn on first use, and cached."""

    fresh: Iterator[Instance]
    known: list[Instance] = field(default_factory=list)

    def __iter__(self) -> Iterator[Instance]:
        n = 0
        while n < len(self.known) or (one := next(self.fresh, None)) is not None:
            if n == len(self.known):
                assert one is not None
                self.known.append(one)
            yield self.known[n]
            n += 1


def retry_rule(rule: Rule, seed: int) -> Outcome:
    """Return the verdict of another trial: on twenty random assignments, six neighbours of each,
    and cramped ones, with a seed that no run may have used."""
    some = list(islice(instances(rule, seed), RETRIAL_INSTANCES))
    near = (n for one in some for n in islice(neighbor_instances(rule, one, seed), 6))
    crowded = islice(cramped_instances(rule, seed, 60 * RETRIAL_INSTANCES), RETRIAL_INSTANCES)
    return try_on_instances(rule, Cases(RETRIAL_INSTANCES, some, [*near, *crowded]), seed)


RETRIAL_INSTANCES = 20


def retrial_failure(task: tuple[str, int]) -> str:
    """Return what is wrong with a rule on shapes of a seed; empty if both sides agree."""
    text, seed = task
    (rule,) = parse_rules(text)
    found = retry_rule(rule, seed)
    return "" if found else str(found)


def _with_float_class(rule: Rule, float_class: str) -> Rule:
    """Return the rule with this float class."""
    text = str(rule).replace(f"; float={rule.float_class} ;", f"; float={float_class} ;")
    (made,) = parse_rules(text)
    return made


def can_apply(rule: Rule, one: Instance) -> bool:
    """True if the matcher finds an instance's left side and produces its right side. For example, a
    Concat in a Concat is flattened before."""
    return any(rhs == one.rhs for rhs in _rewrites(rule, one))


def is_wrong_on(rule: Rule, one: Instance, seed: int) -> bool:
    """True if a rule rewrites an instance's left side into something different. So does every rule
    that produces its right side, if that is known to be wrong."""
    for rhs in _rewrites(rule, one):
        other = Cases(0, (), [replace(one, rhs=rhs)])
        if rhs == one.rhs or isinstance(try_on_instances(rule, other, seed), Differs):
            return True
    return False


def _rewrites(rule: Rule, one: Instance) -> Iterator[tuple[graph.Value, ...]]:
    """Yield the rewrites of an instance's left side by a rule."""
    ctx = graph_context(graph.Graph(one.inputs, one.lhs))
    for m in matches(rule, ctx):
        c = rewrite(m, ctx)
        if not isinstance(c, Refusal) and tuple(c) == one.lhs:
            yield tuple(c.values())
