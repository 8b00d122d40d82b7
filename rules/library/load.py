"""The rules that come with superopt.

Their files are text that anyone may edit. Recorded results (proof, float class) are looked up by
the rule's content (`stated.proof_key`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from superopt import guard
from superopt.errors import UsageError
from superopt.rules.lang.rule import FLOAT_CLASSES, LIBRARY, Rule, parse_rules
from superopt.rules.library.records import library_records, proof_key

LIBRARY_GLOBS = ("*.rules", "generated/*.rules", "partial/*.rules")
# Rules that `compile` always applies, which are not part of the library.
LOWERING_FILES = ("lowering/deconv.rules",)
# On a CPU, where results may round in another way.
CPU_LOWERING_FILES = ("lowering/depth.rules",)


@lru_cache
def parse_file(name: str) -> tuple[Rule, ...]:
    """Return the rules of one library file, such as `conv.rules`, with their declared float
    classes."""
    return tuple(parse_rules((LIBRARY / name).read_text(encoding="utf-8"), name))


@lru_cache
def load_file(name: str) -> tuple[Rule, ...]:
    """Return the rules of one library file, such as `conv.rules`."""
    return tuple(map(with_recorded_class, parse_file(name)))


@lru_cache
def load_rules(name: str, wanted: tuple[str, ...]) -> tuple[Rule, ...]:
    """The rules of these names of one file of the library; parsing all of it takes 0.1 s.

    Raises UsageError for a name that is not in the file."""
    text = (LIBRARY / name).read_text(encoding="utf-8")
    found = parse_rules(text, name, wanted=wanted)
    if missing := {*wanted} - {rule.name for rule in found}:
        raise UsageError(
            f"no rule {', '.join(sorted(missing))} in {name}", f"it has {len(found)} of the wanted",
            "correct the name",
        )  # fmt: skip
    return tuple(with_recorded_class(rule) for rule in found if rule.name in wanted)


@lru_cache(maxsize=1)
def load_library() -> tuple[Rule, ...]:
    """Return the rules that come with superopt: every `library/*.rules`, in order of file name,
    then the generated ones, `library/generated/*.rules`, and those from pairs,
    `partial/*.rules`."""
    out: list[Rule] = []
    seen: dict[str, str] = {}
    for name in library_files():
        guard.check_time("parsing the rule library")
        for rule in load_file(name):
            if rule.name in seen:
                raise UsageError(f"{rule.source}: {rule.name} is already at {seen[rule.name]}")
            seen[rule.name] = rule.source
            out.append(rule)
    return tuple(out)


def library_files() -> list[str]:
    """Return the library's rule files, in order."""
    return [
        path.relative_to(LIBRARY).as_posix()
        for part in LIBRARY_GLOBS
        for path in sorted(LIBRARY.glob(part))
    ]


def with_recorded_class(rule: Rule) -> Rule:
    """Return a library rule with its recorded float class, if its text declares a lower one: the
    rule is checked, used and reported with that class, and its caveat says so."""
    found = library_records().float_class.get(proof_key(rule), rule.float_class)
    found = found or FLOAT_CLASSES[-1]  # a rule without instances has no computed class
    if found <= rule.float_class:
        return rule
    said = f"its text says float={rule.float_class} and its operations are {found}"
    caveat = f"{rule.caveat}, {said}" if rule.caveat else said
    return replace(rule, float_class=found, caveat=caveat)
