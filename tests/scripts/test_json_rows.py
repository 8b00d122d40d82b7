"""Benchmarks' results as JSON with a line for each record."""

import json

from scripts.json_rows import json_rows

FOUND = {
    "machine": "any",
    "cases": {"a": {"us": {"ours": 1.5}, "ratios": [1, 2]}, "b": {}},
    "rows": [{"model": "m"}, {"model": "n"}],
    "none": [],
}
TEXT = """\
{
 "machine": "any",
 "cases": {
  "a": {"us": {"ours": 1.5}, "ratios": [1, 2]},
  "b": {}
 },
 "rows": [
  {"model": "m"},
  {"model": "n"}
 ],
 "none": []
}
"""


def test_a_line_is_a_record() -> None:
    assert json_rows(FOUND, 2) == TEXT
    for depth in range(5):
        assert json.loads(json_rows(FOUND, depth)) == FOUND
    assert json_rows(FOUND, 0).count("\n") == 1
