"""Gated products and recurrent cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx

from tests.support.compilation.models import F, model
from tests.support.gpu.models import drawn, node


def gated(
    rows: tuple[int, ...] = (48, 40), n: int = 33, biased: bool = False, act: str = "SiLU",
    other: str = "x", out: tuple[str, ...] = (), down: int = 0, turned: bool = False,
) -> onnx.ModelProto:  # fmt: skip
    """f(x w) * (x v); other: of what the second product is; out: more outputs; down: columns of a
    product behind; turned: the gate is read by columns."""
    k = rows[-1]
    known = {"w": drawn(k, n, scale=k**-0.5), "v": drawn(k, n, scale=k**-0.5) * 2}
    nodes = [node("MatMul", "x", "w", "g0"), node("MatMul", other, "v", "u0")]
    if biased:
        known |= {"b": drawn(n), "c": drawn(n) * 3}
    nodes += [node("Add", "g0", "b", "g1"), node("Add", "u0", "c", "u")] if biased else [
        node("Identity", "g0", "g1"), node("Identity", "u0", "u")]  # fmt: skip
    g = "g1"
    if turned:
        nodes.append(node("Transpose", "g1", "gt", perm=[1, 0]))
        g = "gt"
    if act == "SiLU":
        nodes += [node("Sigmoid", g, "s"), node("Mul", g, "s", "f")]
    else:
        nodes.append(node(act, g, "f"))
    nodes.append(node("Mul", "f", "u", "z"))
    if down:
        known["d"] = drawn(n, down, scale=n**-0.5)
    nodes.append(node("MatMul", "z", "d", "y") if down else node("Neg", "z", "y"))
    given = {"x": (F, [*rows])} | ({"t": (F, [*rows])} if other == "t" else {})
    return model(nodes, given, ["y", *out], known)


ACTS = ("Sigmoid", "Tanh", "Relu")


def cell(
    gates: int, rows: int = 16, k: int = 40, n: int = 24, steps: int = 1, last: str = "h",
    more: str = "", out: tuple[str, ...] = (), major: bool = False, bias: bool = True,
) -> onnx.ModelProto:  # fmt: skip
    """h = tanh(a0(g0) a1(g1) + a2(g2) a3(g3) + ...), where g = x w + h u + b, of some steps of x.
    last: which of the two products comes second; more: an input that is added to the result; out:
    more outputs; major: are steps the first dimension of x? bias: is there a b?"""
    rest = "x" if last == "h" else "h"
    known: dict[str, np.ndarray] = {}
    nodes = []
    for g in range(gates):
        known |= {
            f"w{g}": drawn(k, n, scale=0.8 * k**-0.5) + g / 50,
            f"u{g}": drawn(n, n, scale=n**-0.5) / 2 - g / 50, f"b{g}": drawn(n) - g / 9,
        }  # fmt: skip
    for t in range(steps):
        known[f"t{t}"] = np.array(t)
        nodes.append(node("Gather", "x", f"t{t}", f"x{t}", axis=0 if major else 1))
        sides = {"x": (f"x{t}", "w"), "h": (f"h{t}", "u")}
        for g in range(gates):
            for name in (rest, last):
                value, matrix = sides[name]
                nodes.append(node("MatMul", value, f"{matrix}{g}", f"{name}{t}_{g}"))
            sum_ = f"s{t}_{g}" if bias else f"g{t}_{g}"
            nodes.append(node("Add", f"{rest}{t}_{g}", f"{last}{t}_{g}", sum_))
            if bias:
                nodes.append(node("Add", sum_, f"b{g}", f"g{t}_{g}"))
            nodes.append(node(ACTS[g % 3], f"g{t}_{g}", f"a{t}_{g}"))
        terms = []
        for g in range(0, gates, 2):
            terms.append(f"m{t}_{g}" if g + 1 < gates else f"a{t}_{g}")
            if g + 1 < gates:
                nodes.append(node("Mul", f"a{t}_{g}", f"a{t}_{g + 1}", terms[-1]))
        nodes += [node("Sum", *terms, f"z{t}"), node("Tanh", f"z{t}", f"h{t + 1}")]
    end = f"h{steps}"
    nodes.append(node("Add", end, more, "y") if more else node("Identity", end, "y"))
    x = [steps, rows, k] if major else [rows, steps, k]
    given = {"x": (F, x), "h0": (F, [rows, n])} | ({more: (F, [rows, n])} if more else {})
    return model(nodes, given, ["y", *out], known)


CELLS: Mapping[str, tuple[Callable[[], onnx.ModelProto], int, tuple[int, ...]]] = {
    # A model, how many kernels it is, and of how many products those are that are gated.
    "four gates": (lambda: cell(4), 2, (4,)),
    "eight gates": (lambda: cell(8), 2, (8,)),
    "three gates of sizes that blocks do not divide": (
        lambda: cell(3, rows=21, k=50, n=37),
        2,
        (3,),
    ),
    "four gates of more rows": (lambda: cell(4, rows=70, k=64, n=90), 2, (4,)),
    "more gates than are one kernel": (lambda: cell(10, bias=False), 4, (8,)),
    "something added": (lambda: cell(4, more="more"), 2, (4,)),
    "a gate that is needed elsewhere": (lambda: cell(4, out=("h0_1",)), 4, (3,)),
    "steps": (lambda: cell(4, steps=3), 4, (4, 4, 4)),
    "steps, the state's products first": (lambda: cell(4, steps=3, last="x"), 5, (4, 4, 4)),
    "steps that come first": (lambda: cell(5, steps=2, rows=20, major=True), 3, (5, 5)),
}


MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "gated": gated,
    "with biases": lambda: gated(act="Sigmoid", biased=True),
    "of three dimensions, and one behind": lambda: gated((2, 24, 40), 48, down=24),
    "of whole blocks": lambda: gated((64, 64), 64, act="Tanh", down=32),
    "of one text, and one behind": lambda: gated((1, 24, 40), 48, down=24),
    "of few rows": lambda: gated((10, 100), 70, act="Erf"),
}
