"""JSON with a line for each record."""

from __future__ import annotations

import json
from typing import Any


def json_rows(value: Any, depth: int) -> str:
    """Return JSON with a line for each entry of objects and of lists of objects, nested up to
    `depth`; what is deeper is on the line of its entry."""
    return _rows(value, depth, "\n") + "\n"


def _rows(value: Any, depth: int, newline: str) -> str:
    is_table = isinstance(value, list) and any(isinstance(v, dict) for v in value)
    if not depth or not value or not (is_table or isinstance(value, dict)):
        return json.dumps(value)
    inner = newline + " "
    if is_table:
        rows = [_rows(v, depth - 1, inner) for v in value]
    else:
        rows = [f"{json.dumps(k)}: {_rows(v, depth - 1, inner)}" for k, v in value.items()]
    opening, closing = "[]" if is_table else "{}"
    return f"{opening}{inner}{f',{inner}'.join(rows)}{newline}{closing}"
