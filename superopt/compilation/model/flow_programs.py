"""The programs of a model at an If or Loop for all sizes: found in the disk cache, or compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superopt.compilation.model.control_flow.cached_parts import find_control_flow, refer_to_parts
from superopt.compilation.model.control_flow.part_calls import cached_flow, set_on_missing
from superopt.compilation.model.steps import Variant

if TYPE_CHECKING:
    from superopt.compilation.model.control_flow.dynamic_if import ControlFlow
    from superopt.compilation.model.control_flow.part_calls import OnMissing
    from superopt.compilation.model.executable import Executable


def _flow_variant(exe: Executable, flow: ControlFlow) -> Variant:
    return Variant((flow,), lambda: exe.model, is_of_class=True)


def background_flow(exe: Executable, *, compile_new: bool) -> Variant | None:
    """Return what runs at all sizes of a model with an If or Loop, whose parts compile nothing in
    calls; None of another one, or if the disk cache does not have it, and not `compile_new`."""
    if (known := exe.size_classes.any_sizes) is not None:
        return known
    if (flow := cached_flow(exe)) is not None:
        return _flow_variant(exe, flow)
    return control_flow_variant(exe, "raise") if compile_new else None


def control_flow_variant(exe: Executable, missing: OnMissing | None = None) -> Variant | None:
    """Return what runs at all sizes of a model with an If or Loop, cached or compiled; None of
    another one. missing: what calls of its parts do at sizes of no program; None: as those of the
    model."""
    flow = find_control_flow(exe)
    if flow is None:
        flow = exe.compiler.compile_any_sizes(exe.shape_policy.specialize)
        if flow is None:
            return None
        if exe.size_classes.cache is not None:
            exe.size_classes.cache.store_control_flow(flow)
        if exe.reference is not None:
            refer_to_parts(flow, exe.reference)
        exe.compiler.compile_branches(_flow_variant(exe, flow))
    set_on_missing(flow, missing or exe.shape_policy.on_missing)
    return _flow_variant(exe, flow)
