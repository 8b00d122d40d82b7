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
from superopt.generate.engine.journal import Journal, WrongJournal
from superopt.partial.correct.sized_pairs import size_names
from superopt.report.formatting.phrases import count_text
from superopt.rulegen.subprogram_mutants import is_term_json
from superopt.rules.lang.rule import Rule, parse_rules

# Prefixes of keys; other keys are rules.
WINDOW_KEY, MUTANT_KEY, HITS_KEY = (
    re.compile(r"[\[(]"),
    re.compile(r"\d+ \["),
    re.compile(r"hits of \d+ \("),
)
SIZE_NAME = re.compile(r"c\d*|o|n")  # of channels and the batch


def open_journal(path: Path, run_description: str) -> tuple[Journal, tuple[str, ...]]:
    """Return the journal at a path, and notes. A file that is damaged or not a journal is renamed,
    and a new one starts with the entries that can be read; if the path cannot be used, the journal
    is in memory."""
    try:
        try:
            journal = drop_unreadable_entries(Journal.open(path, run_description))
        except WrongJournal as e:
            return _restart_journal(path, run_description, Journal(), e.what)
        if journal.lost:
            lines = count_text(len(journal.lost), "line")
            return _restart_journal(
                path, run_description, journal, f"{path}: {lines} cannot be read"
            )
        return journal, ()
    except UsageError:  # in use, or not writable
        return Journal(), ()


def _restart_journal(
    path: Path, run_description: str, old_journal: Journal, reason: str
) -> tuple[Journal, tuple[str, ...]]:
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    try:
        path.rename(aside)
    except OSError as e:
        return Journal(known=dict(old_journal.known)), (
            f"{reason}; it cannot be renamed: {e.strerror}",
        )
    finally:
        old_journal.close()
    journal = Journal.open(path, run_description)
    for key, value in old_journal.known.items():
        journal.add(key, value)
    return journal, (f"{reason}; it was renamed to {aside.name}, and a new one was started",)


def drop_unreadable_entries(journal: Journal) -> Journal:
    """Drop entries of the journal that have an unknown form; they count as lost."""
    for key, value in list(journal.known.items()):
        if not _is_readable(key, value):
            del journal.known[key]
            journal.lost.append(0)
    return journal


@lru_cache(maxsize=4096)
def parse_single_rule(text: str) -> Rule:
    """Return the only rule of a text. Raises UsageError, or ValueError for several rules."""
    (rule,) = parse_rules(text)
    return rule


def _is_readable(key: str, value: str) -> bool:
    try:
        found = json.loads(value)
        if WINDOW_KEY.match(key):
            return isinstance(found, list) and all(map(_is_mutant_line, found))
        if HITS_KEY.match(key):
            return isinstance(found, list) and all(map(_is_hit, found))
        if MUTANT_KEY.match(key):
            return found is None or _is_mutant_line(found)
        return _is_proof(found)
    except (ValueError, RecursionError, UsageError):
        return False


def _is_hit(x: Any) -> bool:
    match x:
        case [term, int() | float()]:
            return is_term_json(term)
    return False


def _is_mutant_line(x: Any) -> bool:
    """True if it is the entry of a mutant."""
    if _is_rejection(x):
        return True
    match x:
        case {
            "pair": str(pair), "corrected": str(rule), "share": int() | float() as share,
            "equal": list(equal), "different": list(different),
        }:  # fmt: skip
            boxes = all(isinstance(b, str) for b in (*equal, *different))
            return (
                0 <= share <= 1
                and boxes
                and _has_only_channel_sizes(pair)
                and _has_only_channel_sizes(rule)
            )
    return False


def _is_proof(x: Any) -> bool:
    match x:
        case {"corrected": str(rule), "proof": str()}:
            return _has_only_channel_sizes(rule)
    return _is_rejection(x)


def _is_rejection(x: Any) -> bool:
    match x:
        case {"dropped": str()}:
            return True
    return False


def _has_only_channel_sizes(text: str) -> bool:
    """True if the rule's sizes are channels and the batch."""
    return all(map(SIZE_NAME.fullmatch, size_names(parse_single_rule(text))))
