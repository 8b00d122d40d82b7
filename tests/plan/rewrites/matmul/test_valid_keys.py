"""Attention to caches: work and results depend on the valid keys alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import superopt
from superopt.compilation.model.compile_class import compile_size_class
from superopt.kernels.loops.tile import For, Stmt
from superopt.plan.program.program import Program

SIZE = 16
Feeds = dict[str, np.ndarray]


def cache_model(heads: int, groups: int, **attrs: object) -> onnx.ModelProto:
    """Attention to a cache of which `valid` keys of each sequence are valid."""
    value, f32 = helper.make_tensor_value_info, TensorProto.FLOAT
    node = helper.make_node("Attention", ["q", "k", "v", "", "", "", "valid"], ["y"], **attrs)
    inputs = [
        value("q", f32, ["b", heads, "s", SIZE]),
        value("k", f32, ["b", groups, "c", SIZE]),
        value("v", f32, ["b", groups, "c", SIZE]),
        value("valid", TensorProto.INT64, ["b"]),
    ]
    outputs = [value("y", f32, ["b", heads, "s", SIZE])]
    graph = helper.make_graph([node], "cache", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)


def draw_feeds(model: onnx.ModelProto, sizes: dict[str, int]) -> Feeds:
    rng, out = np.random.default_rng(0), {}
    for v in model.graph.input[:3]:
        dims = [d.dim_value or sizes[d.dim_param] for d in v.type.tensor_type.shape.dim]
        out[v.name] = rng.standard_normal(dims).astype(np.float32)
    return out


def spoil(feeds: Feeds) -> Feeds:
    """Return the inputs with NaN in the cache behind the valid keys."""
    out = {name: x.copy() for name, x in feeds.items()}
    for b, count in enumerate(feeds["valid"]):
        for name in "kv":
            out[name][b, :, count:] = np.nan
    return out


def ends(body: tuple[Stmt, ...]) -> Iterator[For]:
    """Yield the loops that end at values."""
    for s in body:
        if isinstance(s, For):
            if s.until is not None:
                yield s
            yield from ends(s.body)


def count_loops_with_end(program: Program) -> int:
    return sum(1 for k in program.kernels.values() for _ in ends(k.body))


# Heads, heads of keys, queries, capacity, loops that end at the valid keys: of scores and values,
# and of the copy of the keys that several queries read; of the maximum, exponentials, sum and
# weights of rows, and of fused scores, in a kernel that has all of these.
FORMS = [
    (4, 4, 1, 70, 6),
    (8, 2, 1, 70, 3),
    (4, 4, 5, 130, 8),
    (6, 2, 5, 65, 8),
    (4, 2, 40, 300, 8),
    (2, 1, 70, 900, 8),
    (8, 1, 3, 3000, 3),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(("heads", "groups", "queries", "capacity", "loops"), FORMS)
def test_keys_behind_the_valid_ones_have_no_effect(
    heads: int, groups: int, queries: int, capacity: int, loops: int, causal: int
) -> None:
    model = cache_model(heads, groups, is_causal=causal, softcap=3.0 * causal)
    sizes = {"b": 2, "c": capacity, "s": queries}
    exe = superopt.compile(model, threads=2, specialize="never")
    found = compile_size_class(exe.compiler, sizes)
    assert found is not None
    reference = ReferenceEvaluator(model)
    step = (found.load_steps() or ())[0]
    assert step is not None
    assert count_loops_with_end(step.code.program) == loops  # type: ignore[attr-defined]
    for room in (0, 3):  # the class has more than one capacity
        own = sizes | {"c": capacity + room}
        assert found.formulas.admits(own)
        feeds = draw_feeds(model, own)
        variant = found.variant(own)
        assert variant is not None
        for count in (0, 1, 2, 15, 16, 17, 63, 64, capacity - 1, capacity + room):
            feeds["valid"] = np.array([count, min(count + 5, capacity)])
            (want,) = reference.run(None, feeds)
            for given in (feeds, spoil(feeds)):
                arrays = [given[v.name] for v in model.graph.input]
                (got,) = variant.bound_step.run_bound(arrays, on_device=False)
                np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5, err_msg=str(count))


@pytest.mark.parametrize(("target", "capacity"), [("cpu", 40), ("cpu", 3000), ("reference", 40)])
def test_programs_of_fixed_sizes_have_limits(target: str, capacity: int) -> None:
    model = cache_model(4, 1, is_causal=1)
    sizes = {"b": 2, "c": capacity, "s": 3}
    exe = superopt.compile(model, threads=1, specialize="eager", target=target)
    feeds = draw_feeds(model, sizes) | {"valid": np.array([3, capacity - 19])}
    (want,) = ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_allclose(exe.run(spoil(feeds))["y"], want, rtol=2e-4, atol=2e-5)


def test_attention_without_valid_lengths_has_no_limits() -> None:
    model = cache_model(4, 2)
    del model.graph.input[3]
    del model.graph.node[0].input[3:]
    exe = superopt.compile(model, threads=1, specialize="never")
    found = compile_size_class(exe.compiler, {"b": 2, "c": 70, "s": 5})
    assert found is not None
    step = (found.load_steps() or ())[0]
    assert step is not None
    assert count_loops_with_end(step.code.program) == 0  # type: ignore[attr-defined]
