"""Which models with products of two activations run in onnxruntime."""

from __future__ import annotations

import onnx
import pytest

from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.graph.quantization.runtime_products import has_slow_integer_products

SCORES = "t = Transpose<perm = [0, 2, 1]>(x) s = MatMulInteger(x, t)"


@pytest.mark.parametrize(("columns", "is_slow"), [(32, True), (4096, False)])
@pytest.mark.parametrize("batch", ["2", "N"])
def test_few_products_of_two_activations_run_in_kernels(
    columns: int, is_slow: bool, batch: str
) -> None:
    """16 * 16 * 64 multiplications of activations, 16 * 64 * columns of weights."""
    m = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (uint8[{batch}, 16, 64] x) => (int32[{batch}, 16, 16] s, int32[{batch}, 16, {columns}] p)
        <int8[64, {columns}] w = {{{", ".join(["1"] * 64 * columns)}}}> {{
        {SCORES} p = MatMulInteger(x, w) }}""")
    assert has_slow_integer_products(import_model(read_model(m)).graph) is is_slow


def test_product_of_two_inputs_runs_in_onnxruntime() -> None:
    m = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (uint8[4, 8] x, int8[8, 6] w) => (int32[4, 6] y) { y = MatMulInteger(x, w) }""")
    assert has_slow_integer_products(import_model(read_model(m)).graph)
