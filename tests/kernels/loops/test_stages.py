"""Schedules of several tensors: which are inlined, and at whose loops the others are computed."""

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from superopt.kernels.loops import schedule
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.schedule import IllegalSchedule, Schedule, parse_schedule, schedule_text
from superopt.kernels.loops.tile import Kernel
from superopt.kernels.runtime.cpu import load_kernel
from superopt.te.expr.dtype import F32, F64, I32, DType, to_numpy
from superopt.te.expr.tensor import Tensor, compute, in_range, reduce_sum, select
from tests.support.breadth import examples
from tests.support.kernels.build import blank
from tests.support.kernels.schedules import Draw, draws, grown

ROWS, COLUMNS = 6, 22


def chain() -> dict[str, Tensor]:
    """Elements, sums of neighbours, a product, and a result that reads two of them."""
    a, b = Tensor("a", I32, (ROWS, COLUMNS)), Tensor("b", I32, (COLUMNS - 2, 8))
    p = compute((ROWS, COLUMNS), lambda i, j: a[i, j] * 3 + a[i, COLUMNS - 1 - j], name="p")
    q = compute(
        (ROWS, COLUMNS - 2), lambda i, j: reduce_sum(3, lambda k: p[i, j + k]) + p[i, 0], name="q"
    )
    r = compute(
        (ROWS, 8), lambda i, j: reduce_sum(COLUMNS - 2, lambda k: q[i, k] * b[k, j]), name="r"
    )
    y = compute(
        (ROWS, 8),
        lambda i, j: r[i, j] + select(in_range(j - 1, 8), p[i, j - 1], -1),
        name="y",
    )
    return {t.name: t for t in (a, b, p, q, r, y)}


def gram() -> dict[str, Tensor]:
    """A sum of sums, and a sum under a guard."""
    a = Tensor("a", I32, (8, 8))
    s = compute((8, 8), lambda i, j: reduce_sum(8, lambda k: a[k, i] * a[k, j]), name="s")
    y = compute(
        (8, 8),
        lambda i, j: reduce_sum(8, lambda k: s[i, k] * select(in_range(k - 2, 8), s[k - 2, j], 1)),
        name="y",
    )
    return {"a": a, "s": s, "y": y}


def nested(dtype: DType = I32) -> dict[str, Tensor]:
    """A sum in a sum in a sum, all of whose axes have one name."""
    a, b = Tensor("a", dtype, (4, 4)), Tensor("b", dtype, (4, 4))
    s = compute((4,), lambda i: reduce_sum(4, lambda k: a[i, k] + b[k, i]), name="s")
    r = compute((4,), lambda i: reduce_sum(4, lambda k: b[i, k] * s[i]), name="r")
    y = compute((4, 4), lambda i, j: reduce_sum(4, lambda k: r[k] * a[k, j] + b[i, k]), name="y")
    return {t.name: t for t in (a, b, s, r, y)}


NETS = {"chain": chain, "gram": gram, "nested": nested}


def kernel(net: Mapping[str, Tensor], how: Mapping[str, Schedule]) -> Kernel:
    inputs = [t for t in net.values() if t.body is None]
    return lower_kernel("k", inputs, [net["y"]], {net[name]: s for name, s in how.items()})


def run(net: Mapping[str, Tensor], how: Mapping[str, Schedule]) -> np.ndarray:
    k = kernel(net, how)
    rng = np.random.default_rng(3)
    given = [rng.integers(-9, 9, p.shape).astype(to_numpy(p.dtype)) for p in k.params[:-1]]
    (out,) = blank(k, 1)
    load_kernel(k)(*given, out)
    return out


WANTED = {name: run(make(), {}) for name, make in NETS.items()}


def test_what_is_not_scheduled_is_right() -> None:
    net = chain()
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-9, 9, net[name].shape, np.int32) for name in "ab")
    p = a * 3 + a[:, ::-1]
    q = p[:, :-2] + p[:, 1:-1] + p[:, 2:] + p[:, :1]
    before = np.concatenate([np.full((ROWS, 1), -1), p[:, :7]], axis=1)
    np.testing.assert_array_equal(WANTED["chain"], q @ b + before)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NETS)
@examples(40)
@given(
    order=st.permutations(["p", "q", "r", "s", "y"]),
    numbers=st.lists(draws(6), min_size=5, max_size=5),
    where=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), min_size=5, max_size=5),
)
@example(
    order=["p", "q", "r", "s", "y"],
    numbers=[[], [], [], [(4, 0, 1)], []],  # s: unroll(i0)
    where=[(0, 0)] * 5,
)
def test_no_schedules_change_what_is_computed(
    name: str, order: list[str], numbers: list[list[Draw]], where: list[tuple[int, int]]
) -> None:
    net = NETS[name]()
    how: dict[str, Schedule] = {}

    def legal(t: str, s: Schedule) -> bool:
        try:
            kernel(net, {**how, t: s})
        except IllegalSchedule:
            return False
        return True

    for t, draw, at in zip(order, numbers, where, strict=True):
        if t in net:
            first = placed(net, t, at)
            first = first if legal(t, first) else ()
            sources = [*net, "a.local"]
            how[t] = first
            if first != (schedule.Inline(),):
                how[t] += grown(net[t], draw, sources, lambda s: legal(t, (*how[t], *s)))  # noqa: B023
    said = "\n".join(f"{t}: {schedule_text(s)}" for t, s in how.items())
    np.testing.assert_array_equal(run(net, how), WANTED[name], err_msg=said)


def placed(net: Mapping[str, Tensor], t: str, at: tuple[int, int]) -> Schedule:
    """Inline, at a loop of one of the others, or neither."""
    kind, which = at
    others = [x for x in net if x != t and net[x].body is not None]
    if kind == 0 or not others:
        return ()
    if kind == 1:
        return (schedule.Inline(),)
    axes = ("i0", "i1", "k0")
    return (schedule.ComputeAt(others[which % len(others)], axes[which // 7 % 3]),)


def test_axes_of_one_name_are_distinguished() -> None:
    net, inline = nested(), (schedule.Inline(),)
    np.testing.assert_array_equal(run(net, {"s": inline, "r": inline}), WANTED["nested"])


UNROLLED = (
    "unroll(i0)",
    "unroll(k0)",
    "reorder(k0, i0); unroll(k0)",
    "split(i0, 3); unroll(i0.o)",
    "unroll(i0); cache_read(b, i0)",
)
READERS = (
    "",
    "reorder(k0, i0); vectorize(i0)",
    "reorder(k0, i0); split(i0, 2); unroll(k0); vectorize(i0.i)",
)


@pytest.mark.parametrize("dtype", [I32, F32, F64], ids=str)
def test_an_unrolled_loop_ends_before_the_next_stage(dtype: DType) -> None:
    for source, reader in product(UNROLLED, READERS):
        how = {"s": parse_schedule(source), "r": parse_schedule(reader) if reader else ()}
        message = f"s: {source}\nr: {reader}"
        np.testing.assert_array_equal(run(nested(dtype), how), WANTED["nested"], message)


@pytest.mark.parametrize("reader", ["", "unroll(k0)"])
def test_a_table_is_read_in_unrolled_loops_only(reader: str) -> None:
    t, a = Tensor("t", I32, (4,)), Tensor("a", I32, (4, 4))
    p = compute((4,), lambda i: reduce_sum(4, lambda k: t[k] * a[i, k]), name="p")
    q = compute((4,), lambda i: reduce_sum(4, lambda k: t[k] * a[k, i]), name="q")
    numbers = np.array([2, -3, 5, 7], np.int32)
    how = {p: parse_schedule("unroll(k0)"), q: parse_schedule(reader) if reader else ()}
    k = lower_kernel("k", [a], [p, q], how, tables={t: numbers})
    if not reader:  # the last step of p's loop is not a step of q's
        with pytest.raises(NotImplementedError, match="no unrolled loops determine"):
            load_kernel(k)
        return
    given = np.random.default_rng(3).integers(-9, 9, (4, 4), np.int32)
    out = blank(k, 2)
    load_kernel(k)(given, *out)
    np.testing.assert_array_equal(out, [given @ numbers, numbers @ given])


BEFORE_AND_AFTER = {
    "inline": {"p": "inline()", "q": "inline()"},
    "compute_at": {"r": "compute_at(y, i0)", "q": "compute_at(y, i0)", "p": "compute_at(y, i0)"},
    "compute_at inside a sum": {
        "q": "compute_at(r, k0)",
        "r": "reorder(i0, k0, i1); vectorize(i1)",
    },
}


def test_before_and_after(golden: Callable[[str, str], None]) -> None:
    lines = ["\n".join(f"{t.name} = {t.body}" for t in chain().values() if t.body is not None), ""]
    for name, how in BEFORE_AND_AFTER.items():
        net, said = chain(), {t: parse_schedule(s) for t, s in how.items()}
        lines += [f"# {name}", *(f"{t}: {s}" for t, s in how.items()), "=>"]
        lines += [str(kernel(net, said)), ""]
        np.testing.assert_array_equal(run(net, said), WANTED["chain"], name)
    golden("stages.txt", "\n".join(lines))


ILLEGAL = {
    "a sum under a guard": (
        gram,
        {"s": "inline()"},
        "s is a reduction, and y reads it under a guard",
    ),
    "no reader": (
        chain,
        {"p": "compute_at(b, i0)"},
        "compute_at(b, i0): q reads p, but is not inside loops of b",
    ),
    "no such loop": (chain, {"q": "compute_at(r, k1)"}, "r has the loops i0, k0, i1"),
    "another reader": (chain, {"p": "compute_at(q, i0)"}, "y reads p outside of that loop"),
    "a reader beside it": (
        chain,
        {"r": "compute_at(y, i0)", "q": "compute_at(y, i0)", "p": "compute_at(q, i0)"},
        "compute_at(q, i0): y reads p outside of that loop",
    ),
    "beside a sum": (
        chain,
        {"p": "compute_at(q, k0)", "y": "cache_read(r, i0)"},
        "compute_at(q, k0): it is inside a reduction, but also read outside of it",
    ),
    "a read that is gone": (chain, {"q": "inline()", "r": "cache_read(q, i0)"}, "r reads p, b"),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_is_illegal_says_why(name: str) -> None:
    make, how, why = ILLEGAL[name]
    with pytest.raises(IllegalSchedule) as caught:
        kernel(make(), {t: parse_schedule(s) for t, s in how.items()})
    assert why in str(caught.value)
