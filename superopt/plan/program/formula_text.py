"""Write sizes as formulas (size_formulas.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from superopt.plan.program.size_formulas import SizeFormulas
from superopt.te.expr.node import Apply, Const, Dim, Expr, Size

_INFIX = {"add": "+", "mul": "*", "floordiv": "//", "mod": "%", "lt": "<", "le": "<=", "eq": "=="}
_NO_NAMES: Mapping[Expr, str] = {}


def formula_text(e: Dim, names: Sequence[str], defined: Mapping[Expr, str] = _NO_NAMES) -> str:
    """Return a size, or a comparison of sizes, as the text of a Python expression. names: of the
    sizes s0, s1, ... defined: names of subexpressions."""
    if not isinstance(e, int) and e in defined:
        return defined[e]
    match e:
        case int():
            return str(e)
        case Const(value):
            return str(int(value))
        case Size(name):
            return f"s{names.index(name)}"
        case Apply("max" | "min" as fn, args):
            return f"{fn}({', '.join(formula_text(a, names, defined) for a in args)})"
        case Apply(fn, args) if fn in _INFIX:
            parts = (formula_text(a, names, defined) for a in args)
            return f"({f' {_INFIX[fn]} '.join(parts)})"
    raise NotImplementedError(f"{e} as a formula of sizes")


def guard_text(guard: Expr, holds: bool, names: Sequence[str]) -> str:
    """Return the text of the condition that a comparison holds, or does not."""
    return ("" if holds else "not ") + formula_text(guard, names)


def define_shared(
    es: Iterable[Dim], names: Sequence[str]
) -> tuple[tuple[str, ...], dict[Expr, str]]:
    """Return the formulas of the subexpressions that occur more than once, and the name of each:
    t0, t1, ..., in the order of the formulas, which use those before."""
    uses: dict[Expr, int] = {}  # an expression follows its operands

    def count(e: Dim) -> None:
        if not isinstance(e, Apply):
            return
        if e not in uses:
            for a in e.args:
                count(a)
            uses[e] = 0
        uses[e] += 1

    for e in es:
        count(e)
    defined: dict[Expr, str] = {}
    formulas = []
    for e, n in uses.items():
        if n > 1:
            formulas.append(formula_text(e, names, defined))
            defined[e] = f"t{len(defined)}"
    return tuple(formulas), defined


def shape_formulas(shapes: Iterable[Sequence[Dim]], names: Sequence[str]) -> SizeFormulas:
    """Return formulas of these shapes."""
    texts = tuple(tuple(formula_text(d, names) for d in shape) for shape in shapes)
    return SizeFormulas(tuple(names), (), (), "0", "0", texts)
