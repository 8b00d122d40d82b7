"""Print terms and formulas in the syntax of Python."""

from __future__ import annotations

from superopt.ir.syntax import show_attr
from superopt.rules.lang.term import (
    Absent,
    AllResults,
    App,
    Binary,
    Call,
    Compare,
    Comprehension,
    Fill,
    If,
    Lit,
    Logic,
    MapTerms,
    Name,
    Number,
    OperandRun,
    Part,
    Pick,
    Scalar,
    Seq,
    Slice,
    Spread,
    Subscript,
    Term,
    TermValue,
    Unary,
    Var,
)

_LEVEL = {"or": 1, "and": 2, "not": 3, "==": 4, "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6}
_NEGATION, _POWER, _ATOM = 7, 8, 9


def show(p: Part) -> str:
    """Return the text of a term or formula in Python's syntax."""
    return _show(p, 0)


def _show_list(items: tuple[Part, ...]) -> str:
    return ", ".join(_show(i, 0) for i in items)


def _comprehension(body: Part, variables: tuple[str, ...], over: Part, test: Part | None) -> str:
    tail = "" if test is None else f" if {_show(test, 1)}"
    return f"{_show(body, 0)} for {', '.join(variables)} in {_show(over, 1)}{tail}"


def _show(p: Part, outer_level: int) -> str:
    text, level = _show_with_level(p)
    return f"({text})" if level < outer_level else text


def _show_with_level(p: Part) -> tuple[str, int]:
    match p:
        case Lit(v):
            negative = isinstance(v, (int, float)) and str(v).startswith("-")
            return show_attr(v), _NEGATION if negative else _ATOM
        case Name(n):
            return n, _ATOM
        case TermValue(term):
            return _show_term(term), _ATOM
        case Seq(items):
            return f"({_show_list(items)}{',' if len(items) == 1 else ''})", _ATOM
        case Spread(v):
            return f"*{_show(v, 5)}", 0
        case Call(fn, (Comprehension(body, own, over, test),)):
            return f"{fn}({_comprehension(body, own, over, test)})", _ATOM
        case Call(fn, args):
            return f"{fn}({_show_list(args)})", _ATOM
        case Comprehension(body, own, over, test):
            return f"[{_comprehension(body, own, over, test)}]", _ATOM
        case Unary("not", v):
            return f"not {_show(v, 3)}", 3
        case Unary(op, v):
            return f"{op}{_show(v, _NEGATION)}", _NEGATION
        case Binary("**", a, b):
            return f"{_show(a, _ATOM)} ** {_show(b, _NEGATION)}", _POWER
        case Binary(op, a, b):
            return f"{_show(a, _LEVEL[op])} {op} {_show(b, _LEVEL[op] + 1)}", _LEVEL[op]
        case Compare(first, rest):
            return _show(first, 5) + "".join(f" {o} {_show(e, 5)}" for o, e in rest), 4
        case Logic(op, conditions):
            level = _LEVEL[op]
            return f" {op} ".join(_show(c, level + 1) for c in conditions), level
        case If(test, yes, no):
            return f"{_show(yes, 1)} if {_show(test, 1)} else {_show(no, 0)}", 0
        case Subscript(v, index):
            return f"{_show(v, _ATOM)}[{_show(index, 0)}]", _ATOM
        case Slice(v, start, stop, step):
            ends = ":".join("" if e is None else _show(e, 0) for e in (start, stop))
            return f"{_show(v, _ATOM)}[{ends}{'' if step is None else ':' + _show(step, 0)}]", _ATOM
        case _:
            return _show_term(p), _ATOM


def _show_term(t: Term) -> str:
    match t:
        case Absent():
            return "None"
        case Number(v):
            return show_attr(v)
        case Var(n):
            return n
        case OperandRun(n):
            return f"*{n}"
        case Scalar(v):
            return f"lit({_show(v, 0)})"
        case Fill(fn, args):
            return f"{fn}({_show_list(args)})"
        case App(op, operands, attrs, rest):
            given = [_show(t, 0) for t in operands]
            given += [f"**{rest}"] if rest is not None else []
            given += [f"{k}={_show(v, 0)}" for k, v in attrs]
            return f"{op.name}({', '.join(given)})"
        case Pick(term, i):
            return f"{_show_term(term)}[{i}]"
        case AllResults(term):
            return f"*{_show_term(term)}"
        case MapTerms(body, own, over):
            return f"*[{_comprehension(body, own, over, None)}]"
