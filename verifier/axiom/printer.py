"""Print first-order terms in the rule language, as far as possible."""

from __future__ import annotations

from superopt.ops import OPS
from superopt.verifier.axiom.formulas import literal
from superopt.verifier.axiom.logic import VALUE_SORT, FoTerm, is_number, is_variable
from superopt.verifier.axiom.operators import AXIS_ATTRIBUTES

_INFIX = ("+", "-", "*", "//", "%", "==", "<", "<=")


def show(t: FoTerm) -> str:
    """Return the text of a term: operators with their non-default attributes."""
    if is_variable(t):
        return t.fn[1:]
    if t.fn.startswith("#"):
        return t.fn[1:]
    if t.fn.startswith("["):
        return f"{show(t.args[0])}{t.fn}"
    if t.sort == VALUE_SORT:
        return show_value(t)
    op = OPS.get(t.fn)
    if op is None:  # a constant
        return f"{t.fn}({', '.join(map(show_value, t.args))})" if t.args else t.fn
    n = len(t.args) - len(op.attrs)
    shown = [show(a) for a in t.args[:n]]
    every = list(zip(op.attrs.items(), t.args[n:], strict=True))
    rest = sorted({a.fn[1:].split(".")[0] for _, a in every if is_variable(a) and "." in a.fn})
    shown += [f"**{name}" for name in rest]
    for (name, default), a in every:
        if (is_variable(a) and "." in a.fn) or a is _default(op.name, name, default):
            continue
        shown.append(
            f"{name}={show_axis(a) if AXIS_ATTRIBUTES.get(op.name) == name else show_value(a)}"
        )
    return f"{op.name}({', '.join(shown)})"


def _default(op: str, name: str, default: object) -> FoTerm | None:
    if AXIS_ATTRIBUTES.get(op) == name and isinstance(default, int):
        return literal(-default) if default < 0 else None
    try:
        return literal(default)
    except TypeError:
        return None


def show_axis(t: FoTerm) -> str:
    """Return the text of an axis counted from the end: 1 is -1."""
    if is_number(t):
        return str(-int(t.fn))
    if t.fn == "tuple":
        inner = ", ".join(show_axis(a) for a in t.args)
        return f"({inner},)" if len(t.args) == 1 else f"({inner})"
    return show_value(t)


def show_value(t: FoTerm) -> str:
    """Return the text of a size or attribute."""
    if is_variable(t):
        return t.fn[1:]
    if t.sort != VALUE_SORT:
        return show(t)
    if not t.args:
        return "()" if t.fn == "tuple" else t.fn.strip("'")
    match t.fn, t.args:
        case "tuple", some:
            inner = ", ".join(map(show_value, some))
            return f"({inner},)" if len(some) == 1 else f"({inner})"
        case "len", (s,) if s.fn == "shape":
            return f"rank({show_value(s.args[0])})"
        case "back", (s, end):
            inner = show_value(s.args[0]) if s.fn == "shape" else show_value(s)
            return f"size({inner}, {show_axis(end)})"
        case "join", some:
            return " + ".join(map(show_value, some))
        case "front", (_, axes):
            return show_value(axes)
        case fn, (a, b) if fn in _INFIX:
            return f"({show_value(a)} {fn} {show_value(b)})"
        case fn, some:
            return f"{fn}({', '.join(map(show_value, some))})"
