"""Kernels after operators whose results have a size that only a run gives."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.compilation.frontend.graph_ports import numpy_dtype, static_shape
from superopt.compilation.model.classes.runtime_sizes import RuntimeSizedSegment
from superopt.compilation.model.compile_class import compile_size_class
from superopt.compilation.model.steps import KernelStep
from superopt.errors import RuntimeMismatch
from superopt.te.expr.dtype import F32
from tests.support.compilation.models import F, model, near, reference

pytest.importorskip("onnxruntime")
WIDTH = 64
RNG = np.random.default_rng(0)
W = RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


def selected_rows(rows: int | str) -> onnx.ModelProto:
    """Three products of all rows, and three of those that a mask selects."""
    nodes = [
        helper.make_node("NonZero", ["m"], ["nz"]),
        helper.make_node("Squeeze", ["nz", "zero"], ["i"]),
    ]
    for k, (start, end) in enumerate((("x", "a"), ("g", "y"))):
        names = [start, *(f"t{k}{n}" for n in range(2)), end]
        for one, two in itertools.pairwise(names):
            nodes.append(helper.make_node("MatMul", [one, "w"], [f"{two}_"]))
            nodes.append(helper.make_node("Tanh", [f"{two}_"], [two]))
    nodes.insert(-6, helper.make_node("Gather", ["a", "i"], ["g"]))
    inputs = {"x": (F, [rows, WIDTH]), "m": (TensorProto.BOOL, [rows])}
    return model(nodes, inputs, ["y"], {"w": W, "zero": np.array([0])})


def feeds(rows: int, count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng((rows, count))
    chosen = np.zeros(rows, np.bool_)
    chosen[rng.permutation(rows)[:count]] = True
    return {"x": rng.standard_normal((rows, WIDTH)).astype(np.float32), "m": chosen}


def runtime_sized(variant: superopt.compilation.model.steps.Variant) -> RuntimeSizedSegment:
    (found,) = (s for s in variant if isinstance(s, RuntimeSizedSegment))
    return found


@pytest.mark.parametrize("threads", [1, 2])
def test_of_inputs_with_static_shapes(threads: int) -> None:
    m = selected_rows(600)
    exe = superopt.compile(m, threads=threads)
    for count in (600, 0, 64, 1, 300, 65, 599, 300, 0):
        near(exe.run(feeds(600, count)), reference(m, feeds(600, count)))
    ran = runtime_sized(exe.variant({})).bound
    assert isinstance(ran[(300,)].step, KernelStep)
    assert not isinstance(ran[(0,)].step, KernelStep)
    fallbacks = {n.op.title for n, _ in exe.fallbacks()}
    assert "NonZero" in fallbacks
    assert "MatMul" not in fallbacks


@pytest.mark.parametrize("specialize", ["never", "background", "eager"])
def test_of_inputs_with_symbolic_sizes(specialize: str) -> None:
    m = selected_rows("n")
    exe = superopt.compile(m, threads=1, specialize=specialize)  # type: ignore[arg-type]
    for rows, count in ((500, 300), (500, 0), (640, 640), (70, 70), (500, 301), (3, 2), (700, 1)):
        near(exe.run(feeds(rows, count)), reference(m, feeds(rows, count)))
    assert len(exe.size_classes.classes) == (specialize != "eager")
    bound = [v for v in exe.variants.values() if v.is_of_class]
    ran = [at.step for v in bound for at in runtime_sized(v).bound.values()]
    assert any(isinstance(s, KernelStep) for s in ran) == (specialize != "eager")


def test_calls_in_several_threads() -> None:
    m = selected_rows("n")
    exe = superopt.compile(m, threads=1, specialize="never")
    cases = [(500, 300), (640, 100), (900, 650)]
    wanted = {at: reference(m, feeds(*at)) for at in cases}
    failures: list[BaseException] = []

    def call(seed: int) -> None:
        try:
            for k in np.random.default_rng(seed).integers(0, len(cases), 40):
                near(exe.run(feeds(*cases[k])), wanted[cases[k]])
        except BaseException as e:  # pytest sees those of its own thread only
            failures.append(e)

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_a_shape_that_was_not_planned_is_an_error() -> None:
    exe = superopt.compile(selected_rows("n"), threads=1)
    made = compile_size_class(exe.compiler, {"n": 500})
    assert made is not None
    variant = made.variant({"n": 500})
    assert variant is not None
    step = runtime_sized(variant)
    sizes = {"n": 500, **{b.name: 300 for b in step.code.bindings}}
    arrays = [np.zeros(static_shape(v.type, sizes), numpy_dtype(v.type)) for v in step.values]
    (found,) = step.compute(arrays)
    assert found.shape == (300, WIDTH)
    wide = next(n for n, v in enumerate(step.segment.inputs) if v.type.dtype == F32)
    arrays[wide] = arrays[wide][:, 1:].copy()
    with pytest.raises(RuntimeMismatch):
        step.compute(arrays)
