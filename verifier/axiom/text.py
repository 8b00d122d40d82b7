"""Print first-order terms in the rule language, as far as possible."""

from __future__ import annotations

from superopt.ops import OPS
from superopt.verifier.axiom.formulas import literal
from superopt.verifier.axiom.logic import VALUE, Fo, is_number, variable
from superopt.verifier.axiom.operators import AXES

_INFIX = ("+", "-", "*", "//", "%", "==", "<", "<=")


def show(t: Fo) -> str:
    """Return the text of a term: operators with their non-default attributes."""
    if variable(t):
        return t.fn[1:]
    if t.fn.startswith("#"):
        return t.fn[1:]
    if t.fn.startswith("["):
        return f"{show(t.args[0])}{t.fn}"
    if t.sort == VALUE:
        return value(t)
    op = OPS.get(t.fn)
    if op is None:  # a constant
        return f"{t.fn}({', '.join(map(value, t.args))})" if t.args else t.fn
    n = len(t.args) - len(op.attrs)
    shown = [show(a) for a in t.args[:n]]
    every = list(zip(op.attrs.items(), t.args[n:], strict=True))
    rest = sorted({a.fn[1:].split(".")[0] for _, a in every if variable(a) and "." in a.fn})
    shown += [f"**{name}" for name in rest]
    for (name, default), a in every:
        if (variable(a) and "." in a.fn) or a is _default(op.name, name, default):
            continue
        shown.append(f"{name}={axis(a) if AXES.get(op.name) == name else value(a)}")
    return f"{op.name}({', '.join(shown)})"


def _default(op: str, name: str, default: object) -> Fo | None:
    if AXES.get(op) == name and isinstance(default, int):
        return literal(-default) if default < 0 else None
    try:
        return literal(default)
    except TypeError:
        return None


def axis(t: Fo) -> str:
    """Return the text of an axis counted from the end: 1 is -1."""
    if is_number(t):
        return str(-int(t.fn))
    if t.fn == "tuple":
        inner = ", ".join(axis(a) for a in t.args)
        return f"({inner},)" if len(t.args) == 1 else f"({inner})"
    return value(t)


def value(t: Fo) -> str:
    """Return the text of a size or attribute."""
    if variable(t):
        return t.fn[1:]
    if t.sort != VALUE:
        return show(t)
    if not t.args:
        return "()" if t.fn == "tuple" else t.fn.strip("'")
    match t.fn, t.args:
        case "tuple", some:
            inner = ", ".join(map(value, some))
            return f"({inner},)" if len(some) == 1 else f"({inner})"
        case "len", (s,) if s.fn == "shape":
            return f"rank({value(s.args[0])})"
        case "back", (s, end):
            inner = value(s.args[0]) if s.fn == "shape" else value(s)
            return f"size({inner}, {axis(end)})"
        case "join", some:
            return " + ".join(map(value, some))
        case "front", (_, axes):
            return value(axes)
        case fn, (a, b) if fn in _INFIX:
            return f"({value(a)} {fn} {value(b)})"
        case fn, some:
            return f"{fn}({', '.join(map(value, some))})"
