"""Random models of symbolic sizes on a GPU: each class gives onnxruntime's results at all sizes
that it admits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest

import superopt
from superopt import ort
from superopt.compilation.cuda.segments import SymbolicGpuSegment
from superopt.compilation.model.compile_class import compile_size_class
from superopt.compilation.model.size_classes import SizeClass
from tests.support.compilation.class_checks import draw_sizes
from tests.support.compilation.dynamic_convolutions import convolutional_model
from tests.support.compilation.dynamic_graphs import dynamic_model
from tests.support.gpu.device import choose

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.gpu
SIZES = (1, 2, 3, 4, 5, 7, 8, 9), (15, 16, 17, 20, 23), (31, 33)
MAX_SIZES = 10  # at which a model is checked
MAX_EXAMPLES = 6  # of these, for which classes are compiled
TOLERANCE = 2e-5
SLOW_MODELS = 60
Make = Callable[[int], tuple[onnx.ModelProto, Mapping[str, tuple[int | str, ...]]]]


@pytest.fixture(autouse=True)
def _device(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch)


def is_kernel(made: SizeClass) -> bool:
    return all(isinstance(s, SymbolicGpuSegment) for s in made.load_steps() or ())


def check_model(make: Make, seed: int) -> int:
    """Check a model at sizes that its classes admit; return their number."""
    m, inputs = make(seed)
    names = sorted({d for shape in inputs.values() for d in shape if isinstance(d, str)})
    sizes = [dict(s) for s in islice(draw_sizes(Random(seed), names, *SIZES), MAX_SIZES)]
    exe = superopt.compile(m, target="cuda")
    session = ort.load_session(m.SerializeToString())
    rng = np.random.default_rng(seed)
    classes: list[SizeClass] = []
    for at in sizes[:MAX_EXAMPLES]:
        if not any(c.formulas.admits(at) for c in classes):
            made = compile_size_class(exe.compiler, at)
            if made is not None and is_kernel(made):
                assert made.formulas.admits(at), (seed, at, made.formulas.guards)
                classes.append(made)
    count = 0
    for at in sizes:
        feeds = {
            name: rng.standard_normal([at.get(str(d), d) for d in shape]).astype(np.float32)
            for name, shape in inputs.items()
        }
        for c in (c for c in classes if c.formulas.admits(at)):
            variant = c.variant(at)
            assert variant is not None
            found = exe.run_variant(variant, exe.input_arrays(feeds), on_device=False)
            for name, b in ort.run(session, feeds).items():
                a, why = found[name], f"seed {seed}, {name} at {at}, {c.formulas.guards}"
                assert (a.shape, a.dtype) == (b.shape, b.dtype), why
                scale = max(1.0, float(np.abs(b.astype(np.float64)).max(initial=0)))
                error = np.abs(a.astype(np.float64) - b).max(initial=0)
                assert error <= TOLERANCE * scale, why
            count += 1
    return count


def test_classes_of_random_models() -> None:
    assert check_model(dynamic_model, 0) > 0


@pytest.mark.slow
@pytest.mark.parametrize("make", [dynamic_model, convolutional_model])
@pytest.mark.parametrize("first", range(2, SLOW_MODELS, 4))
def test_classes_of_many_random_models(make: Make, first: int) -> None:
    for seed in range(first, first + 4):
        check_model(make, seed)
