"""Operators of decoders at random attributes: kernels of classes of sizes give what onnxruntime
gives, at sizes that change between calls."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import superopt
from superopt.compilation.model.compile_class import compile_size_class
from superopt.compilation.model.compiler import Compiler
from superopt.compilation.model.size_classes import SizeClass
from tests.support.onnx_io.decoder_operators import DRAWS, Case, Feeds, Results, Sizes

CALLS = 5  # of each model
DEFAULT_SEEDS = 20
SLOW_SEEDS = 60


def run_class(found: SizeClass, model: onnx.ModelProto, feeds: Feeds, sizes: Sizes) -> Results:
    variant = found.variant(sizes)
    assert variant is not None
    arrays = [feeds[v.name] for v in model.graph.input]
    return [np.array(r) for r in variant.bound_step.run_bound(arrays, on_device=False)]


def find_class(classes: list[SizeClass], compiler: Compiler, sizes: Sizes) -> SizeClass | None:
    """Return a class that has the sizes, compiled if it is new; None if they have none."""
    for found in classes:
        if found.formulas.admits(sizes):
            return found
    made = compile_size_class(compiler, sizes)
    classes += [made] if made is not None else []
    return made


def check_call(
    case: Case, model: onnx.ModelProto, feeds: Feeds, got: Results, session: ort.InferenceSession
) -> None:
    want = session.run(None, feeds)
    case.clear(feeds, got)
    case.clear(feeds, want)
    for name, ours, theirs in zip(case.outputs, got, want, strict=True):
        np.testing.assert_allclose(
            ours, theirs, rtol=2e-4, atol=4e-5, err_msg=f"{name} of {model.graph.node}"
        )


@pytest.mark.one_in(40)
@pytest.mark.parametrize(
    "seed",
    [
        *range(DEFAULT_SEEDS),
        *(pytest.param(s, marks=pytest.mark.slow) for s in range(DEFAULT_SEEDS, SLOW_SEEDS)),
    ],
)
@pytest.mark.parametrize("kind", DRAWS)
def test_random_operators_agree_with_onnxruntime(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = DRAWS[kind](rng)
    model = case.model()
    session = ort.InferenceSession(model.SerializeToString())
    exe = superopt.compile(model, threads=1, specialize="eager")
    classes: list[SizeClass] = []
    for _ in range(CALLS):
        drawn = case.draw_sizes(rng)
        sizes = {s: drawn[s] for s in sorted({d for v in model.graph.input for d in dims(v)})}
        feeds = case.feeds(rng, drawn)
        found = find_class(classes, exe.compiler, sizes)
        if found is not None:
            got = run_class(found, model, feeds, sizes)
        else:  # the length of a mask is not known to be that of past and new keys
            assert "scores" in case.inputs or "mask" in case.integer_inputs
            got = [np.array(r) for r in exe.run(feeds).values()]
            assert not exe.fallback_nodes(sizes)
        check_call(case, model, feeds, got, session)


def dims(v: onnx.ValueInfoProto) -> list[str]:
    return [d.dim_param for d in v.type.tensor_type.shape.dim if d.dim_param]
