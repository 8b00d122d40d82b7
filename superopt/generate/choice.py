"""Which reading of a claim becomes a rule: the most general one that is proved."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice

from superopt.errors import UsageError
from superopt.generate.claims import Claim
from superopt.generate.family import Family
from superopt.generate.generalise import float_classes, plain_readings, readings
from superopt.generate.sound import (
    LIMITS,
    Drawn,
    Held,
    Off,
    fires,
    proved_within,
    settled,
    wrong_on,
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

READINGS = 80  # that are tried; a claim about slices of slices has a thousand
UNPROVED = 2  # readings that hold and are not proved, until no other one is tried
BOUNDED = 2  # readings that are proved at low ranks only, until no other one is tried
HOPEFUL = 6  # that are tried before it is asked whether any one can hold
LEAST = -1  # the least general kinds of operands: with others a reading says that, and more
NEIGHBOURS = 10  # of what was found, on which a reading must hold before all else
PLAIN = 12  # readings with attributes as they were found, of which one must hold
FIRST = 3  # shape assignments on which it must hold before its trial
PATIENCE = 60  # attempts at an instance; a reading of which so few make sense is none
FULL = frozenset(["MatMul", "Concat", "Transpose"])

CLASSES = ("E0", "E1", "E2", "E3")
REFUTED = "refuted"
IDLE = "idle"


def most_general(
    c: Claim,
    family: Family,
    seed: int,
    instance: Callable[[Rule], Instance | None],
    off: Callable[[Rule, Instance], None] = lambda rule, one: None,
) -> Held | str:
    """The first reading of `c` that is proved for all ranks, in its lowest float class; where none
    is among a few that hold, the first that is proved for low ones, or the first of these. REFUTED
    where none holds, IDLE where what the first one rewrites are the same graph. instance: `c` as an
    instance of a rule; None for a rule that does not say what `c` does (an axis that is counted
    from the end may be another one). off: is told of readings that do not hold, the most general
    ones first, and on what."""
    classes = float_classes(c, family)
    rank = max(map(len, c.shapes), default=0)
    tried: list[Held] = []
    bounded: list[Held] = []
    wrong: set[int] = set()  # kinds of operands for which the claim does not hold
    right: set[int] = set()
    seen: list[Instance] = []  # on which a reading was wrong: of others most are wrong there, too

    def refuse(kinds: int, rule: Rule | None, one: Instance | None) -> None:
        if rule is not None and one is not None:
            seen.insert(0, one)
            off(rule, one)
        if kinds not in right | wrong:
            (right if _possible(c, family, kinds, seed, instance) else wrong).add(kinds)

    for n, (kinds, text) in enumerate(islice(readings(c, family, wrong), READINGS)):
        if n == HOPEFUL and not (tried or bounded):
            refuse(LEAST, None, None)
            if LEAST in wrong:
                break
        if kinds in wrong:
            continue  # of one with the same attributes on the left
        rule = _rule(text)
        if bounded and _one_rank(rule):
            continue  # which is less than all low ones
        if any(wrong_on(rule, one, seed) for one in seen):
            continue
        near = _nearby(rule, instance(rule), seed)
        if near is not None:
            refuse(kinds, rule, near.instance)
            continue  # most are wrong at once
        some = Drawn(instances(rule, seed, rounds=1, max_tries=PATIENCE))
        first = list(islice(some, FIRST))
        outcome = try_on_instances(rule, Cases(0, (), first), seed)
        if len(first) < FIRST or not outcome:
            refuse(kinds, rule, outcome.instance if isinstance(outcome, Refuted) else None)
            continue
        if not any(fires(rule, one) for one in first):
            return next(iter((*bounded, *tried)), IDLE)
        found = settled(rule, classes, seed, some, rank)
        if isinstance(found, Off):
            refuse(kinds, rule, found.instance)
            continue
        if instance(found.rule) is None:
            continue  # of lower ranks than the claim
        if found.proved and not found.bounded:
            return found
        if found.proved:
            bounded.append(found)
            if len(bounded) == BOUNDED:
                break
            continue
        tried.append(found)
        if len(tried) == UNPROVED:
            break
    return next(iter((*bounded, *tried)), REFUTED)


def _rule(text: str) -> Rule:
    """A reading as a rule."""
    (rule,) = parse_rules(f"{text} ; float=E3 ; origin=generated")
    return rule


def _one_rank(rule: Rule) -> bool:
    """Are all operands of one rank?"""
    given = [p for p in rule.params if isinstance(p, Param)]
    return all(
        p.shape is not None and not any(isinstance(f, Spread) for f in p.shape) for p in given
    )


def _nearby(rule: Rule, one: Instance | None, seed: int) -> Off | None:
    """Does a rule hold on what is like an instance of it? That is found at once, instances in
    general only among many attempts."""
    if one is None:
        return Off()
    some = chain(
        resized_instances(rule, one), islice(neighbor_instances(rule, one, seed), NEIGHBOURS)
    )
    found = try_on_instances(rule, Cases(0, (), some), seed)
    return Off(found.instance) if isinstance(found, Refuted) else None


def _possible(
    c: Claim, family: Family, kinds: int, seed: int, instance: Callable[[Rule], Instance | None]
) -> bool:
    """May a reading with these kinds of operands hold? One with the attributes as they were found
    does then."""
    for rule in map(_rule, islice(plain_readings(c, family, kinds), PLAIN)):
        if _nearby(rule, instance(rule), seed) is None:
            first = list(islice(instances(rule, seed, rounds=1, max_tries=PATIENCE), FIRST))
            if len(first) < FIRST or not isinstance(
                try_on_instances(rule, Cases(0, (), first), seed), Refuted
            ):
                return True
    return False


def mirrored(held: Held, name: str, seed: int) -> Held | None:
    """The rule from right to left, under another name, if its right side binds all that is on its
    left, and it holds. A proof is about all for which both sides are well-formed; but a constant of
    any shape on one side is one of no axes on the other, and only on the left nothing is empty, and
    no window sees only padding. Where none of this can be, it is a proof of both directions; but
    what E3 says of a quotient holds where there is one, which only one side may need.
    """
    rule, text = held.rule, str(held.rule)
    params = text[text.index("(") : text.index("): ") + 3]
    sides, rest = text[text.index("): ") + 3 :].split(" ; ", 1)
    sides, _, where = sides.partition(" where ")
    left, right = sides.split(" => ")
    turned = f"{name}{params}{right} => {left}{where and f' where {where}'} ; {rest}"
    try:
        (found,) = parse_rules(turned)
    except UsageError:
        return None
    some = Drawn(instances(found, seed, rounds=2, max_tries=PATIENCE))
    if not any(fires(found, one) for one in islice(some, FIRST)):
        return None
    both = held.proved and rule.float_class != "E3"
    if both and all(_full(t) for side in (*rule.lhs, *rule.rhs) for t in walk(side)):
        return Held(found, True)
    if both:  # and so it was tried
        verdict = prove(found, LIMITS)
        within = proved_within(found, verdict) if isinstance(verdict, Proved) else None
        if within is not None:
            return Held(within, True, within is not found)
        if isinstance(verdict, Differs):
            return None
    back = settled(found, CLASSES[CLASSES.index(rule.float_class) :], seed, some)
    return back if isinstance(back, Held) else None


def _full(t: Part) -> bool:
    """Is it no constant, and never empty where its operands are not?"""
    match t:
        case App(op):
            return "elementwise" in op.laws or op.name in FULL
        case Number() | Scalar() | Fill():
            return False
        case _:
            return True
