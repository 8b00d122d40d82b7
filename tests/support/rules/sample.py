"""A sample of rules of each kind, and golden texts of what each layer makes of them.

A golden text says what a change of one layer changes anywhere: `UPDATE_GOLDEN=1 pytest` writes it
anew, and the difference is to be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache
from itertools import islice, zip_longest
from pathlib import Path

from superopt.rules.lang.rule import Rule, parse_rules
from tests.support.paths import ROOT
from tests.support.verifier.mutants import mutants

FILE = Path(__file__).with_name("sample.rules")
GROUPS = ("elementwise", "logic", "reductions", "products", "images", "movement", "lookups")
FRESH_NAME = re.compile(r"\b([a-z])\d+\b")  # of a variable: its number counts what a proof made


@cache
def sample(group: str) -> tuple[Rule, ...]:
    """The rules of a group."""
    parts = re.split(r"^# --- (\w+)$", FILE.read_text("utf-8"), flags=re.MULTILINE)
    names, texts = parts[1::2], parts[2::2]
    assert tuple(names) == GROUPS
    return tuple(parse_rules(texts[names.index(group)], FILE.name))


def changed_sample(group: str) -> list[Rule]:
    """The rules of a group with one thing changed: most of them are wrong."""
    rules = enumerate(sample(group))
    return [m for n, r in rules for m in islice(mutants(r), n % 5, n % 5 + 1)]


def check_golden(layer: str, group: str, lines: Iterable[str]) -> None:
    """Compare lines with tests/golden/sample/LAYER/GROUP.txt."""
    path = ROOT / "tests" / "golden" / "sample" / layer / f"{group}.txt"
    made = [line for text in lines for line in text.splitlines()]
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(made) + "\n", encoding="utf-8")
    wanted = path.read_text(encoding="utf-8").splitlines()
    for number, (found, expected) in enumerate(zip_longest(made, wanted), 1):
        assert found == expected, f"{path.relative_to(ROOT)}:{number}"


def number_names(text: str) -> str:
    """A text with its fresh variables numbered in the order in which they occur."""
    numbers: dict[str, int] = {}
    return FRESH_NAME.sub(lambda m: f"{m[1]}{numbers.setdefault(m[0], len(numbers))}", text)
