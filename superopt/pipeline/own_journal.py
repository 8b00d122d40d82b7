"""The journal of a model's windows and their mutants in a file, and checks of its entries.

A file may be damaged, may not be a journal at all, or may contain entries of another form with a
valid checksum: none of these ends a run, and lost entries are computed again. Rules that are read
are proved before they are written or applied, and their float class is computed, whatever the file
says of them (once per machine: `model_mutants._cached_proof`); rejections, and the boxes where a
mutant is equal, are taken from the file.
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

# Prefixes of keys; other keys are rules.
WINDOW, MUTANT, HITS = re.compile(r"[\[(]"), re.compile(r"\d+ \["), re.compile(r"hits of \d+ \(")
NAME = re.compile(r"c\d*|o|n")  # of channels and the batch


def opened(path: Path, run: str) -> tuple[Journal, tuple[str, ...]]:
    """Return the journal at a path, and notes. A file that is damaged or not a journal is renamed,
    and a new one starts with the entries that can be read; if the path cannot be used, the journal
    is in memory."""
    try:
        try:
            journal = readable(Journal.open(path, run))
        except OtherRun as e:
            return _anew(path, run, Journal(), e.what)
        if journal.lost:
            lines = count(len(journal.lost), "line")
            return _anew(path, run, journal, f"{path}: {lines} cannot be read")
        return journal, ()
    except UsageError:  # in use, or not writable
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
    return journal, (f"{why}; it was renamed to {aside.name}, and a new one was started",)


def readable(journal: Journal) -> Journal:
    """Drop entries of the journal that have an unknown form; they count as lost."""
    for key, value in list(journal.known.items()):
        if not _fine(key, value):
            del journal.known[key]
            journal.lost.append(0)
    return journal


@lru_cache(maxsize=4096)
def rule_of(text: str) -> Rule:
    """Return the only rule of a text. Raises UsageError, or ValueError for several rules."""
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
    """True if it is the entry of a mutant."""
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
    """True if the rule's sizes are channels and the batch."""
    return all(map(NAME.fullmatch, size_names(rule_of(text))))
