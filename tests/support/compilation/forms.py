"""Graphs of a few nodes, their inputs, and the program that they are compiled to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

import superopt
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.plan.program.program import Program
from tests.support.compilation.models import F, model

node = helper.make_node
Shapes = Mapping[str, Sequence[int]]


def weights(**shapes: Sequence[int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: (rng.standard_normal(s) / max(np.prod(s[1:]) ** 0.5, 1)).astype(np.float32)
        for name, s in shapes.items()
    }


def build(
    nodes: list, shapes: Shapes, known: Mapping[str, np.ndarray] | None = None, out: str = "y"
) -> onnx.ModelProto:
    given_ = {name: (F, list(s)) for name, s in shapes.items()}
    return model(nodes, given_, [out], dict(known or {}))


CONV = {"pads": [1] * 4}


def feeds_of(shapes: Shapes, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def program_of(m: onnx.ModelProto) -> Program:
    (step,) = superopt.compile(m).variants[()]
    assert isinstance(step, NativeSegment)
    return step.code.program
