"""Certificates of optimized models, and their JSON form.

A certificate lists the rule applications that rewrite one model into the other, so that a reader
with both models and the rules can apply them again and compare.

Values are numbered: v0, v1, ... are the original's inputs and then, node by node with operands
first, the constants that a node reads and its results. The results of an application are numbered
after these; a value keeps its number when a value that it depends on is replaced. `v7[1:3]` is the
operator of node v7 applied to its operands 1 and 2 only.
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from superopt.errors import UsageError
from superopt.report.data.codec import Json, decode, encode

CERTIFICATE_VERSION = 1  # the version of the stored form
MAX_CERTIFICATE_BYTES = 1 << 26  # bytes of the largest certificate that is read
CERTIFICATE_SUFFIX = ".superopt.json"


@dataclass(frozen=True, slots=True)
class StatedRule:
    """A rule that was applied: its text, its tier, and its float class."""

    name: str
    text: str
    tier: str
    float_class: str


@dataclass(frozen=True, slots=True)
class Application:
    """An application of a rule.

    at: the values that its left side matches. bound: each name of the rule, then its binding:
    operands with their types (`v3: f32[2, 4]`), sizes and attributes as text. constants: the
    constants of the numbers and fills of its left side, in the order of its text. where: the rule's
    conditions with these sizes and attributes.
    """

    rule: str
    at: tuple[str, ...]
    bound: tuple[tuple[str, ...], ...]
    constants: tuple[str, ...]
    where: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoldedTensor:
    """A value that was computed ahead of time and is a constant of the optimized model.

    sha256: of its bytes. how: `moved` if its elements were only moved and keep their bits,
    `rounded` if they were computed.
    """

    value: str
    type: str
    sha256: str
    how: Literal["moved", "rounded"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """How `optimized` was derived from `original`, both named by the SHA-256 of their files.

    library: SHA-256 of the rule library. rounds: applications that were applied at once, in terms
    of the values before them.
    """

    certificate: int
    original: str
    optimized: str
    library: str
    versions: tuple[tuple[str, str], ...]
    rules: tuple[StatedRule, ...]
    rounds: tuple[tuple[Application, ...], ...]
    folded: tuple[FoldedTensor, ...]


def certificate_path(model: Path) -> Path:
    """Return the path of a model's certificate: `fast.superopt.json` beside `fast.onnx`."""
    return model.parent / (model.name.removesuffix(".onnx") + CERTIFICATE_SUFFIX)


def certificate_json(c: Certificate) -> str:
    """Return the certificate as one JSON document: a line for each rule, application and folded
    tensor."""
    rows = []
    for f in fields(c):
        value = encode(getattr(c, f.name))
        if f.name == "rounds":
            assert isinstance(value, list)
            inner = ",\n".join(f"[{_json_lines(r)}]" for r in value)
            rows.append(f'"rounds": [{inner}]')
        elif isinstance(value, list):
            rows.append(f'"{f.name}": [{_json_lines(value)}]')
        else:
            rows.append(f'"{f.name}": {_json_line(value)}')
    return "{\n" + ",\n".join(rows) + "\n}\n"


def _json_lines(items: Json) -> str:
    assert isinstance(items, list)
    return ",\n".join(map(_json_line, items))


def _json_line(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_certificate(text: str, label: str = "the file") -> Certificate:
    """Parse the text that `certificate_json` wrote.

    Raises UsageError for an invalid text: truncated, with missing or unknown fields, or of another
    version.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique_fields)
    except (ValueError, RecursionError) as e:
        raise _not_a_certificate(label, f"it is not JSON: {e}") from None
    version = value.get("certificate") if isinstance(value, dict) else None
    if type(version) is not int:
        raise _not_a_certificate(label, "it has no field `certificate` with a version number")
    if version != CERTIFICATE_VERSION:
        raise _not_a_certificate(
            label, f"it has version {version}, this superopt reads {CERTIFICATE_VERSION}"
        )
    try:
        return decode(Certificate, value)
    except ValueError as e:
        raise _not_a_certificate(label, str(e)) from None


def _unique_fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object as a dict; ValueError for a repeated field."""
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError(f"a field occurs twice: {', '.join(k for k, _ in pairs)}")
    return out


def _not_a_certificate(label: str, why: str) -> UsageError:
    return UsageError(
        f"{label} is not a superopt certificate", why, "pass a file that `superopt optimize` wrote"
    )
