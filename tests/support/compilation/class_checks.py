"""Checks of the classes of sizes of a model, against onnxruntime."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from random import Random

import numpy as np
import onnx

import superopt
from superopt import ort
from superopt.compilation.model.compile_class import compile_size_class
from superopt.compilation.model.size_classes import SizeClass
from superopt.errors import SuperoptError
from tests.support.compilation.dynamic_builder import Dim
from tests.support.compilation.dynamic_graphs import feeds
from tests.support.compilation.guarded_memory import run_guarded

CALLS = 24  # sizes that are tried for each model
EXAMPLES = 3  # sizes for which classes are compiled
MAX_PRODUCT = 20_000  # of the sizes of one call
CALLS_PER_GUARDED = 4
CALLS_PER_RUN = 6


def draw_sizes(
    random: Random, names: list[str], *choices: tuple[int, ...]
) -> Iterator[dict[str, int]]:
    """Yield random sizes, of which each is in one of the choices."""
    while True:
        sizes = {name: random.choice(random.choice(choices)) for name in names}
        if math.prod(sizes.values()) <= MAX_PRODUCT:
            yield sizes


def near(got: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], why: str) -> None:
    for name, b in wanted.items():
        a = got[name]
        assert (a.dtype, a.shape) == (b.dtype, b.shape), why
        scale = float(np.sqrt(np.mean(np.square(b, dtype=np.float64)))) if b.size else 0.0
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * scale, err_msg=why)


def check_classes(
    m: onnx.ModelProto,
    inputs: Mapping[str, tuple[Dim, ...]],
    sizes: Iterator[dict[str, int]],
    seed: int,
    threads: int,
) -> int:
    """Check a model at sizes that its classes admit; return their number."""
    session = ort.load_session(m.SerializeToString())
    exe = superopt.compile(m, threads=threads)
    classes: list[SizeClass] = []
    for example in islice(sizes, EXAMPLES):
        if not any(c.formulas.admits(example) for c in classes):
            made = compile_size_class(exe.compiler, example)
            if made is None:
                break
            assert made.formulas.admits(example)
            classes.append(made)
    count = 0
    held: list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]] = []
    for at in islice(sizes, CALLS):
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
            if count % CALLS_PER_GUARDED == 1 and variant.bound_step is not None:
                check_memory(variant.bound_step, arrays, wanted, f"seed {seed}, {at}")
        if len(held) % CALLS_PER_RUN == 1:  # through the public function, which chooses what runs
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
