"""Write sizes as formulas (size_formulas.py)."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.te.expr.node import Apply, Const, Dim, Size

_INFIX = {"add": "+", "mul": "*", "floordiv": "//", "mod": "%", "lt": "<", "le": "<=", "eq": "=="}


def formula_text(e: Dim, names: Sequence[str]) -> str:
    """Return a size, or a comparison of sizes, as the text of a Python expression."""
    match e:
        case int():
            return str(e)
        case Const(value):
            return str(int(value))
        case Size(name):
            return f"s{names.index(name)}"
        case Apply("max" | "min" as fn, args):
            return f"{fn}({', '.join(formula_text(a, names) for a in args)})"
        case Apply(fn, args) if fn in _INFIX:
            return f"({f' {_INFIX[fn]} '.join(formula_text(a, names) for a in args)})"
    raise NotImplementedError(f"{e} as a formula of sizes")
