"""Random models of symbolic sizes: each class gives onnxruntime's results at all sizes that it
admits, within its own memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from random import Random

import numpy as np
import pytest

import superopt
from superopt import ort
from superopt.compilation.model.compile_class import compile_size_class
from superopt.compilation.model.size_classes import SizeClass
from superopt.errors import SuperoptError
from tests.support.compilation.dynamic_graphs import dynamic_model, feeds
from tests.support.compilation.guarded_memory import run_guarded

pytest.importorskip("onnxruntime")
SMALL = (1, 2, 3, 4, 5, 6, 7, 8, 9)
AROUND_TILES = (15, 16, 17, 31, 32, 33, 63, 64, 65)
LARGE = (100, 127, 129, 200, 256, 300)
MAX_PRODUCT = 20_000  # of the sizes of one call
CALLS = 24  # sizes that are tried for each model
DEFAULT_MODELS = 12
SLOW_MODELS = 500


def draw_sizes(random: Random, names: list[str]) -> Iterator[dict[str, int]]:
    while True:
        sizes = {name: random.choice(random.choice((SMALL, AROUND_TILES, LARGE))) for name in names}
        if math.prod(sizes.values()) <= MAX_PRODUCT:
            yield sizes


def near(got: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], why: str) -> None:
    for name, b in wanted.items():
        a = got[name]
        assert (a.dtype, a.shape) == (b.dtype, b.shape), why
        scale = float(np.sqrt(np.mean(np.square(b, dtype=np.float64)))) if b.size else 0.0
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * scale, err_msg=why)


def check_model(seed: int) -> int:
    """Check a model at sizes that its classes admit; return their number."""
    m, inputs = dynamic_model(seed)
    random = Random(seed)
    session = ort.load_session(m.SerializeToString())
    exe = superopt.compile(m, threads=1 + seed % 2)
    names = sorted({d for shape in inputs.values() for d in shape if isinstance(d, str)})
    sizes = draw_sizes(random, names)
    classes: list[SizeClass] = []
    for example in (next(sizes), next(sizes), next(sizes)):
        if not any(c.formulas.admits(example) for c in classes):
            made = compile_size_class(exe.compiler, example)
            if made is None:
                break
            assert made.formulas.admits(example)
            classes.append(made)
    count = 0
    held: list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]] = []
    for _ in range(CALLS):
        at = next(sizes)
        given = feeds(inputs, at, seed)
        try:
            wanted = ort.run(session, given)
        except SuperoptError:  # the model has no result at these sizes
            continue
        for c in classes:
            if not c.formulas.admits(at):
                continue
            count += 1
            variant = c.variant(at)
            assert variant is not None
            arrays = exe.input_arrays(given)
            found = exe.run_variant(variant, arrays, on_device=False)
            near(found, wanted, f"seed {seed}, {at}, {c.formulas.guards}")
            held.append((found, {name: x.copy() for name, x in found.items()}))
            if count % 4 == 1:
                check_memory(variant[0], arrays, wanted, f"seed {seed}, {at}")
        if len(held) % 6 == 1:  # through the public function, which chooses what runs
            near(exe.run(given), wanted, f"seed {seed}, {at}, run")
    for found, copies in held:
        for name, x in found.items():
            np.testing.assert_array_equal(x, copies[name])
    return count


def check_memory(step, arrays, wanted, why: str) -> None:  # type: ignore[no-untyped-def]
    """Run a step in a process of its own, which an access beyond its arrays ends."""
    if not hasattr(os, "fork"):
        return
    child = os.fork()
    if child == 0:
        code = 1
        try:
            near(run_guarded(step, arrays), wanted, why)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, why


def test_classes_of_random_models() -> None:
    counts = [check_model(seed) for seed in range(DEFAULT_MODELS)]
    assert sum(n > 0 for n in counts) > DEFAULT_MODELS // 2  # most models have classes


@pytest.mark.slow
@pytest.mark.parametrize("first", range(DEFAULT_MODELS, SLOW_MODELS, 22))
def test_classes_of_many_random_models(first: int) -> None:
    for seed in range(first, min(first + 22, SLOW_MODELS)):
        check_model(seed)
