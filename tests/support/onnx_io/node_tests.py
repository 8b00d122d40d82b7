"""ONNX's node tests, and which are left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

# Cases whose expected values are not what their operator says, or are drawn at random.
EXCEPT = {
    "test_training_dropout": "random",
    "test_training_dropout_default": "random",
    "test_training_dropout_default_mask": "random",
    "test_training_dropout_mask": "random",
    "test_bernoulli": "random",
    "test_maxunpool_export_with_output_shape": "onnxruntime's result is another one",
    "test_resize_downsample_scales_cubic_align_corners": "of an older definition",
    "test_resize_downsample_scales_linear_align_corners": "of an older definition",
}


def arrays(some: Any) -> list[Any]:
    return [numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x for x in some]


def same(got: Any, wanted: Any) -> None:
    if isinstance(wanted, list) or wanted is None:
        return
    got = np.asarray(got)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.kind not in "fcV" or wanted.dtype.names is not None:
        np.testing.assert_array_equal(got, wanted)
        return
    kind = np.complex128 if wanted.dtype.kind == "c" else np.float64
    a, b = got.astype(kind), wanted.astype(kind)
    finite = b[np.isfinite(b)]
    scale = float(np.sqrt(np.mean(np.abs(finite) ** 2))) if finite.size else 0.0
    far = {8: (1e-6, 1e-7), 4: (1e-3, 2e-6)}.get(wanted.dtype.itemsize, (1e-2, 1e-2))
    np.testing.assert_allclose(a, b, rtol=far[0], atol=far[1] * scale)
