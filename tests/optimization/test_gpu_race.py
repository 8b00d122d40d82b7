"""What `optimize` for a GPU times, in Triton's interpreter or on a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from superopt.compilation.cuda.graph_timing import gpu_timers
from superopt.compilation.cuda.load_compiler import compile_model
from superopt.compilation.node_timing import random_inputs
from superopt.cost.interleaved_times import time_interleaved
from superopt.cost.speedup import MIN_ROUNDS
from superopt.onnx_io.read.source import read_model
from tests.support.gpu.device import REAL
from tests.support.gpu.models import MODELS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


def test_the_interpreter_is_no_gpu() -> None:
    assert gpu_timers("fp16").is_predicted != REAL
    assert gpu_timers("fp16", may_measure=False).is_predicted


@pytest.mark.parametrize("name", ["pointwise", "a convolution"])
def test_models_are_timed_in_turns(name: str, tmp_path: Path) -> None:
    paths = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path in paths:
        onnx.save(MODELS[name](), path)
    feeds = random_inputs(compile_model(read_model(paths[0]), "fp16"))
    asked: list[int] = []

    def stop(times: list[list[float]]) -> bool:
        asked.append(len(times[0]))
        return True

    make_clock = gpu_timers("fp16").make_clock
    clocks = [make_clock(path, feeds, threads=1) for path in paths]
    times = time_interleaved(clocks, 60.0, 99, 0, stop)
    assert [len(t) for t in times] == [MIN_ROUNDS] * 2
    assert np.all(np.array(times) > 0)
    assert asked == list(range(MIN_ROUNDS + 1))
