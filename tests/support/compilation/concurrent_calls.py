"""A small model, its programs, and calls of several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
from onnx import helper

import superopt
from superopt.plan.program.image import LoadedProgram
from tests.support.compilation.models import F, model

THREADS = 8
TIMEOUT_S = 60
W = np.random.default_rng(0).standard_normal((32, 48)).astype(np.float32) / 8


def mlp(rows: int | str = "n") -> onnx.ModelProto:
    """Two products with a softmax between, whose results are in memory."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"], axis=-1),
        helper.make_node("MatMul", ["b", "v"], ["c"]),
        helper.make_node("Add", ["c", "x"], ["y"]),
    ]
    return model(nodes, {"x": (F, [rows, 32])}, ["y"], {"w": W, "v": W.T.copy()})


def rows(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, 32)).astype(np.float32)


def in_threads(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """Return the results of `work`, called with each number, in threads that start together."""
    start = threading.Barrier(count)

    def begin(number: int) -> Any:
        start.wait(TIMEOUT_S)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return [*pool.map(begin, range(count))]


def programs(exe: superopt.Executable) -> list[LoadedProgram]:
    found = {id(p): p for v in exe.variants.values() for s in v.kernel_steps
             for p in [s.code.loaded_program]}  # fmt: skip
    return [*found.values()]
