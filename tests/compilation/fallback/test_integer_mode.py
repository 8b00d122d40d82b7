"""How onnxruntime multiplies 8-bit integers exactly: by the processor's flags and the model."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper

import superopt
from superopt.compilation.fallback import ort_segment
from superopt.compilation.fallback.integer_mode import (
    DEFAULT_MODE,
    choose_integer_mode,
    saturates_uint8_products,
)
from superopt.onnx_io.check.int8_saturation import Remedy, SaturatingNode
from tests.support.compilation.models import model

AVX2 = {"avx", "avx2", "fma"}  # Haswell
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}  # Skylake-X


@pytest.mark.parametrize(
    ("flags", "architecture", "system", "found"),
    [
        (AVX2, "x86_64", "Linux", True),
        (AVX2, "AMD64", "Windows", True),
        (AVX512, "x86_64", "Linux", True),
        (AVX2 | {"avx_vnni"}, "x86_64", "Linux", False),  # Alder Lake
        (AVX512 | {"avx512_vnni"}, "x86_64", "Linux", False),  # Cascade Lake, Zen 4
        (AVX512 | {"avx_vnni", "avx512_vnni", "amx_int8"}, "x86_64", "Linux", False),
        (AVX512 | {"avx_vnni"}, "x86_64", "Linux", True),  # MLAS takes its kernels for AVX-512
        (AVX2 | {"avx512f", "avx_vnni"}, "x86_64", "Linux", False),  # these need BW, DQ and VL
        ({"avx", "avx2"}, "x86_64", "Linux", False),  # no FMA: kernels for SSE2
        ({"sse2", "sse4_1"}, "x86_64", "Linux", False),
        ({"sse2", "sse4_1"}, "AMD64", "Windows", True),
        (set(), "x86_64", "Linux", True),  # unknown
        ({"asimd", "asimddp"}, "aarch64", "Linux", False),
        (set(), "arm64", "Darwin", False),
    ],
)
def test_processors(flags: set[str], architecture: str, system: str, found: bool) -> None:
    assert saturates_uint8_products(flags, architecture, system) is found


FIXED, FLOATS, NONE = (
    SaturatingNode(op, "y", remedy)
    for op, remedy in (
        ("MatMulInteger", Remedy.UNSIGNED_WEIGHTS), ("MatMul", Remedy.NO_FUSION),
        ("QLinearMatMul", Remedy.NONE),
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "level", "unsigned", "notes"),
    [
        ((), "all", False, []),
        ((FIXED,), "all", True, ["MatMulInteger y: .* by uint8 weights"]),
        ((FIXED, FIXED), "all", True, ["MatMulInteger y and 1 more: .* by uint8 weights"]),
        ((FLOATS,), "basic", False, ["MatMul y: .* multiplies floats"]),
        ((NONE,), "all", False, ["QLinearMatMul y: .* may saturate .*reduce_range"]),
        ((FLOATS, NONE), "basic", False, ["MatMul y: .* floats", "QLinearMatMul y: .* may"]),
        ((FIXED, FLOATS), "all", True, ["MatMulInteger y: .* uint8", "MatMul y: .* may saturate"]),
    ],
)
def test_models(
    nodes: tuple[SaturatingNode, ...], level: str, unsigned: bool, notes: list[str]
) -> None:
    found = choose_integer_mode(nodes)
    assert (found.level, found.unsigned_weights) == (level, unsigned)
    assert len(found.notes) == len(notes)
    for note, pattern in zip(found.notes, notes, strict=True):
        assert re.search(pattern, note)
    assert (found == DEFAULT_MODE) == (not nodes)


@pytest.mark.parametrize(
    ("weight", "flags", "asked"),
    [
        (127, AVX2, ("all", True)),
        (64, AVX2, ("all", False)),
        (127, AVX512 | {"avx512_vnni"}, ("all", False)),
    ],
)
def test_the_session_is_opened_so(
    weight: int, flags: set[str], asked: tuple[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the flags of the processor, which are in one place; results are exact on any."""
    monkeypatch.setattr(ort_segment, "processor_info", lambda: ("one", [*flags]))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    opened = []
    own = ort_segment.ort.load_part_session

    def session(file: object, threads: int, *how: object) -> object:
        opened.append(how)
        return own(file, threads, *how)  # type: ignore[arg-type]

    monkeypatch.setattr(ort_segment.ort, "load_part_session", session)
    # the zero point of the weights is an input, so that no kernel is fast
    node = helper.make_node("MatMulInteger", ["x", "w", "", "v"], ["y"])
    held = {"w": np.full((4, 4), weight, np.int8)}
    m = model([node], {"x": (T.UINT8, [2, 4]), "v": (T.INT8, [])}, ["y"], held)
    got = superopt.compile(m)(x=np.full((2, 4), 255, np.uint8), v=np.int8(0))["y"]
    assert (got == 255 * 4 * weight).all()
    assert opened == [asked]
