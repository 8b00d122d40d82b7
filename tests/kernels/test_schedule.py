"""Schedules: what primitives do, which are legal, and that none changes what is computed."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superopt.ir.graph import Node
from superopt.ir.op import expression
from superopt.kernels import schedule as sc
from superopt.kernels.apply import applied, transformed
from superopt.kernels.cpu import loaded
from superopt.kernels.lower import lowered
from superopt.kernels.schedule import IllegalSchedule, Primitive, Schedule, parsed, text
from superopt.kernels.transform import Scheduled, unscheduled
from superopt.kernels.walk import loads, stages
from superopt.te.expr import Tensor
from tests.kernels.build import blank, drawn
from tests.ops.build import made

COMPUTATIONS = {
    "matmul": ("MatMul", "i32[7,6] i32[6,21]"),
    "batched": ("MatMul", "i64[2,3,4] i64[2,4,5]"),
    "conv": ("Conv", "f32[1,3,7,6] f32[4,3,3,2] f32[4] pads=(1,0,1,1) strides=(2,1)"),
    "grouped": ("Conv", "f32[2,4,5,5] f32[6,2,3,3] group=2 dilations=(2,1)"),
    "pool": ("MaxPool", "f32[1,2,7,7] kernel_shape=(3,3) strides=(2,2) pads=(1,1,1,1)"),
    "sum": ("ReduceSum", "i32[3,5,4] axes=(1,) keepdims=0"),
    "transpose": ("Transpose", "i32[3,5,18] perm=(2,0,1)"),
    "add": ("Add", "i8[4,33] i8[33]"),
    "gather": ("Gather", "i32[9,4] i64[3] axis=0"),
}


def tensor(name: str) -> tuple[Node, Tensor, list[Tensor]]:
    """The node, the one tensor that it computes, and its operands' buffers."""
    n = made(*COMPUTATIONS[name])
    types = tuple(None if v is None else v.type for v in n.inputs)
    (out,) = expression(n.op, types, n.attrs)
    bodies = [t.body for t in stages([out]) if t.body is not None]
    read = {x.tensor.name: x.tensor for b in bodies for x in loads(b) if x.tensor.body is None}
    return n, out, [read[name] for name in sorted(read)]


def run(name: str, schedule: Schedule | None, arrays: list[np.ndarray]) -> np.ndarray:
    _, out, inputs = tensor(name)
    k = lowered("k", inputs, [out], {} if schedule is None else {out: schedule})
    (got,) = blank(k, 1)
    loaded(k)(*arrays, got)
    return got


def whole(name: str) -> list[np.ndarray]:
    """Operands of whole numbers, so that no order of a sum is another one."""
    rng = np.random.default_rng(1)
    return [np.rint(3 * drawn(i, rng)).astype(drawn(i, rng).dtype) for i in tensor(name)[2]]


WANTED = {name: run(name, None, whole(name)) for name in COMPUTATIONS}


@st.composite
def steps(draw: st.DrawFn) -> Callable[[Scheduled], Schedule]:
    """A few primitives, those that are legal where they come."""
    numbers = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 99), st.integers(1, 9)),
                            max_size=8))  # fmt: skip

    def apply(s: Scheduled) -> Schedule:
        done: list[Primitive] = []
        for kind, which, factor in numbers:
            try:
                step = _primitive(s, kind, which, factor)
                s = applied(s, step)
            except IllegalSchedule:
                continue
            done.append(step)
        return tuple(done)

    return apply


def _primitive(s: Scheduled, kind: int, which: int, factor: int) -> Primitive:
    names = [x.axis.name for x in s.loops]
    axis = names[which % len(names)]
    match kind:
        case 0 | 1:
            return sc.Split(axis, factor)
        case 2:
            return sc.Fuse(axis, names[(which + 1) % len(names)])
        case 3:
            turned = np.random.default_rng(which).permutation(len(names))
            return sc.Reorder(tuple(names[k] for k in turned))
        case 4:
            return sc.Unroll(axis)
        case _:
            return sc.Vectorize(names[-1])


@pytest.mark.parametrize("name", COMPUTATIONS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(change=steps())
def test_no_schedule_changes_what_is_computed(
    name: str, change: Callable[[Scheduled], Schedule]
) -> None:
    s = change(unscheduled(tensor(name)[1]))
    np.testing.assert_array_equal(run(name, s, whole(name)), WANTED[name], err_msg=text(s))


PRIMITIVES = {
    "split": "split(i1, 7)",
    "split, and a rest": "split(i0, 4)",
    "split of a sum": "split(k0, 3)",
    "fuse": "fuse(i0, i1)",
    "reorder": "reorder(k0, i0)",
    "unroll": "unroll(k0)",
    "vectorize": "reorder(i0, k0, i1); vectorize(i1)",
    "vectors of a sum": "vectorize(k0)",
    "parallel": "parallel(i0); parallel(i1)",
    "tile": "tile(i0, i1, 2, 16)",
    "registers": "split(i0, 2); split(i1, 16); reorder(i1.o, i0.o, k0, i0.i, i1.i); "
    "unroll(i0.i); vectorize(i1.i)",
    "sums that wait": "split(k0, 3); split(i1, 16); reorder(k0.o, i1.o, i0, k0.i, i1.i); "
    "vectorize(i1.i)",
}


def test_before_and_after(golden: Callable[[str, str], None]) -> None:
    lines = []
    for name, source in PRIMITIVES.items():
        _, out, inputs = tensor("matmul")
        s = transformed(unscheduled(out), parsed(source))
        kernel = str(lowered("k", inputs, [out], {out: parsed(source)}))
        lines += [f"# {name}: {source}", str(s), "=>", kernel, ""]
        np.testing.assert_array_equal(
            run("matmul", parsed(source), whole("matmul")), WANTED["matmul"]
        )
    golden("schedules.txt", "\n".join(lines))


@pytest.mark.parametrize("source", PRIMITIVES.values())
def test_a_schedule_is_text(source: str) -> None:
    assert text(parsed(source)) == source


ILLEGAL = {
    "split(i7, 2)": "there is no loop i7; there are i0, i1, k0",
    "split(i0, 0)": "the factor is below 1",
    "split(k0, 4)": "6 steps of a sum are no multiple of 4",
    "unroll(i0); split(i0, 2)": "i0 is said to be unroll already",
    "fuse(i1, i0)": "i0 is not directly inside i1",
    "fuse(i1, k0)": "one of them is of the sum",
    "reorder(i0, i0)": "an axis stands there twice",
    "vectorize(i0)": "k0 is inside it",
    "parallel(i1)": "i1 is parallel, and inside i0",
    "compute_at(y)": "compute_at(y) is no primitive",
    "reorder(k0, i0); parallel(k0)": "it is an axis of the sum",
    "split(i0)": "split(i0) is no primitive",
    "split(i0, 2": "is no primitive",
    "split(f(i0), 2)": "f(i0) is no axis",
}


@pytest.mark.parametrize("source", ILLEGAL)
def test_what_is_illegal_says_why(source: str) -> None:
    with pytest.raises(IllegalSchedule) as caught:
        transformed(unscheduled(tensor("matmul")[1]), parsed(source))
    assert ILLEGAL[source] in str(caught.value)
