"""Schedules: what primitives do, which are legal, and that none changes what is computed."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given

from superopt.kernels.loops.apply import apply_schedule
from superopt.kernels.loops.loop_transforms import initial_loops
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.schedule import IllegalSchedule, parse_schedule, schedule_text
from superopt.kernels.runtime.cpu import load_kernel
from superopt.te.expr.dtype import I32
from superopt.te.expr.tensor import Tensor, compute, reduce_sum
from tests.support.breadth import examples
from tests.support.kernels.computations import COMPUTATIONS, WANTED, legal, run, tensor, whole
from tests.support.kernels.schedules import Draw, draws, grown


@pytest.mark.one_in(11)
@pytest.mark.parametrize("name", COMPUTATIONS)
@examples(20)
@given(numbers=draws(10))
def test_no_schedule_changes_what_is_computed(name: str, numbers: list[Draw]) -> None:
    _, out, inputs = tensor(name)
    s = grown(out, numbers, [i.name for i in inputs], lambda s: legal(name, s))
    assert parse_schedule(schedule_text(s)) == s
    np.testing.assert_array_equal(run(name, s, whole(name)), WANTED[name], err_msg=schedule_text(s))


PRIMITIVES = {
    "split": "split(i1, 7)",
    "split, and a rest": "split(i0, 4)",
    "split of a sum": "split(k0, 3)",
    "cover": "cover(k0, 4)",
    "cover in tiles": "tile(i0, i1, 2, 16); cover(k0, 4); "
    "reorder(i0.o, i1.o, k0.o, k0.i, i0.i, i1.i); vectorize(i1.i)",
    "fuse": "fuse(i0, i1)",
    "reorder": "reorder(k0, i0)",
    "unroll": "unroll(k0)",
    "vectorize": "reorder(i0, k0, i1); vectorize(i1)",
    "vectors of a sum": "vectorize(k0)",
    "vectors around terms": "split(k0, 3); reorder(i0, k0.o, i1, k0.i); unroll(k0.i); "
    "vectorize(i1)",
    "parallel": "parallel(i0); parallel(i1)",
    "tile": "tile(i0, i1, 2, 16)",
    "cache_read": "cache_read(a0, i0)",
    "cache_read inside a sum": "split(k0, 3); split(i1, 16); reorder(i1.o, k0.o, i0, k0.i, i1.i); "
    "vectorize(i1.i); cache_read(a1, k0.o)",
    "cache_read of a copy": "split(i0, 4); cache_read(a0, i0.o); cache_read(a0.local, i0.i)",
    "registers": "split(i0, 2); split(i1, 16); reorder(i1.o, i0.o, k0, i0.i, i1.i); "
    "unroll(i0.i); vectorize(i1.i)",
    "sums that wait": "split(k0, 3); split(i1, 16); reorder(k0.o, i1.o, i0, k0.i, i1.i); "
    "vectorize(i1.i)",
}


def test_before_and_after(golden: Callable[[str, str], None]) -> None:
    lines = []
    for name, source in PRIMITIVES.items():
        _, out, inputs = tensor("matmul")
        s = apply_schedule(initial_loops(out), parse_schedule(source))
        kernel = str(lower_kernel("k", inputs, [out], {out: parse_schedule(source)}))
        lines += [f"# {name}: {source}", str(s), "=>", kernel, ""]
        got = run("matmul", parse_schedule(source), whole("matmul"))
        np.testing.assert_array_equal(got, WANTED["matmul"], name)
    golden("schedules.txt", "\n".join(lines))


@pytest.mark.parametrize("source", PRIMITIVES.values())
def test_a_schedule_is_text(source: str) -> None:
    assert schedule_text(parse_schedule(source)) == source


ILLEGAL = {
    "split(i7, 2)": "there is no loop i7; there are i0, i1, k0",
    "split(i0, 0)": "the factor is below 1",
    "split(k0, 4)": "6 reduction steps are not a multiple of 4",
    "cover(i0, 4)": "it is not a reduction axis",
    "cover(k0, 0)": "the factor is below 1",
    "split(k0, 3); cover(k0.i, 2)": "it is a part of an axis",
    "unroll(i0); split(i0, 2)": "i0 is already marked unroll",
    "fuse(i1, i0)": "i0 is not directly inside i1",
    "fuse(i1, k0)": "only one of them is a reduction loop",
    "reorder(i0, i0)": "an axis is repeated",
    "vectorize(i0)": "k0 is inside it",
    "unroll(i1); unroll(k0); vectorize(i0)": "i1 is inside it",
    "parallel(i1)": "i1 is parallel, but inside i0",
    "compute_at(y)": "compute_at(y) is not a primitive",
    "reorder(k0, i0); parallel(k0)": "it is a reduction axis",
    "tile(i0, i1, 0, 4)": "split(i0, 0): the factor is below 1",
    "tile(i0, i0, 2, 2)": "there is no loop i0; there are i0.o, i0.i, i1, k0",
    "cache_read(a2, i0)": "t reads a0, a1; 0 of these are a2",
    "cache_read(a0, i2)": "there is no loop i2; there are i0, i1, k0",
    "cache_read(a0, i0); split(i0, 2)": "cache_read(a0, i0): t has the loops i0.o, i0.i, i1, k0",
    "inline()": "t is a result of the kernel",
    "inline(); split(i0, 2)": "t then has no loops for split(i0, 2)",
    "compute_at(t, i0)": "t is a result of the kernel",
    "split(i0, 2, 3)": "split(i0, 2, 3) is not a primitive",
    "split(i0, True)": "split(i0, True) is not a primitive",
    "split(i0)": "split(i0) is not a primitive",
    "split(i0, 2": "is not a primitive",
    "split(f(i0), 2)": "f(i0) is not an axis",
}


@pytest.mark.parametrize(("source", "why"), ILLEGAL.items())
def test_what_is_illegal_says_why(source: str, why: str) -> None:
    with pytest.raises(IllegalSchedule) as caught:
        run("matmul", parse_schedule(source), [])
    assert why in str(caught.value)


def test_a_sum_of_nothing_copies_nothing() -> None:
    a = Tensor("a", I32, (3, 0))
    y = compute((3,), lambda i: reduce_sum(0, lambda k: a[i, k]), name="y")
    how = parse_schedule("cache_read(a, k0)")
    k = lower_kernel("k", [a], [y], {y: how})
    out = np.full(3, 7, np.int32)
    load_kernel(k)(np.empty((3, 0), np.int32), out)
    np.testing.assert_array_equal(out, 0)
    assert "= a[" not in str(k)


def test_a_table_is_not_copied() -> None:
    a, t = Tensor("a", I32, (4,)), Tensor("t", I32, (4,))
    y = compute((4,), lambda i: a[i] * t[i], name="y")
    with pytest.raises(IllegalSchedule, match="t is a table of compile-time constants"):
        lower_kernel(
            "k", [a], [y], {y: parse_schedule("cache_read(t, i0)")}, tables={t: np.arange(4)}
        )
