"""Calls whose inputs are like the last ones: what they check and run. Most calls are such."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.fallback.whole_model import NamedCall
from superopt.compilation.frontend.input_arrays import InputPort

if TYPE_CHECKING:
    from superopt.compilation.model.device import RepeatedCall

ModelCall = Callable[[Sequence[Any]], dict[str, Any]]
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


def match_inputs(
    ports: Sequence[InputPort], arrays: Sequence[Any]
) -> Callable[[Mapping[str, Any]], list[np.ndarray] | None]:
    """Return a function that returns the inputs in order if they are contiguous arrays of the types
    and shapes of `arrays`; else None."""
    inputs = _input_kinds(ports, arrays)

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
        return given

    return match
