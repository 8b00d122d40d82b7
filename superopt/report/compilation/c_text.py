"""Literals and comments in C."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import fill

from superopt.report.formatting import phrases


def c_literal(text: str) -> str:
    """Return a C string literal in UTF-8."""
    plain = set(range(32, 127)) - set(b'"\\?')  # trigraphs begin with ??
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode()) + '"'


def c_comment(text: str) -> str:
    """Return the text without comment delimiters."""
    return phrases.printable(text).replace("*/", "* /").replace("/*", "/ *")


def c_paragraph(text: str) -> str:
    """Return the text as lines of a comment."""
    margin = "   "
    text = c_comment(text)
    return fill(text, 100, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)


def initializer(items: Iterable[object], last: str) -> str:
    """Return an array initializer, closed by `last`: C has no empty arrays."""
    return f"{{{', '.join([*map(str, items), last])}}}"
