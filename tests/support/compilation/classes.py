"""Models at the sizes that their classes admit, against a reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx

import superopt
from superopt import ort
from superopt.compilation.model.compile_class import compile_size_class
from superopt.compilation.model.size_classes import SizeClass

Feeds = dict[str, np.ndarray]
Sizes = Mapping[str, int]


def check_classes(
    m: onnx.ModelProto,
    feeds: Callable[[Sizes], Feeds],
    sizes: Iterable[Sizes],
    threads: int = 1,
    expected: Callable[[Feeds], Feeds] | None = None,
    tolerance: float = 2e-5,
) -> list[SizeClass]:
    """Compile a class for each of these sizes that no class admits yet, check each class twice at
    each size that it admits, and return the classes. expected: what is right instead of
    onnxruntime's results."""
    exe = superopt.compile(m, threads=threads)
    session = None if expected is not None else ort.load_session(m.SerializeToString())
    known = [(dict(s), feeds(s)) for s in sizes]
    classes: list[SizeClass] = []
    for at, _ in known:
        if not any(c.formulas.admits(at) for c in classes):
            made = compile_size_class(exe.compiler, at)
            assert made is not None, f"no class for {at}"
            assert made.formulas.admits(at), (at, made.formulas.guards)
            classes.append(made)
    for at, given in known:
        wanted = ort.run(session, given) if expected is None else expected(given)
        arrays = exe.input_arrays(given)
        for c in classes:
            variant = c.variant(at) if c.formulas.admits(at) else None
            for _ in range(0 if variant is None else 2):
                assert variant is not None
                found = exe.run_variant(variant, arrays, on_device=False)
                near(found, wanted, f"{at}, {c.formulas.guards}", tolerance)
    return classes


def near(got: Feeds, wanted: Feeds, why: str, tolerance: float) -> None:
    assert list(got) == list(wanted)
    for name, b in wanted.items():
        a = got[name]
        assert (a.dtype, a.shape) == (b.dtype, b.shape), why
        scale = max(1.0, float(abs(b).max(initial=0))) if b.dtype != np.bool_ else 1.0
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=why)
