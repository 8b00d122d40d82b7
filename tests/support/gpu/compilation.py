"""Models compiled for a GPU: inputs, allowed errors, programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

import numpy as np
import onnx

from superopt.compilation.cuda import load_compiler
from superopt.onnx_io.read.source import read_model
from superopt.plan.program.program import Program
from tests.support.compilation.models import F
from tests.support.gpu.models import drawn

UNITS = {"fp32": 2e-6, "tf32": 3e-3, "fp16": 3e-3, "bf16": 3e-2}


def feeds(m: onnx.ModelProto) -> dict[str, np.ndarray]:
    out = {}
    for v in m.graph.input:
        shape = [d.dim_value or 3 for d in v.type.tensor_type.shape.dim]
        whole = v.type.tensor_type.elem_type != F
        if whole:
            rng = np.random.default_rng(crc32(v.name.encode()))
            out[v.name] = rng.integers(0, 30, shape)
        else:
            out[v.name] = drawn(*shape, of=v.name) + (v.name == "z") * 5
    return out


def near(got: Mapping[str, Any], wanted: Mapping[str, Any], precision: str) -> None:
    assert list(got) == list(wanted)
    for name, b in wanted.items():
        a = got[name]
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        size = max(float(np.abs(b.astype(np.float64)).max()), 1e-30)
        assert np.abs(a.astype(np.float64) - b).max() <= UNITS[precision] * size


def program(m: onnx.ModelProto, precision: str = "fp32") -> Program:
    return load_compiler.compile_model(read_model(m), precision).variant({}).program
