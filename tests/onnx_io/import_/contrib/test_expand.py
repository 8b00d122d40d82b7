"""Which contrib operators are replaced by ONNX operators, at which sizes they are compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto

import superopt
from superopt.compilation.model.compile_class import compile_size_class
from superopt.compilation.model.size_classes import SizeClass
from superopt.onnx_io.import_.contrib.expand import CONTRIB_EXPANSIONS
from superopt.onnx_io.transform.contrib_ops import DECOMPOSITIONS
from tests.support.onnx_io.decoder_operators import (
    DRAWS,
    Case,
    attention_with_past,
    draw_floats,
    grouped_query_attention,
)
from tests.support.onnx_io.quantized_operators import DRAWS as QUANTIZED_DRAWS

STEPS = {"attention": attention_with_past, "grouped": lambda rng: grouped_query_attention(rng)}


def test_the_page_names_each_operator(root: Path) -> None:
    page = (root / "docs" / "reference" / "contrib_operators.md").read_text(encoding="utf-8")
    table = page.partition("|---|---|")[2].partition("\n\n")[0]
    assert all(f"`{name}`" in table for name in (*DECOMPOSITIONS, *CONTRIB_EXPANSIONS))


def test_each_expansion_is_tried() -> None:
    kinds = (make(np.random.default_rng(seed)) for make in DRAWS.values() for seed in range(9))
    ops = {(n.domain, n.op_type) for case in kinds for n in case.nodes}
    tried = {op for domain, op in ops if domain == "com.microsoft"} | QUANTIZED_DRAWS.keys()
    assert tried >= CONTRIB_EXPANSIONS.keys()


def growing(seed: int, make: Callable[[np.random.Generator], Case]) -> Case:
    """Return a case with a growing past and no mask of its own length."""
    for n in range(seed, seed + 100):
        case = make(np.random.default_rng(n))
        if "p" in {d for s in case.inputs.values() for d in s} and "mask" not in case.inputs:
            return case
    raise AssertionError("no such case")


def admitting_class(classes: list[SizeClass], sizes: dict[str, int]) -> SizeClass | None:
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
        found = admitting_class(classes, own)
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


def test_layers_of_contrib_operators_are_one_program() -> None:
    """Norms, which are decomposed before the import, around attention, which is expanded there:
    a prompt into an empty cache, then steps of one token, in onnxruntime and here."""
    groups, heads, size, capacity = 1, 2, 16, 24
    width, rng = heads * size, np.random.default_rng(0)
    case = Case("layers")
    case.inputs = {"x": ("b", "s", width)}
    case.integer_inputs = {"last": (TensorProto.INT32, ("b",)), "total": (TensorProto.INT32, ())}
    case.outputs = {"y": ("b", "s", width)}
    case.constants = {"gamma": rng.random(width, np.float32)}
    case.add("SimplifiedLayerNormalization", ["x", "gamma"], ["n0"], axis=-1, epsilon=1e-5)
    skip = "x"
    for k in range(2):
        wide = width + 2 * groups * size
        for name, shape in ((f"u{k}", (width, wide)), (f"w{k}", (width, width))):
            case.constants[name] = draw_floats(rng, *shape) / 4
        for name in ("k", "v"):
            case.inputs[f"p{name}{k}"] = ("b", groups, "c", size)
            case.outputs[f"n{name}{k}"] = ("b", groups, "c", size)
        case.add("MatMul", [f"n{k}", f"u{k}"], [f"q{k}"])
        names = [f"q{k}", "", "", f"pk{k}", f"pv{k}", "last", "total"]
        results = [f"a{k}", f"nk{k}", f"nv{k}"]
        counts = {"num_heads": heads, "kv_num_heads": groups}
        case.add("GroupQueryAttention", names, results, "com.microsoft", **counts)
        case.add("MatMul", [f"a{k}", f"w{k}"], [f"o{k}"])
        outs = [f"n{k + 1}" if k == 0 else "y", "", "", f"sum{k}"]
        case.add(
            "SkipSimplifiedLayerNormalization", [skip, f"o{k}", "gamma"], outs, "com.microsoft",
            epsilon=1e-5,
        )  # fmt: skip
        skip = f"sum{k}"
    model = case.model()
    exe = superopt.compile(model, threads=1, specialize="never")
    session = ort.InferenceSession(model.SerializeToString())
    caches = [n for n in case.inputs if n != "x"]
    ours = {n: np.full((1, groups, capacity, size), np.nan, np.float32) for n in caches}
    theirs = {n: np.zeros_like(x) for n, x in ours.items()}
    classes: list[SizeClass] = []
    for start, length in ((0, 5), *((5 + k, 1) for k in range(capacity - 5))):
        x = draw_floats(rng, 1, length, width)
        end = start + length
        more = {"x": x, "last": np.array([end - 1], np.int32), "total": np.array(end, np.int32)}
        sizes = {"b": 1, "c": capacity, "s": length}
        found = admitting_class(classes, sizes)
        if found is None:
            found = compile_size_class(exe.compiler, sizes)
            assert found is not None
            classes.append(found)
        variant = found.variant(sizes)
        assert variant is not None
        arrays = [{**more, **ours}[v.name] for v in model.graph.input]
        got = [np.array(r) for r in variant.bound_step.run_bound(arrays, on_device=False)]
        want = session.run(None, {**more, **theirs})
        np.testing.assert_allclose(got[0], want[0], rtol=2e-4, atol=4e-5, err_msg=str(start))
        ours = dict(zip(caches, got[1:], strict=True))
        theirs = dict(zip(caches, want[1:], strict=True))
    assert len(classes) == 2
