"""The public function `simplify`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from superopt import guard
from superopt.api.event_log import log_events
from superopt.errors import UsageError
from superopt.loading.given_sizes import as_size_mapping
from superopt.report.data.report import Event

if TYPE_CHECKING:
    import numpy as np

    from superopt.onnx_io.read.source import ModelLike
    from superopt.optimization.simplification.simplified import Simplified


def simplify(
    model: ModelLike,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    shapes: Mapping[str, int] | None = None,
    skip: Collection[str] = (),
    inputs: str | Path | Mapping[str, np.ndarray] | None = None,
    budget: float = 60.0,
    threads: int | None = None,
    seed: int = 0,
    progress: Callable[[Event], None] | None = None,
    stop: Callable[[], bool] | None = None,
    max_memory: int | str | None = None,
) -> Simplified:
    """Remove nodes from a model without a search: fold constants, fuse batch normalization, and
    drop dead code and redundant data movement.

    Each rewrite is by a rule that is proved for all sizes and leaves fewer nodes of kinds that the
    model has; the result is compared with the original as in `superopt.optimize`. Nothing is timed.

    Args:
        model: A path, a file's bytes, a ModelProto or an onnx_ir model (not modified).
        input_shapes: Shapes to give to inputs, by name: `{"x": (1, 3, 224, 224)}`. A symbolic
            dimension gets its value wherever the model declares it.
        shapes: Values of symbolic dimensions, by name, at which the check runs.
        skip: Passes to leave out ("constant-folding", "bn-fusion", "rules"), or names of rules.
        inputs: Arrays by input name, or an .npz file, for the check.
        budget: Seconds; after that the best checked model is returned.
        threads: Threads of the check, default 1.
        seed: Of the check's random inputs.
        progress: Called with each `Event`.
        stop: Polled; once it is true the call ends.
        max_memory: Bytes, or a text such as "8GB", that this process and its children may use.

    Returns:
        The simplified model and its report. `changed` is false if there was nothing to remove.

    Raises:
        ModelError: The model is invalid.
        CheckFailed: The rewritten model disagrees with the original.
        UsageError: An argument is invalid.

    Example:
        >>> result = superopt.simplify("model.onnx")
        >>> certificate = result.save("simple.onnx")
        >>> result.report.nodes_after <= result.report.nodes_before
        True
    """
    memory = guard.parse_max_memory(max_memory)
    if not 0 <= budget < float("inf"):
        raise UsageError(f"invalid budget: {budget}", "it must be finite and at least 0", "pass it")
    progress = log_events("superopt.simplify", progress)
    begin = time.monotonic()
    from superopt.loading.array_files import read_inputs
    from superopt.loading.garbage_collection import raise_gc_thresholds
    from superopt.loading.model import load_model
    from superopt.loading.request import Request
    from superopt.loading.rule_library import load_library
    from superopt.onnx_io.read.source import hash_weights, read_model
    from superopt.onnx_io.transform.input_shapes import with_input_shapes
    from superopt.optimization.report.optimization_report import make_report
    from superopt.optimization.simplification import simplify as simplify_
    from superopt.optimization.simplification.node_count_rules import select_rules
    from superopt.optimization.simplification.simplified import Simplified

    with guard.limit_call(float(budget), memory, begin=begin), raise_gc_thresholds():
        source = read_model(model)
        progress(Event("load", f"reading {source.label}", 0.0))
        if input_shapes:
            source = with_input_shapes(source, input_shapes)
        loaded = load_model(source)
        hash_weights(source)
        request = Request(
            budget=float(budget), rules=select_rules(load_library(), skip),
            shapes=as_size_mapping(shapes), inputs=read_inputs(inputs), threads=threads or 1,
            seed=seed, progress=progress, stop=stop or (lambda: False), cost="roofline",
            runtime_level="disable",
        )  # fmt: skip
        may_fold = "constant-folding" not in skip
        done = simplify_.simplify(loaded, request, time.monotonic() - begin, may_fold)
    digest = source.sha256 if done.winner is None else done.winner.sha256
    seconds = time.monotonic() - begin
    report = make_report(done, request.rules, digest)
    return Simplified(report, done.winner is not None, done, seconds, bool(input_shapes))
