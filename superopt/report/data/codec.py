"""Dataclasses to JSON and back. Decoding is strict: a damaged file is rejected, not misread.

Infinities and NaN, which JSON lacks, are written as the strings "inf", "-inf", "nan".
"""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from superopt.errors import UsageError
from superopt.report.data.report import REPORT_VERSION, Report

T = TypeVar("T")
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def to_json(report: Report) -> str:
    """Return the report as one JSON document, with its `version` first."""
    return dumps(report)


def from_json(text: str) -> Report:
    """Parse the report that `to_json` wrote.

    Raises UsageError for an invalid or damaged text, and for another version.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _not_a_report(f"it is not JSON: {error}") from error
    version = value.get("version") if isinstance(value, dict) else None
    if type(version) is not int:
        raise _not_a_report("it has no version number")
    if version != REPORT_VERSION:
        raise _not_a_report(f"it has version {version}, this superopt reads {REPORT_VERSION}")
    try:
        return decode(Report, value)
    except ValueError as error:
        raise _not_a_report(str(error)) from error


def _not_a_report(why: str) -> UsageError:
    return UsageError(
        "this is not a superopt report",
        why,
        "pass a file written by `superopt optimize --json`",
    )


def dumps(value: object) -> str:
    """Return a dataclass, or a list or dict of them, as JSON text that ends in a newline."""
    return json.dumps(encode(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def encode(value: object) -> Json:
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case list() | tuple():
            return [encode(item) for item in value]
        case Mapping():
            return {str(key): encode(item) for key, item in value.items()}
        case _ if is_dataclass(value):
            return {f.name: encode(getattr(value, f.name)) for f in fields(value)}
        case _:
            raise TypeError(f"{type(value).__name__} is not plain data")


def decode(kind: type[T], value: Json) -> T:
    """Return `value` as the dataclass `kind`; raises ValueError that names the path to the
    error."""
    result: T = _decode(kind, value, kind.__name__)
    return result


# The type is a value here, which `type[T]` cannot express for unions and tuples.
def _decode(kind: Any, value: Json, path: str) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in args:
            return None
        (inner,) = (arg for arg in args if arg is not NoneType)
        return _decode(inner, value, path)
    if origin is Literal:
        return _require(value in args, value, path, f"one of {', '.join(map(str, args))}", value)
    if origin is tuple:
        _require(isinstance(value, list), value, path, "a list", None)
        assert isinstance(value, list)
        if args[-1] is Ellipsis:
            return tuple(_decode(args[0], v, f"{path}[{i}]") for i, v in enumerate(value))
        _require(len(value) == len(args), value, path, f"a list of {len(args)}", None)
        pairs = zip(args, value, strict=True)
        return tuple(_decode(a, v, f"{path}[{i}]") for i, (a, v) in enumerate(pairs))
    if kind is float:
        if isinstance(value, str) and value in _NOT_FINITE:
            return _NOT_FINITE[value]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(_require(number, value, path, "a number", value))
    if kind in (str, int, bool):
        return _require(type(value) is kind, value, path, f"a value of {kind.__name__}", value)
    _require(isinstance(value, dict), value, path, "an object", None)
    assert isinstance(value, dict)
    hints = get_type_hints(kind)
    _require(set(value) == set(hints), sorted(value), path, f"the fields {sorted(hints)}", None)
    return kind(**{n: _decode(hint, value[n], f"{path}.{n}") for n, hint in hints.items()})


def _require(holds: bool, value: object, path: str, wanted: str, result: Any) -> Any:
    if not holds:
        raise ValueError(f"{path} must be {wanted}, not {str(value)[:80]!r}")
    return result
