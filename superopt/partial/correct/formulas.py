"""Parse formulas of rules."""

from __future__ import annotations

from superopt.ir.syntax import expression
from superopt.ops import OPS
from superopt.rules.lang import syntax
from superopt.rules.lang.term import Formula


def parse_formula(text: str) -> Formula:
    """Parse a formula of sizes."""
    return syntax.parse_formula(expression(text), OPS)
