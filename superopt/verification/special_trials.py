"""Trials of proofs over the real numbers on NaN, infinities, ties and absorbed addends.

A proof treats floats as real numbers. It does not cover IsNaN, and rounding may change the result
of a comparison. So models with such operators are tried on such inputs before they are called
proved.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import IntEnum
from math import prod
from pathlib import Path

import ml_dtypes
import numpy as np

from superopt import ort
from superopt.check.compare import TOLERANCE, root_mean_square
from superopt.check.numeric_check import NotEvaluable, evaluate_outputs
from superopt.check.quantization_steps import output_step, step_difference
from superopt.check.random_inputs import Feeds
from superopt.check.special_values import special_feeds
from superopt.ir import graph
from superopt.loading import representative_sizes
from superopt.onnx_io.import_.model import Model
from superopt.report.data.report import OutputVerdict, Verdict
from superopt.report.formatting.phrases import count_text
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import BOOL, STRING, from_numpy
from superopt.verification.original import original_file
from superopt.verification.ort_session import OrtSession, Results

MAX_SETS = 16  # of finite inputs, and of inputs with NaN and infinities
MAX_LARGE_SETS = 4  # of each, if an input has more than MIN_LARGE_ELEMENTS elements
MIN_LARGE_ELEMENTS = 1 << 18
MAX_SHOWN_ELEMENTS = 8  # of each input, in messages
MIN_TRIAL_SECONDS = 2.0  # for the trials, however little time remains


class Sensitivity(IntEnum):
    """What an output's proof leaves open about floats.

    CHOICES: a choice among computed floats, which a tie or rounding may change; COMPARISONS: a
    comparison of floats, which rounding and NaN may change; TESTS: a test for NaN or infinity,
    which is constant over real numbers: IsNaN(x), x == x, x - x == 0, |x| < inf.
    """

    NONE = 0
    CHOICES = 1
    COMPARISONS = 2
    TESTS = 3


NAN_TEST_OPS = frozenset({"IsNaN", "IsInf"})
COMPARISON_OPS = frozenset({"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
CHOICE_OPS = frozenset({"Where", "Max", "Min", "Clip"})


def sensitivities(a: graph.Graph, b: graph.Graph) -> tuple[Sensitivity, ...]:
    """Return the sensitivity of each output of two graphs over the same inputs; NONE if both
    compute the same value."""
    return tuple(
        Sensitivity.NONE if x is y else _sensitivity(x, y)
        for x, y in zip(a.outputs, b.outputs, strict=True)
    )


def _sensitivity(x: graph.Value, y: graph.Value) -> Sensitivity:
    """Return the highest sensitivity among the nodes that only one of two values needs, and among
    the tests and comparisons whose results these nodes read."""
    both = [graph.nodes([v]) for v in (x, y)]
    shared = set(both[0]) & set(both[1])
    answers: dict[graph.Node, Sensitivity] = {}  # of nodes with boolean results
    fixed: set[graph.Value] = set()  # constant over real numbers, whatever the inputs
    found = Sensitivity.NONE
    for n in dict.fromkeys((*both[0], *both[1])):
        producers = [graph.producer(v) for v in n.inputs if v is not None]
        read = [answers.get(p, Sensitivity.NONE) for p in producers if p is not None]
        if _is_constant_over_reals(n, fixed):
            fixed.update(graph.results(n))
        level = max((_node_sensitivity(n, fixed), *read))
        if n.types[0].dtype == BOOL:
            answers[n] = level
        if n not in shared:
            found = max(found, level)
    return found


def _node_sensitivity(n: graph.Node, constant_values: Set[graph.Value]) -> Sensitivity:
    operands = [v for v in n.inputs if v is not None]
    floats = any(v.type.dtype is not None and v.type.dtype.is_float for v in operands)
    if not floats:
        return Sensitivity.NONE
    if n.op.name in NAN_TEST_OPS:
        return Sensitivity.TESTS
    if n.op.name in COMPARISON_OPS:
        decided = _are_same_value(operands) or any(map(_bounds_all_numbers, operands))
        decided |= all(v in constant_values or isinstance(v, graph.Constant) for v in operands)
        return Sensitivity.TESTS if decided else Sensitivity.COMPARISONS
    return Sensitivity.CHOICES if n.op.name in CHOICE_OPS else Sensitivity.NONE


def _is_constant_over_reals(n: graph.Node, constant_values: Set[graph.Value]) -> bool:
    """True for x - x, x / x, 0 x, and for values computed only from such values and constants."""
    operands = [v for v in n.inputs if v is not None]
    if n.op.name in ("Sub", "Div") and _are_same_value(operands):
        return True
    if n.op.name == "Mul" and any(map(_is_zero, operands)):
        return True
    known = [v in constant_values or isinstance(v, graph.Constant) for v in operands]
    return any(v in constant_values for v in operands) and all(known) and not n.op.opaque


def _are_same_value(operands: Sequence[graph.Value]) -> bool:
    return len({_skip_identities(v) for v in operands}) == 1


def _skip_identities(v: graph.Value) -> graph.Value:
    while isinstance(v, graph.Node) and v.op.name == "Identity" and v.inputs[0] is not None:
        v = v.inputs[0]
    return v


def _is_zero(v: graph.Value) -> bool:
    return isinstance(v, graph.Constant) and v.type.dtype != STRING and not np.any(v.load())


def _bounds_all_numbers(v: graph.Value) -> bool:
    """True for a constant that contains NaN, an infinity, or the greatest number of its type."""
    if not isinstance(v, graph.Constant) or v.type.dtype is None or not v.type.dtype.is_float:
        return False
    array = v.load()
    greatest = float(ml_dtypes.finfo(array.dtype).max)  # type: ignore[no-untyped-call]
    return not (np.abs(array.astype(np.float64)) < greatest).all()


@dataclass(frozen=True, slots=True)
class _Difference:
    output: str
    description: str
    feed: Feeds


@dataclass(frozen=True, slots=True)
class _Trials:
    """The number of sets that both models ran on, the first difference, and the first difference
    among non-finite results where these count as undefined."""

    set_count: int
    difference: _Difference | None = None
    nonfinite_difference: _Difference | None = None


def try_special_inputs(
    first: Model,
    second: Model,
    levels: Sequence[Sensitivity],
    verdict: Verdict,
    given_sizes: Mapping[str, int],
    seed: int,
    deadline: float,
) -> Verdict:
    """Return the verdict for a `proved` verdict after trials on special inputs, as the outputs'
    `levels` require.

    `differs` if a trial shows a difference. If the models test for NaN or infinity: `agrees` if
    they agree in all trials, `unknown` if there were none. Otherwise the given verdict.
    given_sizes: values of symbolic sizes; deadline: of `time.monotonic()`.
    """
    if not any(levels):
        return verdict
    found = _run_trials(
        first,
        second,
        levels,
        given_sizes,
        seed,
        max(deadline, time.monotonic() + MIN_TRIAL_SECONDS),
    )
    if found.difference is not None:
        return _refuted_verdict(found.difference, verdict)
    said = _summary(found, max(levels))
    if Sensitivity.TESTS not in levels:
        return replace(verdict, notes=(*verdict.notes, said))
    reason = (
        "proved over the real numbers only; the models test for NaN or infinity, which the proof"
        f" does not cover; {said}"
    )
    outputs = tuple(
        replace(o, decision="unknown", reason=reason) if level is Sensitivity.TESTS else o
        for o, level in zip(verdict.outputs, levels, strict=True)
    )
    return Verdict(
        "agrees" if found.set_count else "unknown", reason, verdict.check, verdict.notes, outputs
    )


def _summary(trials: _Trials, level: Sensitivity) -> str:
    if not trials.set_count:
        return "no inputs with NaN or infinities could be run"
    special = "NaN, infinities, " if level >= Sensitivity.COMPARISONS else ""
    said = (
        f"equal on {count_text(trials.set_count, 'set')} of inputs with {special}ties and "
        "absorbed addends"
    )
    if trials.nonfinite_difference is None:
        return said
    d = trials.nonfinite_difference
    return (
        f"{said}, except for results that are not finite: output {d.output}: {d.description}"
        f" (inputs: {d.feed.kind}: {_inputs_text(d.feed)})"
    )


def _refuted_verdict(difference: _Difference, verdict: Verdict) -> Verdict:
    reason = (
        f"output {difference.output}: {difference.description} "
        f"(inputs: {difference.feed.kind}: {_inputs_text(difference.feed)})"
    )
    outputs = tuple(
        OutputVerdict(o.name, "refuted", f"{difference.description}; over the reals equal")
        if o.name == difference.output
        else o
        for o in verdict.outputs
    )
    return replace(verdict, decision="differs", reason=reason, outputs=outputs)


def _inputs_text(feed: Feeds) -> str:
    """Return the inputs of a set as text; of large ones the first elements."""
    shown = []
    for name, array in feed.arrays.items():
        flat = array.reshape(-1)
        some = ", ".join(f"{x:.6g}" if flat.dtype.kind == "f" else str(x)
                         for x in flat[:MAX_SHOWN_ELEMENTS])  # fmt: skip
        more = ", ..." if flat.size > MAX_SHOWN_ELEMENTS else ""
        shown.append(f"{name} = [{some}{more}] of shape {list(array.shape)}")
    return "; ".join(shown)


def _run_trials(
    first_model: Model,
    second_model: Model,
    levels: Sequence[Sensitivity],
    given_sizes: Mapping[str, int],
    seed: int,
    deadline: float,
) -> _Trials:
    names = [v.name or "" for v in first_model.source.model.graph.outputs]
    with tempfile.TemporaryDirectory(prefix="superopt-") as folder:
        files = [
            original_file(m.source, Path(folder, k))
            for m, k in ((first_model, "a"), (second_model, "b"))
        ]
        with (
            OrtSession(files[0], 1, "disable", exact_integers=True) as first,
            OrtSession(files[1], 1, "disable", exact_integers=True) as second,
        ):
            done, undefined = 0, None
            for feed in _special_feeds(first_model, max(levels), given_sizes, seed):
                if done and time.monotonic() > deadline:
                    break
                a, b = (
                    _run_model(m, s, feed)
                    for m, s in ((first_model, first), (second_model, second))
                )
                if a is None:
                    continue
                done += 1
                outputs = zip(names, levels, first_model.graph.outputs, strict=True)
                for name, level, v in outputs:
                    x, found = a.get(name), {} if b is None else b
                    if _differs_by_ties(v, feed, x, found.get(name)):
                        continue
                    why = _describe_difference(level, x, found, name)
                    if why:
                        return _Trials(done, _Difference(name, why, feed))
                    if undefined is None and b is not None and level is not Sensitivity.NONE:
                        why = _describe_difference(Sensitivity.TESTS, x, found, name)
                        undefined = _Difference(name, why, feed) if why else None
    return _Trials(done, nonfinite_difference=undefined)


def _special_feeds(
    model: Model, level: Sensitivity, given_sizes: Mapping[str, int], seed: int
) -> Iterator[Feeds]:
    """Yield inputs at the representative sizes, and at others in case the models do not run
    there."""
    sizes = representative_sizes.representative_sizes(model, given_sizes)
    tries = (
        [sizes]
        if given_sizes or not model.size_bindings
        else [sizes, *representative_sizes.alternative_sizes(sizes)]
    )
    for at in tries:
        try:
            large = max(
                (prod(a.shape) for f in special_feeds(model.graph, at, seed, 1, finite=True)
                 for a in f.arrays.values()), default=0
            )  # fmt: skip
            sets = MAX_LARGE_SETS if large > MIN_LARGE_ELEMENTS else MAX_SETS
            yield from special_feeds(model.graph, at, seed, sets, finite=True)
            if level >= Sensitivity.COMPARISONS:
                yield from special_feeds(model.graph, at, seed, sets, finite=False)
        except (TypeError, KeyError, MemoryError):
            return


def _run_model(model: Model, session: OrtSession, feed: Feeds) -> Results | None:
    """Return a model's results: in ONNX Runtime, else by evaluation; None if it fails."""
    if not session.refusal:
        got = session.run(feed)
        return None if isinstance(got, ort.Failure) else got
    try:
        found = evaluate_outputs(model.graph, feed, {}, Reals())
    except (NotEvaluable, MemoryError):
        return None
    names = [v.name or "" for v in model.source.model.graph.outputs]
    return {n: a for n, a in zip(names, found, strict=True) if a is not None}


def _differs_by_ties(v: graph.Value, feed: Feeds, x: object, y: object) -> bool:
    """True if an output is of a quantization, and differs by the steps that ties explain."""
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray) or x.shape != y.shape:
        return False
    step = output_step(v, feed.sizes)
    if step is None or not all(np.isfinite(a.astype(np.float64)).all() for a in (x, y)):
        return False
    return not step_difference(step, x, x, y).failure


def _describe_difference(level: Sensitivity, x: object, results: Results, name: str) -> str:
    """Return how the second model's output differs from `x`, the first one's; empty if it does
    not."""
    y = results.get(name)
    if level is Sensitivity.NONE or not isinstance(x, np.ndarray):
        return ""
    if not isinstance(y, np.ndarray):
        return "the second model fails"
    if x.shape != y.shape or x.dtype != y.dtype:
        return f"{y.dtype}{list(y.shape)} instead of {x.dtype}{list(x.shape)}"
    wrong = _differing_elements(level, x, y)
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{y[at]} instead of {x[at]} at {list(at)}"


def _differing_elements(level: Sensitivity, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return where two results differ.

    NaN and infinities stand for values that are undefined over real numbers, and count only in
    models that test for them. Integers and booleans are always defined.
    """
    kind = from_numpy(x.dtype)
    if not kind.is_float:
        unequal = np.asarray(x != y)
        return unequal if level >= Sensitivity.COMPARISONS else np.zeros(unequal.shape, bool)
    a, b = x.astype(np.float64), y.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    rtol, part = TOLERANCE.get(kind, (0.1, 0.1))
    rms = root_mean_square(a[finite])
    with np.errstate(invalid="ignore"):
        far = finite & (np.abs(a - b) > rtol * np.abs(a) + part * rms)
        other = ~finite & ~((a == b) | (np.isnan(a) & np.isnan(b)))
    return far | other if level is Sensitivity.TESTS else far
