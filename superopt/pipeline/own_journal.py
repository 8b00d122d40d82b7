"""What was found of windows and their mutants, kept in a file, and whether it can be read.

A file may be damaged, or be no journal at all, and what has the right sum may still be of another
form: neither ends a run, and what is lost so is found again. Rules that are read are proved before
they are written or applied, and their float class is computed, whatever the file says of them (once
on a machine: `own_mutants._known`); what it says to be dropped is, and where a mutant is right is
shown as it says.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from superopt.errors import UsageError
from superopt.generate.journal import Journal, OtherRun
from superopt.partial.correct.sized_pairs import size_names
from superopt.pipeline.program_mutants import is_term
from superopt.report.words import count
from superopt.rules.lang.rule import Rule, parse_rules

# How keys begin; others are rules.
WINDOW, MUTANT, HITS = re.compile(r"[\[(]"), re.compile(r"\d+ \["), re.compile(r"hits of \d+ \(")
NAME = re.compile(r"c\d*|o|n")  # of channels and pictures


def opened(path: Path, run: str) -> tuple[Journal, tuple[str, ...]]:
    """The journal at a place, and notes. One that is damaged, or none, is renamed and begun anew,
    with what of it can be read; where the place cannot be had, it is one in memory."""
    try:
        try:
            journal = readable(Journal.open(path, run))
        except OtherRun as e:
            return _anew(path, run, Journal(), e.what)
        if journal.lost:
            lines = count(len(journal.lost), "line")
            return _anew(path, run, journal, f"of {path} {lines} cannot be read")
        return journal, ()
    except UsageError:  # in use, or not to be written
        return Journal(), ()


def _anew(path: Path, run: str, old: Journal, why: str) -> tuple[Journal, tuple[str, ...]]:
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    try:
        path.rename(aside)
    except OSError as e:
        return Journal(known=dict(old.known)), (f"{why}; it cannot be renamed: {e.strerror}",)
    finally:
        old.close()
    journal = Journal.open(path, run)
    for key, value in old.known.items():
        journal.add(key, value)
    return journal, (f"{why}; it was renamed to {aside.name} and begun anew",)


def readable(journal: Journal) -> Journal:
    """The journal without results that are of no form of ours; they count as lost."""
    for key, value in list(journal.known.items()):
        if not _fine(key, value):
            del journal.known[key]
            journal.lost.append(0)
    return journal


@lru_cache(maxsize=4096)
def rule_of(text: str) -> Rule:
    """The one rule of a text. Raises UsageError, and ValueError for more."""
    (rule,) = parse_rules(text)
    return rule


def _fine(key: str, value: str) -> bool:
    try:
        found = json.loads(value)
        if WINDOW.match(key):
            return isinstance(found, list) and all(map(_line, found))
        if HITS.match(key):
            return isinstance(found, list) and all(map(_hit, found))
        if MUTANT.match(key):
            return found is None or _line(found)
        return _proof(found)
    except (ValueError, RecursionError, UsageError):
        return False


def _hit(x: Any) -> bool:
    match x:
        case [term, int() | float()]:
            return is_term(term)
    return False


def _line(x: Any) -> bool:
    """What is said of a mutant?"""
    if _dropped(x):
        return True
    match x:
        case {
            "pair": str(pair), "corrected": str(rule), "share": int() | float() as share,
            "equal": list(equal), "different": list(different),
        }:  # fmt: skip
            boxes = all(isinstance(b, str) for b in (*equal, *different))
            return 0 <= share <= 1 and boxes and _of_channels(pair) and _of_channels(rule)
    return False


def _proof(x: Any) -> bool:
    match x:
        case {"corrected": str(rule), "proof": str()}:
            return _of_channels(rule)
    return _dropped(x)


def _dropped(x: Any) -> bool:
    match x:
        case {"dropped": str()}:
            return True
    return False


def _of_channels(text: str) -> bool:
    """Of channels, and of a number of pictures."""
    return all(map(NAME.fullmatch, size_names(rule_of(text))))
