"""Products with weights of few bits: which algorithm computes them, and with which instructions."""

from __future__ import annotations

import pytest

import superopt
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.kernels.algorithms.cpu import block_scaled_gemm
from superopt.kernels.llvm.codegen import kernel_text
from superopt.kernels.llvm.prefetch import STREAM_DISTANCE_BYTES, plan_prefetches
from superopt.kernels.runtime.target_cpu import LEVELS
from tests.support.compilation.nbits import NBitsProduct
from tests.support.kernels.build import plan_model


@pytest.mark.parametrize(
    ("rows", "name"), [(1, "block_sums"), (15, "block_sums"), (16, "block_gemm")]
)
def test_many_rows_share_decoded_weights(rows: int, name: str) -> None:
    program = plan_model(NBitsProduct(256, 192).model([rows]), "x86-64-v4")
    assert [o.algorithm for o in program.options.values()] == [name]


@pytest.mark.parametrize(("level", "permutes"), [("x86-64-v4", True), ("x86-64-v3", False)])
@pytest.mark.parametrize("rows", [1, 20])
def test_avx512_decodes_by_a_table(rows: int, level: str, permutes: bool) -> None:
    (kernel,) = plan_model(NBitsProduct(256, 192).model([rows]), level).kernels.values()
    text = kernel_text(kernel, LEVELS[level].width)
    assert ("permvar" in text) == permutes
    assert ("uitofp" in text) != permutes


def test_each_word_is_prefetched_once() -> None:
    """Its eight fields are decoded from one load."""
    (kernel,) = plan_model(NBitsProduct(2048, 2048, 128).model([1]), "x86-64-v4").kernels.values()
    assert [t.dtype.name for t in plan_prefetches(kernel, 64)] == ["u32"]
    text = kernel_text(kernel, 64)
    vectors = block_scaled_gemm.PANEL_VECTORS
    assert text.count("call void @llvm.prefetch") == vectors
    assert text.count("load <16 x i32>") == vectors
    assert text.count("call <16 x float> @llvm.x86.avx512.permvar") == 8 * vectors


def test_zero_points_take_no_instruction_of_each_weight() -> None:
    """They are taken from the sum of a block: a vector of weights is a shift, a table look-up and a
    multiply-add, as without them."""
    texts = []
    for zero in ("", "packed"):
        product = NBitsProduct(256, 192, 32, zero=zero)
        (kernel,) = plan_model(product.model([1]), "x86-64-v4").kernels.values()
        texts.append(kernel_text(kernel, 64))
    vectors, words = block_scaled_gemm.PANEL_VECTORS, 4
    assert [t.count("call <16 x float> @llvm.x86.avx512.permvar") for t in texts] == [
        8 * words * vectors
    ] * 2
    subtracted = [t.count("fsub <16 x float>") + t.count("fsub contract <16 x") for t in texts]
    assert subtracted[1] - subtracted[0] <= 2 * vectors


def test_small_weights_are_prefetched_where_one_row_reads_them() -> None:
    """Those of other products are read before they are read again. They are read once: what comes
    soon after is prefetched, and not what follows all of them."""
    for rows, wanted in ((1, {"u32": STREAM_DISTANCE_BYTES}), (64, {})):
        (kernel,) = plan_model(NBitsProduct(768, 768).model([rows]), "x86-64-v4").kernels.values()
        found = plan_prefetches(kernel, 64)
        assert {t.dtype.name: p.distance_bytes for t, p in found.items()} == wanted


@pytest.mark.one_in(2)
@pytest.mark.parametrize("least", [1, 1000])
@pytest.mark.parametrize("terms", [64, 100_000])
def test_both_algorithms_compute_any_number_of_rows(
    least: int, terms: int, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path))
    monkeypatch.setattr(block_scaled_gemm, "MIN_GEMM_ROWS", least)
    monkeypatch.setattr(block_scaled_gemm, "MAX_PANEL_TERMS", terms)
    for product in (NBitsProduct(256, 72, 32, zero="packed"), NBitsProduct(90, 40, 16, bias=True)):
        for rows in (1, 5, 21):
            exe = superopt.compile(product.model([rows]), threads=1)
            a = product.draw_rows([rows])
            product.check(a, exe.run({"a": a})["y"])
            (variant,) = exe.variants.values()
            (step,) = variant.steps
            assert isinstance(step, NativeSegment)
            few = "folded_zeros" if product.zero else "block_sums"
            wanted = "block_gemm" if least == 1 else few
            assert {o.algorithm for o in step.program.options.values()} == {wanted}
