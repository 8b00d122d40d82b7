"""The must-fail corpus."""

from __future__ import annotations

from superopt.rules.lang.rule import parse_rules
from tests.support.paths import ROOT

CORPUS = ROOT / "tests" / "rules" / "trial" / "unsound.rules"
WRONG = parse_rules(CORPUS.read_text(encoding="utf-8"), CORPUS.name)
