"""Formulas of sizes in C: texts of Python expressions over s0, s1, ... as expressions over s[0],
s[1], ...; t0, t1, ... are variables.

The functions are those of export/formulas.c: they divide as Python does, and set `*bad` where a
value is not an int64_t or a divisor is 0.
"""

from __future__ import annotations

import ast
from functools import reduce

_FUNCTIONS = {ast.Add: "add", ast.Mult: "mul", ast.FloorDiv: "floor_div", ast.Mod: "modulo"}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Eq: "==", ast.GtE: ">="}
MAX_INT64 = 2**63 - 1


def c_formula(text: str) -> str:
    """Return the C expression of a formula. Raises NotImplementedError for other expressions."""
    return _c_expression(ast.parse(text, mode="eval").body)


def c_condition(guards: tuple[str, ...]) -> str:
    """Return the C expression that holds where all guards do."""
    return " && ".join(map(c_formula, guards)) or "1"


def _c_expression(e: ast.expr) -> str:
    match e:
        case ast.Constant(value=int(value)) if value <= MAX_INT64:
            return f"INT64_C({value})"
        case ast.Name(id=name) if name[0] == "s" and name[1:].isdecimal():
            return f"s[{name[1:]}]"
        case ast.Name(id=name) if name[0] == "t" and name[1:].isdecimal():
            return name
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if (
            value == MAX_INT64 + 1
        ):
            return "INT64_MIN"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _c_call("mul", _c_expression(operand), "-1")
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"!{_c_expression(operand)}"
        case ast.BinOp(left=a, op=op, right=b) if type(op) in _FUNCTIONS:
            return _c_call(_FUNCTIONS[type(op)], _c_expression(a), _c_expression(b))
        case ast.BinOp(left=a, op=ast.Sub(), right=b):
            return _c_call("add", _c_expression(a), _c_call("mul", _c_expression(b), "-1"))
        case ast.IfExp(test=test, body=a, orelse=b):
            return f"({_c_expression(test)} ? {_c_expression(a)} : {_c_expression(b)})"
        case ast.Compare(left=a, ops=[op], comparators=[b]) if type(op) in _COMPARISONS:
            return f"({_c_expression(a)} {_COMPARISONS[type(op)]} {_c_expression(b)})"
        case ast.Call(func=ast.Name(id="max" | "min" as name), args=args, keywords=[]):
            return reduce(lambda a, b: f"{name}imum({a}, {b})", map(_c_expression, args))
    raise NotImplementedError(f"{ast.unparse(e)} in C")


def _c_call(function: str, a: str, b: str) -> str:
    return f"{function}({a}, {b}, bad)"
