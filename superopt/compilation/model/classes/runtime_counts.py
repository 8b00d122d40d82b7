"""Programs for further levels of sizes that only a run gives (runtime_sizes.py): they are compiled
in the background once runs at such sizes in ONNX Runtime have taken long enough."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from superopt.compilation.model.classes.runtime_sizes import RuntimeSizedSegment
from superopt.compilation.model.shape_policy import CLASS_WAIT
from superopt.compilation.model.specialize import child_results, has_child
from superopt.compilation.runtime import background_worker

if TYPE_CHECKING:
    from superopt.compilation.frontend.input_arrays import Sizes
    from superopt.compilation.model.executable import Executable
    from superopt.compilation.model.size_classes import SizeClass
    from superopt.compilation.model.steps import Variant

LOG = logging.getLogger("superopt.compile")


def watch_counts(exe: Executable, key: Sizes, variant: Variant) -> None:
    """Let a program for these sizes count the time of runs that have no kernels. The caller holds
    exe.lock."""
    if exe.shape_policy.specialize != "background":
        return
    for step in variant.steps:
        if isinstance(step, RuntimeSizedSegment) and not step.code.listeners:
            step.code.listeners.append(partial(_add_time, weakref.ref(exe), key))


def _add_time(ref: weakref.ref[Executable], key: Sizes, seconds: float) -> None:
    if (exe := ref()) is None:
        return
    policy = exe.shape_policy
    policy.count_seconds += seconds
    if policy.count_seconds < CLASS_WAIT * policy.expected_compile_seconds:
        return
    with exe.try_lock() as locked:
        if not locked or exe.is_closed or key in policy.pending or policy.has_all_counts:
            return
        policy.has_all_counts = True
        work = partial(_compile_counts, ref, key)
        if background_worker.background_worker().submit(background_worker.Job(id(exe), work)):
            policy.pending.add(key)


def _compile_counts(ref: weakref.ref[Executable], key: Sizes) -> None:
    if (exe := ref()) is None:
        return
    classes, why = exe.size_classes, ""
    own = classes.find(dict(key))
    sizes = dict(key) if own is None else _example_sizes(own, dict(key))
    made, variant = own, None
    try:
        if has_child(exe):
            with closing(child_results(exe, (*sizes.items(),), work="counts")) as results:
                for _ in results:
                    pass
            made = None if own is None else classes.reload(own)
            variant = exe.find_cached(key) if own is None else None
        else:
            with background_worker.compile_lock():
                compiler = exe.compiler.with_all_counts()
                made = None if own is None else compiler.compile_class(sizes)
                variant = compiler.compile_variant(sizes) if own is None else None
    except Exception as e:  # any error: the programs stay
        why = " ".join(f"background compilation failed: {e}".split())
    LOG.info("background %s at other counts: %s", dict(key), why or "compiled code is used")
    with exe.lock:
        exe.shape_policy.pending.discard(key)
        if exe.is_closed or why:
            return
        if own is not None and made is not None and made.formulas == own.formulas:
            classes.replace(own, made)
            for old in [k for k, v in exe.variants.items() if v.is_of_class]:
                del exe.variants[old]
            exe.last_call = None
        elif variant is not None:
            exe.set_variant(key, variant)


def _example_sizes(own: SizeClass, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """Return the sizes for which a class that has these was compiled."""
    examples = (p.example for step in own.load_steps() or () for p in step.programs)
    example = next(examples, sizes)
    return {name: example[name] for name in own.formulas.names}
