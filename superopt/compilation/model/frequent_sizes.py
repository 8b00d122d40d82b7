"""Programs for fixed sizes, compiled in the background for sizes that are called often.

A program for fixed sizes may be faster than that of a class. It is compiled once the calls at these
sizes took so long that it would have paid, and used if it is measured to be faster.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.model.specialize import compile_fixed_in_background, fastest_times
from superopt.compilation.runtime import background_worker

if TYPE_CHECKING:
    from superopt.compilation.frontend.input_arrays import Sizes
    from superopt.compilation.model.executable import Executable
    from superopt.compilation.model.steps import Variant

LOG = logging.getLogger("superopt.compile")
EXPECTED_SAVING = 0.2  # of the time of a class's program, that one for fixed sizes saves


@dataclass(slots=True)
class SizeUse:
    """The time of calls at given sizes. executable: has these calls. seconds: of all so far."""

    executable: weakref.ref[Executable]
    key: Sizes
    seconds: float = 0.0

    def __call__(self, arrays: Sequence[np.ndarray], seconds: float) -> bool:
        """Count a call of the program that is the whole model; arrays: its inputs, then its
        outputs. Returns whether to count on."""
        self.seconds += seconds
        exe = self.executable()
        if exe is None:
            return False
        if self.seconds * EXPECTED_SAVING < exe.shape_policy.expected_compile_seconds:
            return True
        with exe.try_lock() as locked:
            if locked:
                _submit(exe, self.key, arrays)
            return not locked


def count_calls(exe: Executable, key: Sizes) -> SizeUse | None:
    """Return what counts the calls at these sizes; None if none is compiled in the background."""
    policy = exe.shape_policy
    if policy.specialize != "background" or not policy.in_background:
        return None
    return SizeUse(weakref.ref(exe), key)


def _submit(exe: Executable, key: Sizes, arrays: Sequence[np.ndarray]) -> None:
    """Compile the model for these sizes in the background. The caller holds exe.lock."""
    policy, bound = exe.shape_policy, exe.variants.get(key)
    bound = exe.size_classes.variant(dict(key)) if bound is None else bound
    if bound is None or not bound.is_of_class or key in policy.pending:
        return
    step = bound.bound_step
    assert step is not None
    assert step.binding is not None
    inputs: list[Any] = [None] * len(exe.input_ports)
    for n, x in zip(step.binding.input_numbers, arrays, strict=False):
        inputs[n] = np.array(x)
    ref = weakref.ref(exe)
    work = partial(_compile_fixed, ref, key, bound, inputs)
    if background_worker.background_worker().submit(background_worker.Job(id(exe), work)):
        policy.pending.add(key)


def _compile_fixed(
    ref: weakref.ref[Executable], key: Sizes, bound: Variant, inputs: list[Any]
) -> None:
    if (exe := ref()) is None:
        return
    variant, why = None, ""
    try:
        variant = compile_fixed_in_background(exe, key)
        own, other = fastest_times(
            (partial(variant.run, exe.device), partial(bound.run, exe.device)), inputs
        )
        if own >= other:
            why = f"the program of the class is faster: {1e3 * other:.3g} ms, {1e3 * own:.3g} ms"
    except Exception as e:  # any error: the program of the class stays
        why = " ".join(f"background compilation failed: {e}".split())
    LOG.info("background %s alone: %s", dict(key), why or "its own program is used")
    with exe.lock:
        exe.shape_policy.pending.discard(key)
        if variant is not None and not why and not exe.is_closed:
            exe.last_call = None
            exe.set_variant(key, variant)
