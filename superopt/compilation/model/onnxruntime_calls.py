"""Calls at sizes that a model is not compiled for, in ONNX Runtime (`shape_policy`)."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.fallback.whole_model import Fallback
from superopt.compilation.frontend.input_arrays import Sizes
from superopt.compilation.model.control_flow.part_calls import (
    compile_missing_parts,
    set_on_missing,
)
from superopt.compilation.model.repeated_call import repeated_named_call
from superopt.compilation.model.specialize import submit_specialization

if TYPE_CHECKING:
    from superopt.compilation.model.device import RepeatedCall
    from superopt.compilation.model.executable import Executable


def run_in_onnxruntime(
    exe: Executable, key: Sizes, arrays: Sequence[Any]
) -> dict[str, np.ndarray] | None:
    """Return the outputs if a call at these sizes runs in ONNX Runtime; None if it must compile."""
    policy = exe.shape_policy
    with exe.try_lock(blocking=key not in policy.fallback_times) as locked:
        if locked and _has_program(exe, key):
            return None
        whole = policy.fallback
    if whole is None:
        return None
    held = [exe.device.to_host(x) for x in arrays]
    begin = time.perf_counter()
    try:
        out = whole.call(held)
    except Exception:  # of many types; compiled code may succeed, or report the error
        if policy.specialize == "never":
            raise
        return None
    _add_time(exe, key, time.perf_counter() - begin, held)
    with exe.try_lock() as locked:
        if locked and key not in exe.variants and not exe.is_closed:
            call = exe.device.repeated_class_call(exe)
            exe.last_call = _repeated_call(exe, whole, key, arrays) if call is None else call
    return out


def run_counted(exe: Executable, key: Sizes, arrays: Sequence[Any]) -> dict[str, Any] | None:
    """Return the outputs of ONNX Runtime for contiguous arrays of these sizes, without waiting for
    other calls; None if such a call is not loaded, or must compile."""
    policy = exe.shape_policy
    whole = policy.fallback
    if whole is None or whole.named_call is None or 0 in dict(key).values():
        return None
    if policy.compiles_in_call(key, bool(exe.variants)):
        return None
    policy.sizes_vary = len(exe.size_classes.classes) > 1
    feeds = {p.name: a for p, a in zip(exe.input_ports, arrays, strict=True)}
    begin = time.perf_counter()
    out = whole.named_call(feeds)
    _add_time(exe, key, time.perf_counter() - begin, arrays)
    return out


def run_whole_model(exe: Executable, key: Sizes, arrays: Sequence[Any]) -> dict[str, Any] | None:
    """Return the outputs of ONNX Runtime in place of parts that are not compiled, and let these be
    compiled if that would have paid; None if the model is itself a part. Parts compile in calls if
    ONNX Runtime does not run the model, and in this one at sizes of 0 (`on_missing`)."""
    if exe.shape_policy.on_missing != "specialize":
        return None
    if 0 in dict(key).values():
        with compile_missing_parts():
            return exe.run_variant(exe.variants[key], arrays, on_device=False)
    with exe.exclusive():
        whole = onnxruntime_fallback(exe)
        variant = exe.variants[key] if whole is None else None
    if whole is not None:
        begin = time.perf_counter()
        out = whole.call(arrays)
        _add_time(exe, key, time.perf_counter() - begin, arrays)
        return out
    assert variant is not None
    assert variant.control_flow is not None
    set_on_missing(variant.control_flow, "specialize")
    return exe.run_variant(variant, arrays, on_device=False)


def _has_program(exe: Executable, key: Sizes) -> bool:
    """True if a call at these sizes has a program, or compiles it; else load the model into ONNX
    Runtime."""
    policy = exe.shape_policy
    with exe.exclusive():
        if key in exe.variants or policy.compiles_in_call(key, bool(exe.variants)):
            return True
        if key not in policy.fallback_times and (found := exe.find_cached(key)) is not None:
            exe.set_variant(key, found)
            return True
        policy.load_fallback(lambda: _make_fallback(exe))
        return False


def onnxruntime_fallback(exe: Executable) -> Fallback | None:
    """Return what runs the whole model in ONNX Runtime at any sizes; None if it does not run there.
    The caller holds exe.lock."""
    exe.shape_policy.load_fallback(lambda: _make_fallback(exe))
    return exe.shape_policy.fallback


def _make_fallback(exe: Executable) -> Fallback | None:
    """Return a session that runs the whole model in ONNX Runtime, at any sizes; None if it is not
    installed."""
    cached = exe.session_cache
    if cached is not None and not exe.has_compiler and (found := cached.find_session()):
        return found
    variant = exe.compiler.fallback_variant()
    if variant is None:
        return None
    (whole,) = variant
    assert isinstance(whole, Fallback)
    if cached is not None:
        cached.store_session(exe.compiler.given_model)
    return whole


def _repeated_call(
    exe: Executable, whole: Fallback, key: Sizes, arrays: Sequence[Any]
) -> RepeatedCall | None:
    by_name = whole.named_call
    if by_name is None:
        return None
    owner: Any = weakref.proxy(exe)
    names = [p.name for p in exe.input_ports]

    def call(feeds: dict[str, Any]) -> dict[str, Any]:
        begin = time.perf_counter()
        out = by_name(feeds)
        seconds = time.perf_counter() - begin
        _add_time(owner, key, seconds, [feeds[name] for name in names])
        return out

    return repeated_named_call(call, exe.input_ports, arrays)


def _add_time(exe: Executable, key: Sizes, seconds: float, arrays: Sequence[np.ndarray]) -> None:
    """Count a call at these sizes in ONNX Runtime; compile for them once that would have paid."""
    policy = exe.shape_policy
    policy.add_fallback_time(key, seconds)
    if not policy.is_due(key):
        return
    with exe.try_lock() as locked:
        if not locked or exe.is_closed:  # the next call may compile
            return
        if not policy.is_due(key) or exe.is_all_fallback:
            return
        if exe.size_classes.is_slower(dict(key)):
            return
        if policy.in_background:
            submit_specialization(exe, key, arrays)
        else:
            exe.last_call = None  # the next call compiles
