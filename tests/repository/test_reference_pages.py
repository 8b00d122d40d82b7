"""The pages of docs/reference that follow from the code are current."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import superopt
from scripts.reference_pages import json_schema, page_texts, primitives
from superopt.kernels.loops.schedule import PRIMITIVES
from superopt.report.data.codec import to_json
from superopt.report.data.report import Report
from tests.support.optimization import models


@pytest.mark.parametrize("path", list(page_texts()), ids=lambda p: p.name)
def test_written_pages_are_current(path: Path) -> None:
    assert path.read_text() == page_texts()[path], "run `python -m scripts.reference_pages`"


def test_each_primitive_has_a_section_with_a_diagram() -> None:
    sections = primitives().split("### ")[1:]
    assert [s.partition("(")[0] for s in sections] == list(PRIMITIVES)
    assert [s.partition("(")[0] for s in sections if "```text" not in s] == []


def errors(schema: dict[str, Any], value: Any, top: dict[str, Any], path: str = "$") -> list[str]:
    """Return where a value violates the parts of JSON Schema that ours use."""
    if "$ref" in schema:
        schema = top["$defs"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        tried = [errors(s, value, top, path) for s in schema["anyOf"]]
        return [] if [] in tried else tried[0]
    if "enum" in schema:
        return [] if value in schema["enum"] else [path]
    kinds = {"string": str, "integer": int, "number": int | float, "boolean": bool, "array": list,
             "object": dict, "null": type(None)}  # fmt: skip
    if not isinstance(value, kinds[schema["type"]]):
        return [path]
    if isinstance(value, list):
        items = schema.get("prefixItems") or [schema["items"]] * len(value)
        if len(items) != len(value):
            return [path]
        pairs = zip(items, value, strict=True)
        return [e for n, (s, v) in enumerate(pairs) for e in errors(s, v, top, f"{path}[{n}]")]
    if isinstance(value, dict):
        if {*value} != {*schema["properties"]}:
            return [path]
        return [
            e
            for n, v in value.items()
            for e in errors(schema["properties"][n], v, top, f"{path}.{n}")
        ]
    return []


def test_a_report_fits_its_schema() -> None:
    model = models.model(models.PLAIN)
    report = superopt.optimize(model.SerializeToString(), budget=4).report
    schema = json.loads(json_schema(Report))
    value = json.loads(to_json(report))
    assert errors(schema, value, schema) == []
    assert report.search is not None
    value["speedup"] = [1.0, 2.0]
    value["nodes_before"] = "3"
    del value["machine"]
    assert errors(schema, value, schema) == ["$"]
    value["machine"] = "any"
    assert errors(schema, value, schema) == ["$.nodes_before", "$.speedup"]
