"""Which contrib operators are replaced by ONNX operators, at which sizes they are compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import superopt
from superopt.compilation.model.compile_class import compile_size_class
from superopt.compilation.model.size_classes import SizeClass
from superopt.onnx_io.import_.contrib.expand import CONTRIB_EXPANSIONS
from superopt.onnx_io.transform.contrib_ops import DECOMPOSITIONS
from tests.support.onnx_io.decoder_operators import (
    DRAWS,
    Case,
    attention_with_past,
    grouped_query_attention,
)

STEPS = {"attention": attention_with_past, "grouped": lambda rng: grouped_query_attention(rng)}


def test_the_page_names_each_operator(root: Path) -> None:
    page = (root / "docs" / "reference" / "contrib_operators.md").read_text(encoding="utf-8")
    table = page.partition("|---|---|")[2].partition("\n\n")[0]
    assert all(f"`{name}`" in table for name in (*DECOMPOSITIONS, *CONTRIB_EXPANSIONS))


def test_each_expansion_is_tried() -> None:
    kinds = (make(np.random.default_rng(seed)) for make in DRAWS.values() for seed in range(9))
    ops = {(n.domain, n.op_type) for case in kinds for n in case.nodes}
    assert {op for domain, op in ops if domain == "com.microsoft"} >= CONTRIB_EXPANSIONS.keys()


def growing(seed: int, make: Callable[[np.random.Generator], Case]) -> Case:
    """Return a case with a growing past and no mask of its own length."""
    for n in range(seed, seed + 100):
        case = make(np.random.default_rng(n))
        if "p" in {d for s in case.inputs.values() for d in s} and "mask" not in case.inputs:
            return case
    raise AssertionError("no such case")


def admitted(classes: list[SizeClass], sizes: dict[str, int]) -> SizeClass | None:
    return next((c for c in classes if c.formulas.admits(sizes)), None)


@pytest.mark.parametrize("kind", STEPS)
def test_few_classes_have_all_lengths_of_the_past(kind: str) -> None:
    """Steps of one token after a past of 1 to 300: few programs, all of which are right."""
    case = growing(3, STEPS[kind])
    model, rng = case.model(), np.random.default_rng(0)
    exe = superopt.compile(model, threads=1, specialize="never")
    session = ort.InferenceSession(model.SerializeToString())
    names = {d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim} - {""}
    classes: list[SizeClass] = []
    for past in range(1, 301):
        sizes = {"b": 1, "s": 1, "p": past, "t": past + 1}
        own = {name: sizes[name] for name in sorted(names)}
        found = admitted(classes, own)
        if found is None:
            found = compile_size_class(exe.compiler, own)
            assert found is not None
            classes.append(found)
        if past % 7 and past > 70:
            continue
        feeds = case.feeds(rng, sizes)
        variant = found.variant(own)
        assert variant is not None
        arrays = [feeds[v.name] for v in model.graph.input]
        got = [np.array(x) for x in variant.bound_step.run_bound(arrays, on_device=False)]
        want = session.run(None, feeds)
        case.clear(feeds, got)
        case.clear(feeds, want)
        for ours, theirs in zip(got, want, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=4e-5, err_msg=str(past))
    assert len(classes) <= 8
