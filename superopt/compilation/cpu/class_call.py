"""Calls at all sizes of a model's classes (size_classes.py). A call at new sizes evaluates the
formulas of their class; what it binds serves further calls at these sizes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from superopt.compilation.cpu.native_segment import NativeSegment, SymbolicSegment, native_call
from superopt.compilation.cpu.sequential_call import model_call
from superopt.compilation.frontend.input_arrays import InputPort, ShapePattern, Shapes
from superopt.compilation.model.frequent_sizes import count_calls
from superopt.compilation.model.onnxruntime_calls import run_counted
from superopt.compilation.model.repeated_call import (
    CheckedCall,
    ModelCall,
    are_in_range,
    limit_values,
    value_limits,
)

if TYPE_CHECKING:
    from superopt.compilation.frontend.input_arrays import Sizes
    from superopt.compilation.model.device import RepeatedCall
    from superopt.compilation.model.executable import Executable
    from superopt.compilation.model.size_classes import SizeClass
    from superopt.compilation.model.steps import Variant

T = TypeVar("T")
MAX_KEPT_CALLS = 256  # sizes whose words and shapes of outputs are kept
MAX_SEEN_SHAPES = 1024  # sizes of which is known that they were called
_NDARRAY_TYPE = np.ndarray


@dataclass(slots=True, eq=False)
class ClassCalls:
    """The calls of a model by the shapes of its inputs. calls: at sizes of classes that were called
    again. seen: shapes that were called, and whether the disk cache was asked for a program for
    them alone. lock: held where these are changed."""

    executable: weakref.ref[Executable]
    ports: Sequence[InputPort]
    inputs: Sequence[tuple[str, np.dtype | None]]
    pattern: ShapePattern
    has_limits: bool
    calls: dict[Shapes, CheckedCall] = field(default_factory=dict)
    seen: dict[Shapes, bool] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)

    def call(self, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the outputs by name; None if `Executable.run` must check the inputs."""
        if type(feeds) is not dict or len(feeds) != len(self.inputs):
            return None
        arrays = []
        for name, dtype in self.inputs:
            a = feeds.get(name)
            if type(a) is not _NDARRAY_TYPE or a.dtype is not dtype or not a.flags.c_contiguous:
                return None
            arrays.append(a)
        shapes = tuple([a.shape for a in arrays])
        known = self.calls.get(shapes)
        try:
            return self._call_new(shapes, arrays) if known is None else known(arrays)
        except Exception:  # of many types; the slow path reports the error
            return None

    def _call_new(self, shapes: Shapes, arrays: Sequence[Any]) -> dict[str, Any] | None:
        """Return the outputs for inputs of these shapes, which are not in `calls`; None if
        `Executable.run` must decide. Raises ValueError if inputs cannot have these shapes."""
        exe, key = self.executable(), self.pattern.find_sizes(shapes)
        if exe is None:
            return None
        sizes, policy = dict(key), exe.shape_policy
        limits = value_limits(self.ports, sizes) if self.has_limits else []
        if limits and not are_in_range(arrays, limits):
            return None
        if policy.fallback_reasons and key in policy.fallback_reasons:
            return run_counted(exe, key, arrays)
        variant, was_looked_up = exe.variants.get(key), self.seen.get(shapes)
        if variant is None and was_looked_up is None:
            policy.add_sizes(key)
            self._keep(self.seen, MAX_SEEN_SHAPES, shapes, False)
            for own in exe.size_classes.classes:
                step = own.whole_step
                if isinstance(step, SymbolicSegment) and step.binding is not None:
                    if (out := step.whole_function(own.formulas)(sizes, arrays)) is not None:
                        return out
                elif own.formulas.admits(sizes):
                    return _run_class(exe, own, sizes, arrays)
            return run_counted(exe, key, arrays)
        if variant is None:
            if not was_looked_up and _use_cached(exe, key):
                return None
            self._keep(self.seen, MAX_SEEN_SHAPES, shapes, True)
            variant = exe.size_classes.variant(sizes, count_calls(exe, key))
            if variant is None:
                return run_counted(exe, key, arrays)
        call = _variant_call(exe, variant)
        if call is None:
            return None
        self._keep(self.calls, MAX_KEPT_CALLS, shapes, limit_values(call, limits))
        return call(arrays)

    def _keep(self, kept: dict[Shapes, T], limit: int, shapes: Shapes, value: T) -> None:
        """Keep a value, unless another thread keeps one now; forget the oldest beyond a limit."""
        if self.lock.acquire(False):
            if len(kept) >= limit and shapes not in kept:
                del kept[next(iter(kept))]
            kept[shapes] = value
            self.lock.release()


def repeated_class_call(exe: Executable) -> RepeatedCall | None:
    """Return the repeated call at all sizes of the model's classes; None if there are none, or if
    some sizes are not those of axes."""
    ports, pattern = exe.input_ports, ShapePattern.of_ports(exe.input_ports)
    if pattern is None or not exe.size_classes.classes:
        return None
    inputs = tuple((p.name, p.dtype) for p in ports)
    return ClassCalls(weakref.ref(exe), ports, inputs, pattern, any(p.limits for p in ports)).call


def _run_class(
    exe: Executable, own: SizeClass, sizes: Mapping[str, int], arrays: Sequence[Any]
) -> dict[str, Any] | None:
    """Return the outputs at sizes of a class of several steps. None if its code is not loaded, or
    does not run without checks."""
    variant = own.variant(sizes) if own.loaded else None
    call = None if variant is None else _variant_call(exe, variant)
    return None if call is None else call(arrays)


def _variant_call(exe: Executable, variant: Variant) -> ModelCall | None:
    step = variant.bound_step
    if isinstance(step, NativeSegment):
        return native_call(step, len(exe.input_ports))
    return model_call(variant, exe.output_names)


def _use_cached(exe: Executable, key: Sizes) -> bool:
    """Use the program for these sizes alone, if the disk cache has one; return whether it has."""
    with exe.try_lock() as locked:
        if not locked or exe.is_closed:
            return False
        with exe.device.activate():
            found = exe.find_cached(key)
            if found is not None:
                exe.set_variant(key, found)
            return found is not None
