"""The logical lines of a rule text: without comments, with indented lines joined to the one
before."""

from __future__ import annotations

import re
from collections.abc import Iterator

# A string in a rule.
STRING_PATTERN = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_COMMENT = re.compile(f"({STRING_PATTERN})|#.*")


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield logical lines with the number of their first line."""
    start, parts_ = 0, list[str]()
    for number, raw in enumerate(text.split("\n"), 1):
        line = _COMMENT.sub(lambda m: m[1] or "", raw).rstrip()
        if not line.strip():
            if not raw.strip() and parts_:  # a blank line ends a rule, a comment does not
                yield start, " ".join(parts_)
                parts_ = []
            continue
        if line[0].isspace() and parts_:
            parts_.append(line.strip())
            continue
        if parts_:
            yield start, " ".join(parts_)
        start, parts_ = number, [line.strip()]
    if parts_:
        yield start, " ".join(parts_)
