"""Streaming attention: lengths that no block divides, masks, and what is not finite, against the
definition in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from superopt.kernels.algorithms.build import build_kernels
from superopt.kernels.algorithms.cpu.attention import streaming
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.interpret import run_kernel
from superopt.kernels.loops.layout import Layout, Part
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.cpu import load_kernel
from superopt.kernels.runtime.engine import Machine, host, psabi_machine
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import (
    Tensor,
    apply,
    compare,
    compute,
    const,
    reduce_max,
    reduce_sum,
    select,
)

INF = float("inf")
LOWEST = float(np.finfo(np.float32).min)
BELOW_DIAGONAL = ("added", "selected")


@dataclass(frozen=True)
class Case:
    """An attention: heads of `rows` queries and `keys`, with a mask: "" for none, "added" or
    "selected" for key <= row + offset, else `least`; "given" from memory, one by row and key."""

    rows: int
    keys: int
    width: int = 32
    values: int = 32
    heads: int = 2
    mask: str = ""
    offset: int = 0
    least: float = -INF

    def problem(self, machine: Machine) -> Problem:
        c = self
        q = Tensor("q", F32, (c.heads, c.rows, c.width))
        k = Tensor("k", F32, (c.heads, c.width, c.keys))
        v = Tensor("v", F32, (c.heads, c.keys, c.values))
        given = Tensor("mask", F32, (c.rows, c.keys))
        low = const(c.least, F32)

        def score(h: Expr, i: Expr, j: Expr) -> Expr:
            x = reduce_sum(c.width, lambda e: q[h, i, e] * k[h, e, j]) * const(0.25, F32)
            is_seen = compare("le", j, i + c.offset)
            match c.mask:
                case "added":
                    return x + select(is_seen, const(0, F32), low)
                case "selected":
                    return select(is_seen, x, low)
                case "given":
                    return x + given[i, j]
            return x

        s = compute((c.heads, c.rows, c.keys), score, name="s")
        most = compute(s.shape[:2], lambda h, i: reduce_max(c.keys, lambda j: s[h, i, j]))
        p = compute(s.shape, lambda h, i, j: apply("exp", s[h, i, j] - most[h, i]))
        total = compute(s.shape[:2], lambda h, i: reduce_sum(c.keys, lambda j: p[h, i, j]))
        w = compute(s.shape, lambda h, i, j: p[h, i, j] / total[h, i])
        shape = (c.heads, c.rows, c.values)
        y = compute(shape, lambda h, i, d: reduce_sum(c.keys, lambda j: w[h, i, j] * v[h, j, d]))
        lanes = machine.width // 4
        vectors = Layout((Part(0), Part(2, lanes), Part(1), Part(2, lanes, is_inner=True)))
        layouts = {k: vectors} if c.keys % lanes == 0 else {}
        return Problem(y, layouts, set(), machine.width, 2, processor=machine.processor)

    def inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        c = self
        shapes = {"q": (c.heads, c.rows, c.width), "k": (c.heads, c.width, c.keys),
                  "v": (c.heads, c.keys, c.values)}  # fmt: skip
        out = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
        out["mask"] = np.where(rng.random((c.rows, c.keys)) < 0.3, -INF, 0).astype(np.float32)
        return out

    def expected(self, given: dict[str, np.ndarray]) -> np.ndarray:
        """Return the result by its definition."""
        with np.errstate(all="ignore"):
            q, k, v, mask = (given[n].astype(np.float64) for n in ("q", "k", "v", "mask"))
            s = q @ k * 0.25
            i, j = np.ogrid[: self.rows, : self.keys]
            is_seen = j <= i + self.offset
            if self.mask == "added":
                s = s + np.where(is_seen, 0.0, self.least)
            elif self.mask == "selected":
                s = np.where(is_seen, s, self.least)
            elif self.mask == "given":
                s = s + mask
            p = np.exp(s - s.max(-1, keepdims=True))
            return (p / p.sum(-1, keepdims=True)) @ v


def run(
    case: Case, given: dict[str, np.ndarray], machine: Machine, option: Option | None = None,
    interpreted: bool = False,
) -> np.ndarray:  # fmt: skip
    """Return the result of the kernels of an option, by default of the first one."""
    p = case.problem(machine)
    a = streaming.recognise_streaming(p)
    assert a is not None
    option = option or next(streaming.streaming_options(p, a))
    held: dict[Tensor, np.ndarray] = {}
    for built in build_kernels(p, streaming.schedule_streaming(p, a, option)):
        tensors = (*built.reads, built.writes)
        for t, param in zip(tensors, built.kernel.params, strict=True):
            if t in held:
                continue
            x = given.get(t.name)
            if x is not None and x.shape != param.shape:  # by vectors
                x = x.reshape(*x.shape[:2], -1, param.shape[-1]).transpose(0, 2, 1, 3).copy()
            held[t] = np.empty(param.shape, np.float32) if x is None else x
        args = [held[t] for t in tensors]
        if interpreted:
            run_kernel(built.kernel, args)
        else:
            load_kernel(built.kernel, machine)(*args)
    return held[p.tensor]


def check(got: np.ndarray, wanted: np.ndarray) -> None:
    assert np.array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


LENGTHS = [
    Case(24, 64), Case(25, 65), Case(48, 128), Case(49, 127), Case(97, 300), Case(50, 80),
    Case(131, 577, 17, 64), Case(30, 70, 8, 16), Case(60, 256, 80, 96), Case(101, 513, 33, 128),
]  # fmt: skip
MASKS = [
    Case(rows, keys, mask=mask, offset=offset, least=least)
    for rows, keys, offset in (
        (100, 100, 0), (130, 130, 0), (64, 300, 236), (96, 257, 3), (70, 640, 0), (128, 64, -20),
    )
    for mask in BELOW_DIAGONAL
    for least in (-INF, LOWEST, -1e9, -1e4)
    # a sum with -1e4 is rounded to 1e-3, which shows in rows that see no key
    if offset >= 0 or least <= LOWEST or mask == "selected"
]  # fmt: skip


def name(c: Case) -> str:
    how = f"-{c.mask}{c.offset}{c.least}" if c.mask else ""
    return f"{c.rows}x{c.keys}x{c.width}x{c.values}{how}"


@pytest.mark.parametrize("case", [*LENGTHS, *MASKS], ids=name)
def test_lengths_and_masks(case: Case) -> None:
    given = case.inputs()
    check(run(case, given, host()), case.expected(given))


@pytest.mark.parametrize("case", [LENGTHS[4], LENGTHS[6], MASKS[0], MASKS[13]], ids=name)
def test_narrow_vectors(case: Case) -> None:
    machine = psabi_machine("x86-64-v3")
    given = case.inputs()
    check(run(case, given, machine), case.expected(given))


@pytest.mark.parametrize("case", [Case(25, 65, 8, 16, 1), Case(27, 66, 8, 16, 1, "added", 2)])
def test_every_access_is_in_range(case: Case) -> None:
    """The interpreter checks each index."""
    given = case.inputs()
    check(run(case, given, host(), interpreted=True), case.expected(given))


def test_every_option() -> None:
    case = Case(203, 700, mask="added", least=-1e9)
    p, given = case.problem(host()), case.inputs()
    a = streaming.recognise_streaming(p)
    assert a is not None
    some = list(streaming.streaming_options(p, a))
    assert len(some) > 3
    for option in some:
        check(run(case, given, host(), option), case.expected(given))


def test_a_given_mask_may_hide_whole_rows() -> None:
    case = Case(70, 130, mask="given")
    given = case.inputs()
    given["mask"][3] = given["mask"][47] = given["mask"][69] = -INF
    wanted = case.expected(given)
    assert np.isnan(wanted[:, 3]).all()
    check(run(case, given, host()), wanted)


def hidden_key(x: dict[str, np.ndarray], value: float) -> None:
    x["k"][0, 5, 190] = value


def hidden_value(x: dict[str, np.ndarray], value: float) -> None:
    x["v"][1, 190, 7] = value


def seen_key(x: dict[str, np.ndarray], value: float) -> None:
    x["k"][0, 5, 2] = value


def seen_value(x: dict[str, np.ndarray], value: float) -> None:
    x["v"][1, 2, 7] = value


def query(x: dict[str, np.ndarray], value: float) -> None:
    x["q"][1, 33, 4] = value


@pytest.mark.parametrize("value", [float("nan"), INF, -INF])
@pytest.mark.parametrize("put", [hidden_key, hidden_value, seen_key, seen_value, query])
@pytest.mark.parametrize("mask", ["", *BELOW_DIAGONAL])
@pytest.mark.parametrize("least", [-INF, -1e4])
def test_what_is_not_finite(
    put: Callable[[dict[str, np.ndarray], float], None], value: float, mask: str, least: float
) -> None:
    """NaN and infinities have the effect that the formula gives them, behind a mask, too."""
    case = Case(200, 200, mask=mask, least=least)
    given = case.inputs()
    put(given, value)
    check(run(case, given, host()), case.expected(given))


@pytest.mark.parametrize("mask", BELOW_DIAGONAL)
def test_scores_that_outweigh_the_mask(mask: str) -> None:
    """A mask of -1e4 does not hide keys from a score of 1e5, nor from rows of -1e5."""
    case = Case(150, 150, mask=mask, least=-1e4)
    given = case.inputs()
    given["q"] *= 300
    given["k"] *= 300
    wanted = case.expected(given)
    hidden = Case(150, 150, mask=mask).expected(given)
    assert not np.allclose(wanted, hidden, atol=0.1)
    check(run(case, given, host()), wanted)
