"""Attention on a GPU: keys in parts where rows are few, and causal masks that are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.compilation.cuda import load_compiler
from superopt.kernels.algorithms import space
from superopt.kernels.algorithms.causal_mask import VisibleKeys, visible_keys
from superopt.kernels.algorithms.online_attention import match_online_attention
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.tile import For, Stmt
from superopt.onnx_io.read.source import read_model
from superopt.plan.rewrites.matmul.causal_masks import replace_causal_masks
from superopt.te.expr import index
from superopt.te.expr.dtype import BF16, BOOL, F16, F32
from superopt.te.expr.node import Axis, Expr, Load
from superopt.te.expr.tensor import Tensor, compare, compute, const, select
from tests.support.breadth import examples
from tests.support.compilation.models import reference
from tests.support.gpu.attention import F, H, attention, triangle
from tests.support.gpu.compilation import feeds, near
from tests.support.gpu.device import choose
from tests.support.gpu.models import drawn, heads, node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


def masked(how: str, n: int, t: int, offset: int, least: float) -> onnx.ModelProto:
    """A causal mask, as exporters write it."""
    low, nodes = np.float32(least), []
    known: dict[str, np.ndarray] = {"least": np.asarray(low), "none": np.float32(0)}
    if how == "added":
        known["mask"] = np.where(triangle(n, t, offset), low, np.float32(0))
        nodes = [node("Add", "s1", "mask", "s")]
    elif how == "where":
        known["mask"] = triangle(n, t, offset)[None, None]
        nodes = [node("Where", "mask", "least", "s1", "s")]
    elif how == "kept":
        known["mask"] = ~triangle(n, t, offset)
        nodes = [node("Where", "mask", "s1", "least", "s")]
    elif how == "trilu":
        known |= {"full": np.full((n, t), low), "k": np.array(1 + offset)}
        known["k0"] = known.pop("k")
        nodes = [node("Trilu", "full", "k0", "mask", upper=1), node("Add", "mask", "s1", "s")]
    else:
        numbers = {"zero": 0, "step": 1, "n": n, "t": t, "by": offset, "last": [1]}
        known |= {name: np.array(x) for name, x in numbers.items()}
        nodes = [
            node("Range", "zero", "n", "step", "i0"), node("Add", "i0", "by", "i1"),
            node("Unsqueeze", "i1", "last", "i"), node("Range", "zero", "t", "step", "j"),
            node("LessOrEqual", "j", "i", "here"), node("Where", "here", "none", "least", "mask"),
            node("Add", "s1", "mask", "s"),
        ]  # fmt: skip
    return attention((2, 1, n, t, 16), F, tuple(nodes), known)


def parts_of(o: Option) -> int:
    return dict(o.knobs).get("parts", 1)


def by(
    monkeypatch: pytest.MonkeyPatch, wanted: Callable[[Option], bool], turn: int = 0
) -> Callable[[], None]:
    """Attention is computed by the option that is wanted, of all of those the one of this turn."""
    choice, used = space.choose, []

    def choose(p: Problem, own: Option | None, target: str, vendor: bool) -> Any:
        some = [
            o
            for o in space.options(p, "cuda", vendor)
            if o.algorithm == "online_attention" and wanted(o)
        ]
        if not some:
            return choice(p, own, target, vendor)
        used.append(some[turn % len(some)])
        return space.build_choice(p, used[-1], "cuda")

    monkeypatch.setattr(space, "choose", choose)

    def asked() -> None:
        assert used

    return asked


# --- keys in parts ---

FEW: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "one query": lambda: attention((2, 2, 1, 70, 16)),
    "one query in groups": lambda: attention((4, 2, 1, 70, 16)),
    "all heads of the same keys": lambda: attention((3, 1, 1, 70, 8), H),
    "queries in groups": lambda: attention((4, 2, 3, 150, 20), H),
    "ragged": lambda: heads(5, 1, 20, keys=75),
    "many queries": lambda: attention((1, 1, 37, 70, 16)),
    "causal": lambda: masked("added", 6, 70, 64, -np.inf),
    "causal, finite": lambda: masked("kept", 6, 70, 64, -1e9),
    "whose last keys are left out": lambda: masked("where", 3, 70, 2, -np.inf),
}


QUICK = ("one query in groups", "causal")
BOTH = [pytest.param("fp32", marks=pytest.mark.slow), "fp16"]


@pytest.mark.parametrize("precision", BOTH)
@pytest.mark.parametrize(
    "name", [x if x in QUICK else pytest.param(x, marks=pytest.mark.slow) for x in FEW]
)
def test_parts_are_added(name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    m = FEW[name]()
    fed = few(m)
    asked = by(monkeypatch, lambda o: parts_of(o) > 1, turn=len(name))
    exe = load_compiler.compile_model(read_model(m), precision)
    got = exe.run(fed)
    asked()
    near(got, reference(m, fed), precision)


def few(m: onnx.ModelProto) -> dict[str, np.ndarray]:
    kinds = {v.name: v.type.tensor_type.elem_type for v in m.graph.input}
    return {k: x.astype(np.float16) if kinds[k] == H else x for k, x in feeds(m).items()}


@pytest.mark.parametrize("parts", [1, 2])
def test_a_row_of_which_nothing_is_left(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is no number, and the others have theirs."""
    m = masked("where", 5, 70, -2, -np.inf)
    asked = by(monkeypatch, lambda o: (parts_of(o) > 1) == (parts > 1))
    got = load_compiler.compile_model(read_model(m), "fp32").run(few(m))["y"]
    asked()
    expected = reference(m, few(m))["y"]
    assert np.isnan(got[:, :, :2]).all()
    near({"y": got[:, :, 2:]}, {"y": expected[:, :, 2:]}, "fp32")


@pytest.mark.parametrize(
    ("sizes", "parted"),
    [((32, 8, 1, 4096, 128), True), ((12, 12, 1, 2048, 64), True), ((8, 1, 16, 1024, 64), True),
     ((4, 4, 1, 64, 64), False), ((16, 16, 512, 512, 64), False), ((12, 12, 64, 128, 64), False)],
)  # fmt: skip
def test_where_rows_are_few(sizes: tuple[int, int, int, int, int], parted: bool) -> None:
    """Keys are computed in parts by what that should take; the heads that share keys together."""
    (p,) = (
        load_compiler.compile_model(read_model(attention(sizes, H)), "fp16")
        .variant({})
        .program.problems.values()
    )
    some = list(space.options(p, "cuda"))
    assert (parts_of(some[0]) > 1) == parted
    assert len(set(some)) == len(some)
    a = match_online_attention(p.tensor)
    assert a is not None
    h, keys, n, *_ = sizes
    assert a.rows == (n * (h // keys if n < 16 else 1))


# --- causal masks ---


def loops(body: tuple[Stmt, ...]) -> list[For]:
    out = []
    for s in body:
        if isinstance(s, For):
            out += [s, *loops(s.body)]
    return out


@pytest.mark.parametrize("least", [-np.inf, pytest.param(-1e9, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "how",
    ["added", *(pytest.param(x, marks=pytest.mark.slow) for x in ("where", "kept", "trilu")),
     "ranges"],
)  # fmt: skip
def test_masks_are_compared(how: str, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no constants of a program, and what is behind -inf is not looked at."""
    m = masked(how, 40, 70, 9, least)
    asked = by(monkeypatch, lambda o: o["keys"] == 32 and parts_of(o) == 1)
    exe = load_compiler.compile_model(read_model(m), "fp16")
    near(exe.run(few(m)), reference(m, few(m)), "fp16")
    asked()
    made = exe.variant({}).program
    assert (40, 70) not in [c.type.shape for c in made.constants]
    bounded = [x for k in made.kernels.values() for x in loops(k.body) if x.until is not None]
    assert bool(bounded) == (least == -np.inf)  # of keys of 32 bits


@pytest.mark.slow
def test_what_is_behind_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """By blocks of 64: what is no number in the second one is in no result of the first."""
    mask = np.where(triangle(100, 100, 0), np.float16(-np.inf), np.float16(0))
    m = attention((1, 1, 100, 100, 16), H, (node("Add", "s1", "mask", "s"),), {"mask": mask})
    fed = few(m)
    fed["v"][:, :, 70:] = np.nan
    for parts in (1, 2):
        wanted = (64, 64, parts)
        asked = by(monkeypatch, lambda o, x=wanted: (o["rows"], o["keys"], parts_of(o)) == x)
        got = load_compiler.compile_model(read_model(m), "fp16").run(fed)["y"]
        asked()
        first = 36  # of the last block's rows, which begins where it just fits
        assert np.isfinite(got[:, :, :first]).all()
        assert np.isnan(got[:, :, 70:]).all()
        monkeypatch.undo()
        choose(monkeypatch)


@pytest.mark.parametrize(
    ("least", "large"), [(-300.0, 40), *(pytest.param(*x, marks=pytest.mark.slow)
                                         for x in ((-300.0, 1), (-60000.0, 1), (-60000.0, 40)))],
)  # fmt: skip
def test_scores_that_make_up_for_a_mask(
    least: float, large: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finite mask leaves out what no score can bring back; else all keys are looked at."""
    n = 96
    mask = np.where(triangle(n, n, 0), np.float16(least), np.float16(0))
    m = attention((1, 1, n, n, 16), H, (node("Add", "s1", "mask", "s"),), {"mask": mask})
    fed = {
        k: (drawn(1, 1, n, 16, of=k) * (large if k in "qk" else 1)).astype(np.float16)
        for k in "qkv"
    }
    fed["k"][:, :, 80] = fed["q"][:, :, 3]  # which a query before it looks for
    asked = by(monkeypatch, lambda o: o["rows"] == 32 and parts_of(o) == 1)
    exe = load_compiler.compile_model(read_model(m), "fp16")
    got = exe.run(fed)["y"]
    asked()
    q, k, v = (fed[x].astype(np.float64) for x in "qkv")
    s = q @ k.transpose(0, 1, 3, 2) / 4 + mask
    p = np.exp(s - s.max(-1, keepdims=True))
    near({"y": got}, {"y": (p / p.sum(-1, keepdims=True) @ v).astype(np.float16)}, "fp16")
    found = [x for k_ in exe.variant({}).program.kernels.values() for x in loops(k_.body)]
    assert any(x.until is not None for x in found)


@examples(60)
@given(st.data())
def test_which_constants_are_triangles(data: st.DataObject) -> None:
    n, t = (data.draw(st.integers(2, 7)) for _ in range(2))
    offset = data.draw(st.integers(-n, t))
    below, above = data.draw(st.permutations([0.0, -1.5, -np.inf]))[:2]
    a = np.where(triangle(n, t, offset), above, below).astype(np.float32)
    plain = len(np.unique(a)) == 2
    if plain and data.draw(st.booleans()):
        i, j = data.draw(st.tuples(st.integers(0, n - 1), st.integers(0, t - 1)))
        a[i, j] = 7.0
        plain = False
    mask = Tensor("mask", F32, (n, t))
    made = compute((n, t), lambda i, j: mask[i, j] + 1)
    (out,) = replace_causal_masks({made: made}, [made], {mask: lambda: a}).values()
    assert out.body is not None
    reads = "mask" in str(out.body)
    assert reads == (not plain)
    if plain:
        i, j = out.axes
        whole = compute((n, t), lambda *at: select(
            compare("le", at[1], index.as_index(at[0] + offset)), const(below, F32),
            const(above, F32)) + 1)  # fmt: skip
        env = dict(zip((str(x) for x in whole.axes), (i, j), strict=True))
        assert {str(x) for x in env} <= {"i0", "i1"}
        assert str(out.body) == str(whole.body)


def test_what_a_query_sees() -> None:
    i, j = Axis("i", 50), Axis("j", 60)
    held = Load(Tensor("held", F32, ()), (), F32)
    here = compare("le", j, index.as_index(i + 4))
    scaled, inf = held * const(0.25, F32), const(-np.inf, F32)
    zero, low = const(0, F32), const(-(10**9), F32)
    flag = Tensor("flag", BOOL, (50, 60))
    other = Load(Tensor("bias", F32, (50, 60)), (i, j), F32)

    def of(x: Expr, kind: object = F16) -> VisibleKeys | None:
        return visible_keys(x, i, j, held, kind)

    assert of(scaled) is None
    assert of(select(here, scaled, inf)) == VisibleKeys(4, None)
    assert of(select(compare("lt", index.as_index(i + 4), j), inf, scaled), F32) == VisibleKeys(
        4, None
    )
    assert of(scaled + select(here, zero, inf) + other) == VisibleKeys(4, None)
    assert of(select(compare("le", i, j), scaled, inf)) is None  # keys behind are those that count
    found = of(scaled + select(here, zero, low))
    assert found is not None
    assert found.offset == 4
    assert found.max_query_norm == pytest.approx((1e9 - 200) / (65504 * 0.25 * 2 * 1.01))
    for kind in (F32, BF16):
        assert of(scaled + select(here, zero, low), kind) is None
    assert of(scaled + select(here, zero, low) + other) is None
    assert of(scaled * other + select(here, zero, low)) is None
    assert of(scaled + select(here, zero, const(-100, F32))) is None
    assert of(select(Load(flag, (i, j), BOOL), scaled, inf)) is None
    behind = compare("le", j, index.as_index(i - 1))
    assert of(select(behind, scaled, inf)) == VisibleKeys(-1, None)
    assert of(select(behind, scaled, low)) is None  # the first query sees no key


@pytest.mark.slow
def test_options_do_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ways of one problem, with parts and without, give the same."""
    m = masked("added", 5, 40, 35, -np.inf)
    fed, expected = few(m), reference(m, few(m))
    (p,) = load_compiler.compile_model(read_model(m), "fp32").variant({}).program.problems.values()
    tried = set()
    for o in islice(space.options(p, "cuda"), 12):
        asked = by(monkeypatch, lambda x, o=o: x == o)
        near(load_compiler.compile_model(read_model(m), "fp32").run(fed), expected, "fp32")
        asked()
        monkeypatch.undo()
        choose(monkeypatch)
        tried.add(parts_of(o))
    assert tried >= {1, 2}
