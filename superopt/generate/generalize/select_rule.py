"""Select the rule for a rewrite candidate: its most general generalization that is proved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice

from superopt.errors import UsageError
from superopt.generate.families.family import Family
from superopt.generate.generalize.candidates import RewriteCandidate
from superopt.generate.generalize.generalizations import (
    generalizations,
    literal_generalizations,
    possible_float_classes,
)
from superopt.generate.generalize.soundness import (
    PROOF_LIMITS,
    CachedInstances,
    SoundRule,
    UnsoundRule,
    can_apply,
    decide_rule,
    is_wrong_on,
    restrict_to_proved_ranks,
)
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import App, Fill, Number, Part, Scalar, Spread, walk
from superopt.rules.trial.cases import Cases
from superopt.rules.trial.instances import (
    Instance,
    instances,
    neighbor_instances,
    resized_instances,
)
from superopt.rules.trial.try_rule import Refuted, try_on_instances
from superopt.verifier.prove import prove
from superopt.verifier.verdict import Proved
from superopt.verifier.verdict import Refuted as Differs

MAX_GENERALIZATIONS = 80  # that are tried; a candidate with nested slices has a thousand
MAX_UNPROVED = 2  # valid and unproved generalizations after which the search stops
MAX_BOUNDED = 2  # generalizations proved only for low ranks after which the search stops
TRIES_BEFORE_CHECK = 6  # generalizations tried before checking whether any can hold
LEAST_GENERAL_KINDS = -1  # the least general kinds of operands: if these fail, all others do
NEIGHBOUR_INSTANCES = 10  # of the found instance, on which a generalization must hold first
MAX_LITERAL_TRIES = 12  # generalizations with literal attributes, one of which must hold
FIRST_INSTANCES = 3  # shape assignments on which it must hold before its trial
MAX_INSTANCE_ATTEMPTS = (
    60  # attempts at an instance; a generalization with so few valid ones is useless
)
NEVER_EMPTY_OPS = frozenset(["MatMul", "Concat", "Transpose"])

FLOAT_CLASSES = ("E0", "E1", "E2", "E3")
REFUTED = "refuted"
IDLE = "idle"


def most_general_rule(
    candidate: RewriteCandidate,
    family: Family,
    seed: int,
    instance: Callable[[Rule], Instance | None],
    on_refuted: Callable[[Rule, Instance], None] = lambda rule, one: None,
) -> SoundRule | str:
    """Return the first generalization of `candidate` that is proved for all ranks, in its lowest
    float class.

    If none is among the first few valid ones: the first that is proved for low ranks, or the first
    valid one. REFUTED if none holds; IDLE if both sides of the first one are the same graph.
    instance: returns the candidate as an instance of a rule, None for a rule that does not cover it
    (an axis counted from the end may be another one). on_refuted: called with each refuted
    generalization, the most general ones first, and its instance.
    """
    classes = possible_float_classes(candidate, family)
    rank = max(map(len, candidate.shapes), default=0)
    tried: list[SoundRule] = []
    bounded: list[SoundRule] = []
    wrong: set[int] = set()  # kinds of operands for which the candidate does not hold
    right: set[int] = set()
    seen: list[Instance] = []  # that refuted a generalization: most others fail there, too

    def refuse(kinds: int, rule: Rule | None, one: Instance | None) -> None:
        if rule is not None and one is not None:
            seen.insert(0, one)
            on_refuted(rule, one)
        if kinds not in right | wrong:
            (right if _may_hold(candidate, family, kinds, seed, instance) else wrong).add(kinds)

    for n, (kinds, text) in enumerate(
        islice(generalizations(candidate, family, wrong), MAX_GENERALIZATIONS)
    ):
        if n == TRIES_BEFORE_CHECK and not (tried or bounded):
            refuse(LEAST_GENERAL_KINDS, None, None)
            if LEAST_GENERAL_KINDS in wrong:
                break
        if kinds in wrong:
            continue  # another generalization with the same attributes on the left
        rule = _parse_generalization(text)
        if bounded and _is_single_rank(rule):
            continue  # which is weaker than all low ranks
        if any(is_wrong_on(rule, one, seed) for one in seen):
            continue
        found = _examine(rule, classes, seed, rank, instance(rule))
        if found is None:
            return next(iter((*bounded, *tried)), IDLE)
        if isinstance(found, UnsoundRule):
            refuse(kinds, rule, found.instance)
            continue
        if instance(found.rule) is None:
            continue  # of lower ranks than the candidate
        if found.is_proved and not found.is_rank_bounded:
            return found
        (bounded if found.is_proved else tried).append(found)
        if len(bounded) == MAX_BOUNDED or len(tried) == MAX_UNPROVED:
            break
    return next(iter((*bounded, *tried)), REFUTED)


def _examine(
    rule: Rule, classes: Sequence[str], seed: int, rank: int, near: Instance | None
) -> SoundRule | UnsoundRule | None:
    """Return the rule in its lowest float class if it holds; None if its sides are the same graph.
    Most wrong rules fail on neighbours of the instance that was found, the next on the first
    instances."""
    refuted = _refute_nearby(rule, near, seed)
    if refuted is not None:
        return refuted
    some = CachedInstances(instances(rule, seed, rounds=1, max_tries=MAX_INSTANCE_ATTEMPTS))
    first = list(islice(some, FIRST_INSTANCES))
    outcome = try_on_instances(rule, Cases(0, (), first), seed)
    if len(first) < FIRST_INSTANCES or not outcome:
        return UnsoundRule(outcome.instance if isinstance(outcome, Refuted) else None)
    if not any(can_apply(rule, one) for one in first):
        return None
    return decide_rule(rule, classes, seed, some, rank)


def _parse_generalization(text: str) -> Rule:
    """Parse a generalization as a rule."""
    (rule,) = parse_rules(f"{text} ; float=E3 ; origin=generated")
    return rule


def _is_single_rank(rule: Rule) -> bool:
    """True if all operands have a fixed rank."""
    given = [p for p in rule.params if isinstance(p, Param)]
    return all(
        p.shape is not None and not any(isinstance(f, Spread) for f in p.shape) for p in given
    )


def _refute_nearby(rule: Rule, one: Instance | None, seed: int) -> UnsoundRule | None:
    """Return a refutation of a rule by instances near a given one, or None. These are found at
    once, random instances only after many attempts."""
    if one is None:
        return UnsoundRule()
    some = chain(
        resized_instances(rule, one),
        islice(neighbor_instances(rule, one, seed), NEIGHBOUR_INSTANCES),
    )
    found = try_on_instances(rule, Cases(0, (), some), seed)
    return UnsoundRule(found.instance) if isinstance(found, Refuted) else None


def _may_hold(
    c: RewriteCandidate,
    family: Family,
    kinds: int,
    seed: int,
    instance: Callable[[Rule], Instance | None],
) -> bool:
    """True if a generalization with these kinds of operands may hold: then one with literal
    attributes does."""
    for rule in map(
        _parse_generalization, islice(literal_generalizations(c, family, kinds), MAX_LITERAL_TRIES)
    ):
        if _refute_nearby(rule, instance(rule), seed) is None:
            first = list(
                islice(
                    instances(rule, seed, rounds=1, max_tries=MAX_INSTANCE_ATTEMPTS),
                    FIRST_INSTANCES,
                )
            )
            if len(first) < FIRST_INSTANCES or not isinstance(
                try_on_instances(rule, Cases(0, (), first), seed), Refuted
            ):
                return True
    return False


def mirror_rule(sound_rule: SoundRule, name: str, seed: int) -> SoundRule | None:
    """Return the rule from right to left under another name, if its right side binds everything on
    its left, and it holds.

    A proof covers all bindings for which both sides are well-formed. But a constant of any shape on
    one side is a scalar on the other, and only on the left nothing is empty and no window sees only
    padding. If none of this can happen, the proof covers both directions; except that E3 for a
    quotient assumes the quotient exists, which only one side may need.
    """
    rule, text = sound_rule.rule, str(sound_rule.rule)
    params = text[text.index("(") : text.index("): ") + 3]
    sides, rest = text[text.index("): ") + 3 :].split(" ; ", 1)
    sides, _, where = sides.partition(" where ")
    left, right = sides.split(" => ")
    turned = f"{name}{params}{right} => {left}{where and f' where {where}'} ; {rest}"
    try:
        (found,) = parse_rules(turned)
    except UsageError:
        return None
    some = CachedInstances(instances(found, seed, rounds=2, max_tries=MAX_INSTANCE_ATTEMPTS))
    if not any(can_apply(found, one) for one in islice(some, FIRST_INSTANCES)):
        return None
    both = sound_rule.is_proved and rule.float_class != "E3"
    if both and all(_is_never_empty(t) for side in (*rule.lhs, *rule.rhs) for t in walk(side)):
        return SoundRule(found, True)
    if both:  # so it was tried
        results: dict[object, object] = {}
        verdict = prove(found, PROOF_LIMITS, results=results)
        within = (
            restrict_to_proved_ranks(found, verdict, results)
            if isinstance(verdict, Proved)
            else None
        )
        if within is not None:
            return SoundRule(within, True, within is not found)
        if isinstance(verdict, Differs):
            return None
    back = decide_rule(found, FLOAT_CLASSES[FLOAT_CLASSES.index(rule.float_class) :], seed, some)
    return back if isinstance(back, SoundRule) else None


def _is_never_empty(t: Part) -> bool:
    """True if it is not a constant, and never empty if its operands are not."""
    match t:
        case App(op):
            return "elementwise" in op.laws or op.name in NEVER_EMPTY_OPS
        case Number() | Scalar() | Fill():
            return False
        case _:
            return True
