"""Calls whose inputs are like the last ones: what they check and run. Most calls are such."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.fallback.whole_model import NamedCall
from superopt.compilation.frontend.input_arrays import (
    InputPort,
    ShapePattern,
    match_sizes,
    numeric_limits,
)

if TYPE_CHECKING:
    from superopt.compilation.model.device import RepeatedCall

ModelCall = Callable[[Sequence[Any]], dict[str, Any]]
CheckedCall = Callable[[Sequence[Any]], "dict[str, Any] | None"]
# Of an input, its number, the axis along which it is summed, the least and the greatest value.
ValueRange = tuple[int, int | None, float, float]
InputKind = tuple[str, np.dtype | None, tuple[int, ...]]
_NDARRAY_TYPE = np.ndarray


def repeated_named_call(
    named_call: NamedCall | None, ports: Sequence[InputPort], arrays: Sequence[Any]
) -> RepeatedCall | None:
    """Return the repeated call of a function that takes inputs by name, also arrays that are not
    contiguous; None if there is none, or an input is a non-tensor."""
    if named_call is None or any(p.dtype is None for p in ports):
        return None
    inputs = _input_kinds(ports, arrays)

    def call(feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        if type(feeds) is not dict or len(feeds) != len(inputs):
            return None
        for name, dtype, shape in inputs:
            a = feeds.get(name)
            if type(a) is not _NDARRAY_TYPE or a.dtype is not dtype or a.shape != shape:
                return None
        try:
            return named_call(feeds)
        except Exception:  # of many types; the slow path reports the error
            return None

    return call


def repeated_any_size_call(
    named_call: NamedCall, ports: Sequence[InputPort]
) -> RepeatedCall | None:
    """Return the repeated call of a function that takes inputs by name, of any sizes from 1 on;
    None if the values of an input have limits."""
    pattern = ShapePattern.of_ports(ports)
    if pattern is None or any(p.limits for p in ports):
        return None
    inputs, find = [(p.name, p.dtype) for p in ports], pattern.sizes

    def call(feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        if type(feeds) is not dict or len(feeds) != len(inputs):
            return None
        shapes = []
        for name, dtype in inputs:
            a = feeds.get(name)
            if type(a) is not _NDARRAY_TYPE or a.dtype is not dtype:
                return None
            shapes.append(a.shape)
        sizes = find(tuple(shapes))
        if sizes is None:
            return None
        for _, n in sizes:
            if not n:
                return None
        try:
            return named_call(feeds)
        except Exception:  # of many types; the slow path reports the error
            return None

    return call


def repeated_model_call(
    model_call: ModelCall, ports: Sequence[InputPort], arrays: Sequence[Any]
) -> RepeatedCall:
    """Return the repeated call of a function of the inputs in order."""
    match = match_inputs(ports, arrays)

    def call(feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        if (given := match(feeds)) is None:
            return None
        try:
            return model_call(given)
        except Exception:  # of many types; the slow path reports the error
            return None

    return call


def _input_kinds(ports: Sequence[InputPort], arrays: Sequence[Any]) -> tuple[InputKind, ...]:
    return tuple((p.name, p.dtype, a.shape) for p, a in zip(ports, arrays, strict=True))


def value_limits(ports: Sequence[InputPort], sizes: Mapping[str, int] | None) -> list[ValueRange]:
    """Return the ranges of each input that has limits; sizes: None if they are not known."""
    out: list[ValueRange] = []
    for n, port in enumerate(ports):
        if port.limits and sizes is None:
            out.append((n, None, np.inf, -np.inf))  # nothing is allowed: the slow path decides
        elif port.limits and sizes is not None:
            by_axis: dict[int | None, list[tuple[float, float]]] = {}
            for x, numbers in zip(port.limits, numeric_limits(port, sizes), strict=True):
                by_axis.setdefault(x.summed_axis, []).append(numbers)
            for axis, some in by_axis.items():
                least, greatest = zip(*some, strict=True)
                out.append((n, axis, max(least), min(greatest)))
    return out


def are_in_range(arrays: Sequence[np.ndarray], limits: Sequence[ValueRange]) -> bool:
    """True if all values of the inputs that have limits are allowed."""
    for n, axis, least, greatest in limits:
        a = arrays[n] if axis is None else arrays[n].sum(axis, dtype=np.int64)
        if a.size and (a.min() < least or a.max() > greatest):
            return False
    return True


def limit_values(model_call: ModelCall, limits: Sequence[ValueRange]) -> CheckedCall:
    """Return a call that returns None for values that are not allowed."""
    if not limits:
        return model_call

    def call(arrays: Sequence[Any]) -> dict[str, Any] | None:
        return model_call(arrays) if are_in_range(arrays, limits) else None

    return call


def match_inputs(
    ports: Sequence[InputPort], arrays: Sequence[Any]
) -> Callable[[Mapping[str, Any]], list[np.ndarray] | None]:
    """Return a function that returns the inputs in order if they are contiguous arrays of the types
    and shapes of `arrays`, with values that are allowed; else None."""
    inputs = _input_kinds(ports, arrays)
    limits = value_limits(ports, match_sizes(ports, arrays))

    def match(feeds: Mapping[str, Any]) -> list[np.ndarray] | None:
        if type(feeds) is not dict or len(feeds) != len(inputs):
            return None
        given = []
        for name, dtype, shape in inputs:
            a = feeds.get(name)
            if (
                type(a) is not _NDARRAY_TYPE or a.dtype is not dtype or a.shape != shape
                or not a.flags.c_contiguous
            ):  # fmt: skip
                return None
            given.append(a)
        return given if are_in_range(given, limits) else None  # the slow path reports the error

    return match
