"""Classes of models as exporters write them: shapes computed from sizes, parts in onnxruntime, and
sizes that only a run gives."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import onnx
import pytest

import superopt
from superopt import ort
from superopt.compilation.fallback.session_segment import OrtSegment
from superopt.compilation.model.classes.empty_outputs import EmptyOutputs
from superopt.compilation.model.classes.runtime_sizes import RuntimeSizedCode, RuntimeSizedSegment
from superopt.compilation.model.compile_class import compile_size_class
from superopt.compilation.model.size_classes import SizeClass
from superopt.compilation.model.steps import KernelStep, Variant
from superopt.errors import SuperoptError
from superopt.plan.graph import partition
from tests.support.compilation.models import near
from tests.support.compilation.size_patterns import (
    pattern_feeds,
    pattern_model,
    read_patterns,
    size_names,
)

pytest.importorskip("onnxruntime")
EXAMPLE = {"b": 2, "s": 24, "t": 24, "h": 12, "w": 12, "u": 16, "v": 10, "p": 6, "k": 3}
SIZES = (1, 2, 3, 5, 8, 12, 16, 24, 31, 40, 64, 65, 100, 130)
CALLS = 16
SIZE_PATTERNS = read_patterns("size_patterns.txt")
PART_PATTERNS = read_patterns("part_patterns.txt")
# Patterns whose results have a size that only a run gives.
RUNTIME_SIZED = ("topk runtime", "nonzero", "nms", "unique", "compress", "nonzero mask scatter")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(partition, "SWITCH_US", 0.0)  # kernels for the smallest parts, too


def sizes_of_calls(m: onnx.ModelProto, rng: np.random.Generator) -> Iterator[dict[str, int]]:
    names = size_names(m)
    yield {name: EXAMPLE[name] for name in names}
    for _ in range(CALLS):
        yield {name: int(rng.choice(SIZES)) for name in names}


def compile_pattern(m: onnx.ModelProto) -> tuple[superopt.Executable, SizeClass]:
    exe = superopt.compile(m, threads=1)
    made = compile_size_class(exe.compiler, {name: EXAMPLE[name] for name in size_names(m)})
    assert made is not None
    return exe, made


def check_class(m: onnx.ModelProto, name: str) -> list[Variant]:
    """Compare with onnxruntime at all sizes that a class admits; return what ran."""
    exe, made = compile_pattern(m)
    session = ort.load_session(m.SerializeToString())
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    ran = []
    for sizes in sizes_of_calls(m, rng):
        given = pattern_feeds(m, sizes, rng)
        try:
            wanted = ort.run(session, given)
        except SuperoptError:  # the model has no result at these sizes
            continue
        if made.formulas.admits(sizes):
            variant = made.variant(sizes)
            assert variant is not None
            near(exe.run_variant(variant, exe.input_arrays(given), on_device=False), wanted)
            ran.append(variant)
    assert ran, "the class does not admit the sizes for which it was compiled"
    return ran


# Patterns with a node whose shape is not known for all sizes.
UNKNOWN_SHAPES = (
    "slice last k", "pos past", "causal buffer", "resize to other", "resize linear other",
    "split num", "reshape windows", "where size", "resize scale div", "topk const",
)  # fmt: skip
# Of these, those whose shape is known for sizes with a property, which the class has as a guard.
SUBSTITUTED = {
    "slice last k": ("s", range(3, 200), [1, 2]),
    "split num": ("s", range(2, 200, 2), range(1, 200, 2)),
    "reshape windows": ("h", range(12, 200, 4), [1, 3, 13, 14, 15]),
    "topk const": ("s", range(5, 16), range(1, 5)),
}
FATAL_ZEROS = {"einsum"}  # onnxruntime ends the process at some of these
EMPTY = {"view b s h d": "bs", "half div": "bs", "pad to multiple": "s", "range pos expand": "s"}


@pytest.mark.parametrize("name", SIZE_PATTERNS)
def test_shapes_are_known_for_all_sizes(name: str) -> None:
    model = superopt.compile(pattern_model(*SIZE_PATTERNS[name]), specialize="never").model
    assert bool(model.opaque_reasons) == (name in UNKNOWN_SHAPES)


@pytest.mark.parametrize("name", SUBSTITUTED)
def test_a_property_of_sizes_makes_shapes_known(name: str) -> None:
    """All nodes have kernels."""
    which, admitted, others = SUBSTITUTED[name]
    m = pattern_model(*SIZE_PATTERNS[name])
    sizes = {d: EXAMPLE[d] for d in size_names(m)}
    sizes[which] = admitted[-1]
    made = compile_size_class(superopt.compile(m, specialize="never").compiler, sizes)
    assert made is not None
    ran = made.variant(sizes)
    assert ran is not None
    assert all(isinstance(s, KernelStep) for s in ran)
    assert made.formulas.admits(sizes)
    assert not any(made.formulas.admits(sizes | {which: n}) for n in others)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", sorted({*SIZE_PATTERNS, *PART_PATTERNS} - FATAL_ZEROS))
def test_sizes_of_zero(name: str) -> None:
    """What onnxruntime computes, where it does."""
    m = pattern_model(*(SIZE_PATTERNS | PART_PATTERNS)[name])
    session = ort.load_session(m.SerializeToString())
    exe = superopt.compile(m, threads=1, specialize="never")
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for zero in size_names(m):
        sizes = {d: EXAMPLE[d] for d in size_names(m)} | {zero: 0}
        made = compile_size_class(exe.compiler, sizes)
        for at in (sizes, *({**more, zero: 0} for more in sizes_of_calls(m, rng))):
            given = pattern_feeds(m, at, rng)
            try:
                wanted = ort.run(session, given)
            except SuperoptError:  # the model has no result at these sizes
                continue
            near(exe.run(given), wanted)
            if made is not None and made.formulas.admits(at):
                variant = made.variant(at)
                assert variant is not None
                near(exe.run_variant(variant, exe.input_arrays(given), on_device=False), wanted)


@pytest.mark.parametrize(("name", "zero"), [(n, z) for n, some in EMPTY.items() for z in some])
def test_empty_outputs_are_not_computed(name: str, zero: str) -> None:
    m = pattern_model(*SIZE_PATTERNS[name])
    exe = superopt.compile(m, threads=1)
    for n in (EXAMPLE["s"], 77):
        sizes = {"b": 3, "s": n} | {zero: 0}
        assert exe.run(pattern_feeds(m, sizes, np.random.default_rng(0)))["y"].size == 0
    assert len(exe.size_classes.empty) == 1
    assert exe.shape_policy.fallback is None
    assert all(isinstance(s, EmptyOutputs) for v in exe.variants.values() for s in v)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", SIZE_PATTERNS)
def test_shapes_that_are_computed_from_sizes(name: str) -> None:
    check_class(pattern_model(*SIZE_PATTERNS[name]), name)


@pytest.mark.parametrize("name", PART_PATTERNS)
def test_parts_in_onnxruntime(name: str) -> None:
    ran = check_class(pattern_model(*PART_PATTERNS[name]), name)
    assert any(isinstance(s, OrtSegment) for v in ran for s in v)
    assert all(any(not isinstance(s, OrtSegment) for s in v) for v in ran)


@pytest.mark.parametrize("name", RUNTIME_SIZED)
def test_sizes_that_only_a_run_gives(name: str) -> None:
    """Kernels run at those that their class admits; onnxruntime at others, also at 0."""
    m = pattern_model(*PART_PATTERNS[name])
    exe, made = compile_pattern(m)
    assert any(isinstance(s, RuntimeSizedCode) for s in made.load_steps() or ())
    session = ort.load_session(m.SerializeToString())
    kinds = set()
    for s in (3, 300):
        sizes = dict.fromkeys(size_names(m), 1) | {"s": s}
        variant = made.variant(sizes)
        assert variant is not None
        for scale in (0, 1):
            given = pattern_feeds(m, sizes, np.random.default_rng(s))
            given = {n: x if n == "k" else x * np.array(scale, x.dtype) for n, x in given.items()}
            wanted = ort.run(session, given)
            for _ in range(2):
                near(exe.run_variant(variant, exe.input_arrays(given), on_device=False), wanted)
        (step,) = (s for s in variant if isinstance(s, RuntimeSizedSegment))
        kinds |= {isinstance(at.step, KernelStep) for at in step.bound.values()}
    assert kinds == {True, False}
