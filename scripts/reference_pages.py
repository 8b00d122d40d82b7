#!/usr/bin/env python3
"""Write the parts of docs/reference that follow from the code.

tests/repository/test_reference_pages.py checks that they are current.

    python -m scripts.reference_pages

schedule_language.md: the primitives, from their docstrings. *.schema.json: JSON Schema of reports
and certificates, from their dataclasses.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from scripts.json_rows import json_rows
from superopt.kernels.loops import compute_at, loop_annotations, loop_transforms, schedule, staging
from superopt.report.data.certificate import Certificate
from superopt.report.data.report import Report

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
PLACED = {
    "cache_read": staging.cache_read_copy,
    "compute_at": compute_at._compute_at,
    "inline": staging.inline_tensor,
}
BEGIN = "<!-- primitives: written by scripts/reference_pages.py -->"


def primitives() -> str:
    """Return a section for each primitive of the schedule language."""
    parts = []
    for name, kind in schedule.PRIMITIVES.items():
        modules = (loop_transforms, loop_annotations)
        found = next((getattr(m, name) for m in modules if hasattr(m, name)), PLACED.get(name))
        given = ", ".join(
            "*" + f.name if f.type == "tuple[str, ...]"
            else f.name if f.default is MISSING
            else f"{f.name}={f.default}"
            for f in fields(kind)
        )  # fmt: skip
        text = "\n".join(_markdown(inspect.getdoc(found) or ""))
        parts.append(f"### {name}({given})\n\n{text}\n")
    return "\n".join(parts)


def _markdown(text: str) -> Iterator[str]:
    """Yield a docstring's lines, with its diagrams as code blocks."""
    for n, block in enumerate(text.split("\n\n")):
        lines = block.splitlines()
        is_diagram = any("=>" in line for line in lines)
        yield from ([""] if n else [])
        plain = inspect.cleandoc("\n" + block).splitlines()
        yield from ["```text", *plain, "```"] if is_diagram else lines


def with_primitives(page: str) -> str:
    """Return the page of the schedule language with its sections written anew."""
    return page.partition(BEGIN)[0] + BEGIN + "\n\n" + primitives()


def json_schema(kind: type) -> str:
    """Return the JSON Schema of a dataclass as the strict codec reads it (report/data/codec.py)."""
    definitions: dict[str, Any] = {}
    top = _schema(kind, definitions)
    uri = "https://json-schema.org/draft/2020-12/schema"
    return json_rows({"$schema": uri, **top, "$defs": definitions}, depth=4)


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return {"anyOf": [_schema(a, definitions) for a in args]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is tuple and args[-1] is Ellipsis:
        return {"type": "array", "items": _schema(args[0], definitions)}
    if origin is tuple:
        items = [_schema(a, definitions) for a in args]
        return {"type": "array", "prefixItems": items, "minItems": len(args), "maxItems": len(args)}
    if is_dataclass(kind):
        name = getattr(kind, "__name__", "")
        if name not in definitions:
            definitions[name] = {}  # a type may contain itself
            hints = get_type_hints(kind)
            definitions[name] = {
                "description": inspect.getdoc(kind) or "",
                "type": "object",
                "properties": {n: _schema(t, definitions) for n, t in hints.items()},
                "required": list(hints),
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{name}"}
    if kind is float:  # JSON has neither infinities nor NaN
        return {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}
    return {"type": {str: "string", int: "integer", bool: "boolean", NoneType: "null"}[kind]}


def page_texts() -> dict[Path, str]:
    """Return the text of each file that follows from the code."""
    page = FOLDER / "schedule_language.md"
    return {
        page: with_primitives(page.read_text()),
        FOLDER / "report.schema.json": json_schema(Report),
        FOLDER / "certificate.schema.json": json_schema(Certificate),
    }


if __name__ == "__main__":
    for path, text in page_texts().items():
        path.write_text(text)
