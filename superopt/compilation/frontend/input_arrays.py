"""Conversion and checks of the arrays that are passed to a compiled model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from types import CodeType
from typing import Any

import numpy as np

from superopt.compilation.frontend.dlpack import copy_bfloat16
from superopt.errors import UsageError
from superopt.loading.given_sizes import SizeNames, as_size_mapping

Sizes = tuple[tuple[str, int], ...]  # values of the symbolic sizes, sorted by name
Shapes = tuple[tuple[int, ...], ...]  # of all inputs, in order
_MISSING = object()


@dataclass(frozen=True, slots=True)
class ValueLimit:
    """Limits of the elements of an integer input, or of their sums along an axis: formulas of
    symbolic sizes, "" for none. what: the reason, for messages."""

    least: str
    greatest: str
    what: str
    summed_axis: int | None = None


@dataclass(frozen=True, slots=True)
class InputPort:
    """An input of a model. dtype: None for a non-tensor; shape: numbers, names of symbolic sizes,
    or expressions of these; None if unknown; type_text: its type, for messages; has_default: the
    model has a value for it; limits: those of its values."""

    name: str
    dtype: np.dtype | None
    shape: tuple[int | str, ...] | None
    type_text: str
    has_default: bool = False
    limits: tuple[ValueLimit, ...] = ()


def sorted_sizes(sizes: Mapping[str, int]) -> Sizes:
    """Return the key of these sizes."""
    return tuple(sorted(sizes.items()))


def signature_text(ports: Sequence[InputPort], output_names: Sequence[str]) -> str:
    """Return the inputs with their types, and the names of the outputs."""
    given = ", ".join(f"{p.name}: {p.type_text}" for p in ports)
    return f"({given}) => ({', '.join(output_names)})"


def has_symbolic_sizes(ports: Sequence[InputPort]) -> bool:
    """True if some sizes are known only at a call."""
    return any(isinstance(d, str) for p in ports for d in p.shape or ())


def static_bytes(port: InputPort) -> int | None:
    """Return the bytes of an input; None if they are not the same in all calls."""
    shape, dtype = port.shape, port.dtype
    if shape is None or dtype is None or dtype.hasobject:
        return None
    sizes = [d for d in shape if isinstance(d, int)]
    return prod(sizes) * dtype.itemsize if len(sizes) == len(shape) else None


def check_sizes(ports: Sequence[InputPort], sizes: Any, option: str = "shapes") -> dict[str, int]:
    """Return the symbolic sizes by name. Raises UsageError for values that are not sizes, for names
    that inputs do not have, and if some are missing. option: the argument that has them."""
    dims = symbolic_dims(ports)
    given = as_size_mapping(sizes, option)
    names = dims if all(d.isidentifier() for d in dims) else given  # else names are in expressions
    types = {p.name: p.type_text for p in ports}
    return SizeNames(sorted(names), option, inputs=types).check_all(given)


def symbolic_dims(ports: Sequence[InputPort]) -> set[str]:
    """Return the names and expressions of the symbolic sizes of inputs."""
    return {d for p in ports for d in p.shape or () if isinstance(d, str)}


@dataclass(frozen=True, slots=True, eq=False)
class ShapePattern:
    """The dimensions of all inputs: numbers and names of sizes. find_sizes: of shapes; raises
    ValueError if the inputs cannot have them."""

    find_sizes: Callable[[Shapes], Sizes]

    @classmethod
    def of_ports(cls, ports: Sequence[InputPort]) -> ShapePattern | None:
        """Return the pattern of these inputs; None if a dimension is an expression or unknown, or
        an input is a non-tensor."""
        if any(p.dtype is None or p.shape is None for p in ports):
            return None
        if all(d.isidentifier() for p in ports for d in p.shape or () if isinstance(d, str)):
            return cls(_compile_pattern([p.shape or () for p in ports]))
        return None

    def sizes(self, shapes: Shapes) -> Sizes | None:
        """Return the sizes at which the inputs have these shapes; None if they cannot have them."""
        try:
            return self.find_sizes(shapes)
        except ValueError:
            return None


def _compile_pattern(shapes: Sequence[Sequence[int | str]]) -> Callable[[Shapes], Sizes]:
    """Return a function as of ShapePattern, in one piece: calls at new sizes wait for it. For
    shapes [batch, length] and [2, batch]

        def find(shapes):
            (d0, d1), (d2, d3), = shapes
            if d2 != 2 or d3 != d0: raise ValueError
            return ('batch', d0), ('length', d1),
    """
    known: dict[str, str] = {}
    parts, checks, count = [], [], 0
    for shape in shapes:
        own = [f"d{count + n}" for n in range(len(shape))]
        count += len(shape)
        parts.append(f"({''.join(f'{d}, ' for d in own)})")
        for d, wanted in zip(own, shape, strict=True):
            same = str(wanted) if isinstance(wanted, int) else known.setdefault(wanted, d)
            if same != d:
                checks.append(f"{d} != {same}")
    lines = [
        "def find(shapes):",
        f"    {''.join(f'{part}, ' for part in parts) or '()'} = shapes",
        f"    if {' or '.join(checks) or 'False'}: raise ValueError",
        f"    return ({''.join(f'({name!r}, {known[name]}), ' for name in sorted(known))})",
    ]
    defined: dict[str, Any] = {"__builtins__": {}, "ValueError": ValueError}
    exec("\n".join(lines), defined)
    return defined["find"]  # type: ignore[no-any-return]


@cache
def _compile_formula(text: str) -> CodeType:
    return compile(text, "<limit>", "eval")


def numeric_limits(port: InputPort, sizes: Mapping[str, int]) -> list[tuple[float, float]]:
    """Return the least and the greatest value that each limit allows at these sizes."""
    names = {"__builtins__": {}, "max": max, "min": min, **sizes}

    def number(formula: str, default: float) -> float:
        return eval(_compile_formula(formula), names) if formula else default

    return [(number(x.least, -np.inf), number(x.greatest, np.inf)) for x in port.limits]


def value_range(array: np.ndarray, summed_axis: int | None) -> tuple[int, int]:
    """Return the least and the greatest element, or sum along an axis, of an integer array with
    elements."""
    values = array if summed_axis is None else array.sum(summed_axis, dtype=np.int64)
    return int(values.min()), int(values.max())


def check_values(
    ports: Sequence[InputPort], arrays: Sequence[Any], sizes: Mapping[str, int]
) -> None:
    """Raise UsageError if an input has a value beyond its limits."""
    for port, array in zip(ports, arrays, strict=True):
        if not port.limits or not isinstance(array, np.ndarray) or not array.size:
            continue
        for limit, (least, greatest) in zip(port.limits, numeric_limits(port, sizes), strict=True):
            low, high = value_range(array, limit.summed_axis)
            if low < least or high > greatest:
                start = f"from {least} " if least > -np.inf else ""
                kind = "value" if limit.summed_axis is None else "sum"
                raise UsageError(
                    f"input {port.name!r} has the {kind} {low if low < least else high}",
                    f"{limit.what}: {kind}s {start}up to {greatest} are possible",
                    "pass other values, or larger caches",
                )


def match_sizes(ports: Sequence[InputPort], arrays: Sequence[Any]) -> dict[str, int] | None:
    """Return the symbolic sizes, if every dimension is a number or a name; None if an array does
    not fit or a dimension is an expression."""
    out: dict[str, int] = {}
    for port, array in zip(ports, arrays, strict=True):
        if port.dtype is None or port.shape is None or len(port.shape) != array.ndim:
            return None
        for d, n in zip(port.shape, array.shape, strict=True):
            if isinstance(d, str) and not d.isidentifier():
                return None
            if n != (d if isinstance(d, int) else out.setdefault(d, n)):
                return None
    return out


def shape_arrays(ports: Sequence[InputPort], arrays: Sequence[Any]) -> list[Any]:
    """Return numpy arrays with the shapes and types of the inputs, in place of tensors on a
    device."""
    return [
        x
        if p.dtype is None or isinstance(x, np.ndarray)
        else np.broadcast_to(np.zeros((), p.dtype), tuple(x.shape))
        for p, x in zip(ports, arrays, strict=True)
    ]


def _convert(port: InputPort, value: Any, dtype: np.dtype) -> np.ndarray:
    masked = sys.modules.get("numpy.ma")  # numpy loads it on demand
    if masked is not None and isinstance(value, masked.MaskedArray):
        raise UsageError(
            f"input {port.name!r} is a masked array", "a model reads all elements of its inputs",
            "use .filled(value), or .data to ignore the mask",
        )  # fmt: skip
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        texts = dtype.kind == "O" and array.dtype.kind in "UT"  # as in files
        return array.astype(object) if texts else array
    if not isinstance(value, (list, tuple, int, float, bool)):
        if not hasattr(value, "__dlpack__"):
            raise UsageError(
                f"input {port.name!r} is a {type(value).__name__}",
                "inputs must be numpy arrays or DLPack tensors",
                f"pass an array: {port.type_text}",
            )
        if hasattr(value, "resolve_neg"):  # DLPack does not express torch's lazy negation
            value = value.resolve_neg()
        if dtype.name == "bfloat16" and (found := copy_bfloat16(value, dtype)) is not None:
            return found
        return np.from_dlpack(value)
    numbers = np.asarray(value)
    with np.errstate(all="ignore"):
        out = numbers.astype(dtype)
    if out.dtype.kind in "iub" and not np.array_equal(out, numbers):
        raise UsageError(
            f"input {port.name!r} has values that do not fit {dtype}", f"it wants {port.type_text}",
            "pass an array of this type",
        )  # fmt: skip
    return out


def as_input_array(port: InputPort, value: Any) -> np.ndarray:
    """Return an input as a contiguous array of the type that the model declares. Raises
    UsageError."""
    name, wanted = port.name, port.dtype
    if wanted is None:
        return value  # type: ignore[no-any-return]  # ONNX Runtime checks it
    try:
        array = _convert(port, value, wanted)
    except (UsageError, MemoryError):
        raise
    except Exception as e:  # lists and libraries raise errors of any type
        raise UsageError(
            f"input {name!r} is a {type(value).__name__}, not an array", str(e),
            f"pass an array: {port.type_text}",
        ) from None  # fmt: skip
    if array.dtype != wanted:
        todo = f"use .astype({str(wanted)!r})"
        raise UsageError(
            f"input {name!r} is {array.dtype}", f"the model expects {port.type_text}", todo
        )
    if port.shape is not None and array.ndim != len(port.shape):
        raise UsageError(
            f"input {name!r} has shape {list(array.shape)}",
            f"the model expects {port.type_text}",
            f"pass an array of rank {len(port.shape)}",
        )
    if array.flags.c_contiguous:
        return array
    try:
        return np.ascontiguousarray(array)
    except MemoryError:
        raise UsageError(
            f"input {name!r} of shape {list(array.shape)} takes {array.nbytes} bytes",
            "it is not contiguous, and there is no memory for a contiguous copy",
            "pass smaller inputs",
        ) from None


def as_input_arrays(
    ports: Sequence[InputPort],
    feeds: Mapping[str, Any],
    default_input: Callable[[str], np.ndarray],
) -> list[np.ndarray]:
    """Return all inputs in order as contiguous arrays. default_input: returns the model's value of
    an input. Raises UsageError if they do not fit the model."""
    if not isinstance(feeds, Mapping):
        raise UsageError(
            f"inputs are a {type(feeds).__name__}", "inputs are given by name", "pass a dict"
        )
    out = []
    for port in ports:
        value = feeds.get(port.name, _MISSING)
        if value is not _MISSING:
            out.append(as_input_array(port, value))
        elif port.has_default:
            out.append(default_input(port.name))
        else:
            _check_input_names(ports, feeds)
            raise UsageError(
                f"no value for input {port.name!r}",
                f"given inputs: {', '.join(map(repr, feeds)) or 'none'}",
                f"pass an array: {port.type_text}",
            )
    _check_input_names(ports, feeds)
    return out


def _check_input_names(ports: Sequence[InputPort], feeds: Mapping[str, Any]) -> None:
    """Raise UsageError for a name that is not an input's."""
    names = [p.name for p in ports]
    for name in feeds:
        if name not in names:
            raise UsageError(
                f"no input {name!r}",
                f"the inputs are {', '.join(names) or 'none'}",
                "remove it",
            )
