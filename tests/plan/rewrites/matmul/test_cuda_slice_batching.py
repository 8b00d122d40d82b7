"""Slices of one tensor that are multiplied with one constant at once, on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest

from superopt.compilation.cuda import load_compiler
from superopt.onnx_io.read.source import read_model
from superopt.te.analysis.walk import loads, reductions
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import feeds, near
from tests.support.gpu.models import drawn, node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


def steps(
    picked: tuple[int, ...], rows: int = 16, k: int = 40, n: int = 24, axis: int = 1,
    two: bool = False, apart: bool = False, out: tuple[str, ...] = (),
) -> onnx.ModelProto:  # fmt: skip
    """h = tanh(x[:, t] w + h u), for each slice that is picked. axis: along which slices are; two:
    are there two such states, of other constants? apart: is each other slice one of another tensor?
    out: more outputs."""
    known: dict[str, np.ndarray] = {}
    nodes, ends = [], []
    for s in ("a", "b") if two else ("a",):
        known |= {f"{s}w": drawn(k, n, scale=k**-0.5), f"{s}u": drawn(n, n, scale=n**-0.5)}
        known[f"{s}w"][0] += s == "b"
        for i, t in enumerate(picked):
            known[f"t{t}"] = np.array(t)
            of, x, p, q, z = (f"{s}{name}{i}" for name in "oxpqz")
            nodes += [
                node("Gather", "r" if apart and i % 2 else "x", f"t{t}", x, axis=axis),
                node("MatMul", x, f"{s}w", p),
                node("MatMul", f"{s}o{i - 1}" if i else f"h{s}", f"{s}u", q),
                node("Add", p, q, z), node("Tanh", z, of),
            ]  # fmt: skip
        ends.append(of)
    nodes.append(node("Add", *ends, "y") if two else node("Neg", *ends, "y"))
    shape = [rows, k]
    shape.insert(axis, max(picked) + 1)
    given = {"x": (F, shape), "ha": (F, [rows, n]), **({"r": (F, shape)} if apart else {})}
    given |= {"hb": (F, [rows, n])} if two else {}
    return model(nodes, given, ["y", *out], known)


MODELS: Mapping[str, tuple[Callable[[], onnx.ModelProto], int]] = {
    # With how many kernels are products of slices.
    "three slices": (lambda: steps((1, 2, 3)), 1),
    "in any order": (lambda: steps((3, 1, 0, 2)), 1),
    "of two constants": (lambda: steps((0, 1, 2), two=True), 1),
    "along the first dimension": (lambda: steps((0, 1, 2), axis=0, rows=21, n=33), 1),
    "many of one row": (lambda: steps((*range(13),), rows=1), 1),
    "few of one row": (lambda: steps((0, 1, 2), rows=1), 3),
    "one of which is an output": (lambda: steps((0, 1, 2, 3), out=("ap0",)), 2),
    "with one between them": (lambda: steps((0, 1, 3)), 2),
    "of two tensors": (lambda: steps((0, 0, 1, 1), apart=True), 2),
}


@pytest.mark.parametrize(
    "precision", ["fp16", *(pytest.param(x, marks=pytest.mark.slow) for x in ("fp32", "tf32"))]
)
@pytest.mark.parametrize("name", MODELS)
def test_slices_at_once(name: str, precision: str) -> None:
    made, kernels = MODELS[name]
    m = made()
    exe = load_compiler.compile_model(read_model(m), precision, vendor=False)
    near(exe.run(feeds(m)), reference(m, feeds(m)), precision)
    program = exe.variant({}).program
    sums = [
        r for key in program.call_problems for r in reductions(program.problems[key].tensor.body)
    ]
    assert sum(any(x.tensor.rank == 3 for x in loads(r.body)) for r in sums) == kernels
