"""Decide whether a rule holds, in which float class, and whether it has an effect.

A short trial refutes most wrong rules; the others must be proved for all sizes. Without a verdict
of the prover, a long trial decides.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

from superopt.generate.widen import of_numbers
from superopt.ir import graph
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import App, Name, Number, Scalar, Spread, show, walk
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.matcher import matches
from superopt.rules.match.rewrite import Refusal, rewrite
from superopt.rules.trial.cases import Cases
from superopt.rules.trial.float_class import class_on_instances
from superopt.rules.trial.instances import (
    SPATIAL_OPS,
    Instance,
    cramped_instances,
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

PATIENCE = 60  # attempts at an instance in one style
RANK_OF_IMAGES = 4  # in the families: batch, channels, and two spatial axes
NUMBERS = 6  # integer instances, for a rule that is proved for integers


@dataclass(frozen=True, slots=True)
class Effort:
    """Shape assignments; extra ones with one draw each; neighbours of each of the first; cramped
    instances, and attempts at them."""

    count: int
    more: int
    near: int
    cramped: int
    tries: int


SHORT = Effort(5, 0, 1, 4, 40)
# Used without a verdict of the prover. Image rules have a fixed rank and slow convolutions; others
# may broadcast in many ways.
OF_IMAGES = Effort(20, 5, 3, 30, 400)
OTHERWISE = Effort(20, 10, 3, 50, 500)
# The seconds only stop what the work count does not see; a verdict must not depend on time.
LIMITS = Limits(seconds=60, work=15_000, work_beyond=25_000)


@dataclass(frozen=True, slots=True)
class Held:
    """A rule that holds in its float class. is_proved: for all sizes; else it passed a long trial,
    and `missing_proof` says what the prover lacks. is_rank_bounded: for low ranks only, as its
    conditions say."""

    rule: Rule
    proved: bool
    bounded: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Off:
    """A rule that does not hold; on this instance, if one is known."""

    instance: Instance | None = None


def settled(
    rule: Rule, classes: Sequence[str], seed: int, some: Iterable[Instance], least: int = 0
) -> Held | Off:
    """Return the rule in the first of these float classes in which it holds; UnsoundRule if in
    none.

    The prover decides: a rule that it proves only for low ranks is restricted to these. Without a
    verdict, a long trial decides. trial_instances: for the short trial before the proof. min_rank:
    a rank that the rule must cover.
    """
    rule = _of_images(rule)
    found = _tried(rule, classes, seed, SHORT, some)
    if isinstance(found, Off):
        return found
    found, verdict = proof(found, seed)
    if isinstance(verdict, Refuted):
        one = instance_of_names(
            rule, verdict.names, seed
        )  # the prover's sizes: both sides, on numbers
        seen = one is not None and isinstance(
            try_on_instances(found, Cases(0, (), [one]), seed), Differs
        )
        return Off(one if seen else None)
    if isinstance(verdict, Proved) and not verdict.is_complete and verdict.max_rank < least:
        return Off()
    if isinstance(verdict, Proved):
        within = proved_within(found, verdict)
        if within is not None:
            return Held(within, True, within is not found)
    images = _has(rule, SPATIAL_OPS)
    effort = OF_IMAGES if images else OTHERWISE
    left = [c for c in classes if c >= found.float_class]
    fresh = instances(rule, seed + 1, max_tries=PATIENCE)
    last = _tried(rule, left, seed + 1, effort, fresh)
    return last if isinstance(last, Off) else Held(last, False, why=lacking(verdict))


def lacking(verdict: Verdict) -> str:
    """Return why a verdict is not a proof. Numbers in names depend on earlier proofs and are
    renumbered: the text must not depend on the worker.
    """
    said = f"proved in part: {verdict.scope}" if isinstance(verdict, Proved) else str(verdict)
    known: dict[str, dict[str, str]] = {}

    def name(m: re.Match[str]) -> str:
        own = known.setdefault(m[1], {})
        return m[0] if m[0] in DTYPES else own.setdefault(m[0], f"{m[1]}{len(own)}")

    return re.sub(r"\b([A-Za-z_]+)\d+\b", name, said)


def proof(rule: Rule, seed: int) -> tuple[Rule, Verdict]:
    """Prove a rule; if it is a float law that also holds for integers, the extended rule."""
    wide = of_numbers(rule)
    if wide is not None:
        verdict = prove(wide, LIMITS)
        if isinstance(verdict, Proved) and try_rule(wide, seed, NUMBERS):
            return wide, verdict
    return rule, prove(rule, LIMITS)


def proved_within(rule: Rule, verdict: Proved) -> Rule | None:
    """Return the rule, if it is proved for all ranks; else restricted to the proved ranks. None if
    that cannot be expressed."""
    if verdict.is_complete:
        return rule
    bounded = _below(rule, verdict.max_rank)
    if bounded is None:
        return None
    again = prove(bounded, LIMITS, known_rank=verdict.max_rank)
    return bounded if isinstance(again, Proved) and again.is_complete else None


def _of_images(rule: Rule) -> Rule:
    """Restrict a rule with spatial axes counted from the end to two spatial axes: with more, axis
    -3 is another one."""
    if not _has(rule, IMAGES) or rank_scope(rule).max_rank <= RANK_OF_IMAGES:
        return rule
    return _below(rule, RANK_OF_IMAGES) or rule


def _has(rule: Rule, operators: Collection[str]) -> bool:
    """True if one of these operators is on the left."""
    return any(isinstance(t, App) and t.op.name in operators for s in rule.lhs for t in walk(s))


def _below(rule: Rule, most: int) -> Rule | None:
    """Return the rule for ranks up to `max_rank`; None if that cannot be expressed for its
    operands."""
    conditions = [
        f"rank({p.name}) <= {most}"
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
    conditions += [f"len({name}) <= {most}" for name in sorted(shapes)]
    if any(isinstance(t, (Number, Scalar)) for side in rule.lhs for t in walk(side)):
        conditions += [f"rank({show(side)}) <= {most}" for side in rule.lhs]
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


def _tried(
    rule: Rule, classes: Sequence[str], seed: int, effort: Effort, every: Iterable[Instance]
) -> Rule | Off:
    """Return the rule in the first of these classes in which it passes a trial: on some of all
    instances, on their neighbours and on cramped ones."""
    fresh = iter(every)
    some = Drawn(islice(fresh, effort.count))
    near = (
        n
        for k, one in enumerate(some)
        for n in islice(neighbor_instances(rule, one, seed + k), effort.near)
    )
    crowded = islice(cramped_instances(rule, seed, effort.tries), effort.cramped)
    rest = Drawn(chain(near, islice(fresh, effort.more), crowded))
    off = Off()
    for c in classes:
        tried = _as(rule, c)
        for cases in (Cases(effort.count, some, ()), Cases(0, (), rest)):
            found = try_on_instances(tried, cases, seed)
            if not found:
                off = Off(found.instance if isinstance(found, Differs) else None)
                break
        else:
            return _as(tried, max(c, class_on_instances(some, seed) or c))
    return off


@dataclass(slots=True)
class Drawn:
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


def verdict(rule: Rule, seed: int) -> Outcome:
    """Return the verdict of another trial: on twenty random assignments, six neighbours of each,
    and cramped ones, with a seed that no run may have used."""
    some = list(islice(instances(rule, seed), COUNT))
    near = (n for one in some for n in islice(neighbor_instances(rule, one, seed), 6))
    crowded = islice(cramped_instances(rule, seed, 60 * COUNT), COUNT)
    return try_on_instances(rule, Cases(COUNT, some, [*near, *crowded]), seed)


COUNT = 20


def again(what: tuple[str, int]) -> str:
    """Return what is wrong with a rule on shapes of a seed; empty if both sides agree."""
    text, seed = what
    (rule,) = parse_rules(text)
    found = verdict(rule, seed)
    return "" if found else str(found)


def _as(rule: Rule, float_class: str) -> Rule:
    """Return the rule with this float class."""
    text = str(rule).replace(f"; float={rule.float_class} ;", f"; float={float_class} ;")
    (made,) = parse_rules(text)
    return made


def fires(rule: Rule, one: Instance) -> bool:
    """True if the matcher finds an instance's left side and produces its right side. For example, a
    Concat in a Concat is flattened before."""
    return any(rhs == one.rhs for rhs in _rewritten(rule, one))


def wrong_on(rule: Rule, one: Instance, seed: int) -> bool:
    """True if a rule rewrites an instance's left side into something different. So does every rule
    that produces its right side, if that is known to be wrong."""
    for rhs in _rewritten(rule, one):
        other = Cases(0, (), [replace(one, rhs=rhs)])
        if rhs == one.rhs or isinstance(try_on_instances(rule, other, seed), Differs):
            return True
    return False


def _rewritten(rule: Rule, one: Instance) -> Iterator[tuple[graph.Value, ...]]:
    """Yield the rewrites of an instance's left side by a rule."""
    ctx = graph_context(graph.Graph(one.inputs, one.lhs))
    for m in matches(rule, ctx):
        c = rewrite(m, ctx)
        if not isinstance(c, Refusal) and tuple(c) == one.lhs:
            yield tuple(c.values())
