"""Does a rule hold, and in which float class? And does it do anything?

A short trial refutes most of what is wrong; what stands it must be proved for all sizes. Where the
prover has no verdict, a long trial decides.
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
RANK_OF_IMAGES = 4  # in the families: a batch, channels, and two axes
NUMBERS = 6  # instances in integers, for a rule that is proved for them


@dataclass(frozen=True, slots=True)
class Effort:
    """Shape assignments; more of them, for one draw each; neighbours of each of the first; cramped
    instances, and attempts at them."""

    count: int
    more: int
    near: int
    cramped: int
    tries: int


SHORT = Effort(5, 0, 1, 4, 40)
# Where the prover says nothing. An image has its rank, and is slowly convolved; what else there is
# may be broadcast in many ways.
OF_IMAGES = Effort(20, 5, 3, 30, 400)
OTHERWISE = Effort(20, 10, 3, 50, 500)
# The seconds only stop what the count of work does not see; a verdict is to hang on no clock.
LIMITS = Limits(seconds=60, work=15_000, work_beyond=25_000)


@dataclass(frozen=True, slots=True)
class Held:
    """A rule that holds in its float class. proved: for all sizes; else it was tried for long, and
    `why` says what the prover lacks. bounded: at low ranks only, which its conditions say."""

    rule: Rule
    proved: bool
    bounded: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Off:
    """A rule that does not hold; on this instance, where one was seen to differ."""

    instance: Instance | None = None


def settled(
    rule: Rule, classes: Sequence[str], seed: int, some: Iterable[Instance], least: int = 0
) -> Held | Off:
    """The rule in the first of these float classes in which it holds; Off where it holds in
    none. The prover has the last word: a rule that it has proved for low ranks only is one of low
    ranks. Where it says nothing, a long trial does. some: instances of it, for the short one before
    the proof. least: a rank for which it is wanted."""
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
    """Why a verdict is no proof. Numbers in names hang on what was proved before, and are counted
    anew: it is to be the same text whoever does the work."""
    said = f"proved in part: {verdict.scope}" if isinstance(verdict, Proved) else str(verdict)
    known: dict[str, dict[str, str]] = {}

    def name(m: re.Match[str]) -> str:
        own = known.setdefault(m[1], {})
        return m[0] if m[0] in DTYPES else own.setdefault(m[0], f"{m[1]}{len(own)}")

    return re.sub(r"\b([A-Za-z_]+)\d+\b", name, said)


def proof(rule: Rule, seed: int) -> tuple[Rule, Verdict]:
    """What the prover says of a rule; of one for all numbers, where it is one of floats of which
    the same is proved for these."""
    wide = of_numbers(rule)
    if wide is not None:
        verdict = prove(wide, LIMITS)
        if isinstance(verdict, Proved) and try_rule(wide, seed, NUMBERS):
            return wide, verdict
    return rule, prove(rule, LIMITS)


def proved_within(rule: Rule, verdict: Proved) -> Rule | None:
    """The rule, where it is proved for all ranks; else, for the ranks for which it is, and no
    other. None where that cannot be said of it."""
    if verdict.is_complete:
        return rule
    bounded = _below(rule, verdict.max_rank)
    if bounded is None:
        return None
    again = prove(bounded, LIMITS, known_rank=verdict.max_rank)
    return bounded if isinstance(again, Proved) and again.is_complete else None


def _of_images(rule: Rule) -> Rule:
    """A rule that names axes of images from the end is one of images of two axes: of more, axis -3
    is another one."""
    if not _has(rule, IMAGES) or rank_scope(rule).max_rank <= RANK_OF_IMAGES:
        return rule
    return _below(rule, RANK_OF_IMAGES) or rule


def _has(rule: Rule, operators: Collection[str]) -> bool:
    """Is one of these on the left?"""
    return any(isinstance(t, App) and t.op.name in operators for s in rule.lhs for t in walk(s))


def _below(rule: Rule, most: int) -> Rule | None:
    """The rule for ranks up to `most`; None where its operands cannot be said to have these."""
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
    """The rule in the first of these classes in which it stands a trial: on some of all instances,
    on their neighbours and on cramped ones."""
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
    """Instances that are drawn as they are asked for, for the first time."""

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
    """What another trial says: on twenty drawn assignments, six neighbours of each, and on cramped
    ones, all of a seed that may be of no run."""
    some = list(islice(instances(rule, seed), COUNT))
    near = (n for one in some for n in islice(neighbor_instances(rule, one, seed), 6))
    crowded = islice(cramped_instances(rule, seed, 60 * COUNT), COUNT)
    return try_on_instances(rule, Cases(COUNT, some, [*near, *crowded]), seed)


COUNT = 20


def again(what: tuple[str, int]) -> str:
    """What is wrong with a rule on shapes of a seed; empty where both sides agree."""
    text, seed = what
    (rule,) = parse_rules(text)
    found = verdict(rule, seed)
    return "" if found else str(found)


def _as(rule: Rule, float_class: str) -> Rule:
    """The rule as one of this class."""
    text = str(rule).replace(f"; float={rule.float_class} ;", f"; float={float_class} ;")
    (made,) = parse_rules(text)
    return made


def fires(rule: Rule, one: Instance) -> bool:
    """Does the matcher find an instance's left side, and make its right side of it? A Concat in a
    Concat is one already."""
    return any(rhs == one.rhs for rhs in _rewritten(rule, one))


def wrong_on(rule: Rule, one: Instance, seed: int) -> bool:
    """Does a rule make of an instance's left side what is not the same? So does every rule that
    makes the right side of it, where that was seen to be wrong."""
    for rhs in _rewritten(rule, one):
        other = Cases(0, (), [replace(one, rhs=rhs)])
        if rhs == one.rhs or isinstance(try_on_instances(rule, other, seed), Differs):
            return True
    return False


def _rewritten(rule: Rule, one: Instance) -> Iterator[tuple[graph.Value, ...]]:
    """What a rule makes of an instance's left side."""
    ctx = graph_context(graph.Graph(one.inputs, one.lhs))
    for m in matches(rule, ctx):
        c = rewrite(m, ctx)
        if not isinstance(c, Refusal) and tuple(c) == one.lhs:
            yield tuple(c.values())
