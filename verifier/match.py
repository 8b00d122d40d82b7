"""Pairs of terms that cancel though they are not written alike (see `certificate.py`)."""

from __future__ import annotations

from superopt.verifier.facts import Facts
from superopt.verifier.normal import NF


def cancelled(d: NF, facts: Facts) -> NF:
    """`d` without pairs of terms that are opposite."""
    return d
