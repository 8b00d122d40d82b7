"""The expression syntax that graphs and rules share: names, numbers, attributes, sizes, types.

It is Python's, parsed with `ast` and never evaluated. Everything printed here parses back.
"""

from __future__ import annotations

import ast
import json
import keyword
import re

from superopt.ir.op import Attr
from superopt.te.expr import index
from superopt.te.expr.dtype import DTYPES
from superopt.te.expr.node import Apply, Const, Dim, Expr, Size
from superopt.te.expr.tensor import TensorType, apply

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESULT = re.compile(r"_r\d+")  # the name of %7 for Python's parser
_RESERVED = frozenset({*DTYPES, "any", "inf", "nan", "min", "max", "size", "const", "opaque"})

# --- printing -------------------------------------------------------------------------------------


def quote(s: str) -> str:
    """Return `s` as a Python string literal on one line."""
    return json.dumps(s, ensure_ascii=False) if s.isprintable() else ascii(s)


def is_plain_name(name: str) -> bool:
    """True if `name` needs no quotes."""
    return (
        _WORD.fullmatch(name) is not None
        and not keyword.iskeyword(name)
        and name not in _RESERVED
        and not RESULT.fullmatch(name)
    )


def show_dim(d: Dim, outer_precedence: int = 0) -> str:
    """Return the text of a size: `batch * 2 + 1`. outer_precedence: the precedence of its
    context."""
    match d:
        case int():
            return str(d)
        case Const(v):
            return str(v)
        case Size(name):
            return name if is_plain_name(name) else f"size({quote(name)})"
        case Apply("min" | "max" as fn, args):
            return f"{fn}({', '.join(show_dim(a) for a in args)})"
        case Apply("add", args):
            text, level = " + ".join(show_dim(a, 1) for a in args), 1
        case Apply("mul", args):
            text, level = " * ".join(show_dim(a, 2) for a in args), 2
        case Apply("floordiv" | "mod" as fn, (a, b)):
            sign = "//" if fn == "floordiv" else "%"
            text, level = f"{show_dim(a, 2)} {sign} {show_dim(b, 3)}", 2
        case _:
            raise ValueError(f"{d} is not a size")
    return (
        f"({text})" if level < outer_precedence or (level == 2 and outer_precedence == 2) else text
    )


def show_attr(value: Attr) -> str:
    """Return the text of an attribute: number, string, bool, None, element type, size, or a
    tuple."""
    match value:
        case None | bool() | int() | float():
            return repr(value)
        case str():
            return quote(value)
        case tuple():
            inner = ", ".join(map(show_attr, value))
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        case Expr():
            return show_dim(value)
        case _:
            return str(value)


def show_type(t: TensorType) -> str:
    """Return `f32[2, n]`; `any[...]` for an unknown type."""
    dims = "..." if t.shape is None else ", ".join(map(show_dim, t.shape))
    return f"{t.dtype or 'any'}[{dims}]"


# --- parsing --------------------------------------------------------------------------------------


class MalformedText(Exception):
    """What is wrong with a piece of text."""


_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
}


def parse_attr(e: ast.expr) -> Attr:
    """Return the attribute value of an expression; plain names are element types or sizes."""
    match e:
        case ast.Constant(bool() | int() | float() | str() | None as v):
            return v
        case ast.Name("inf" | "nan" as word):
            return float(word)
        case ast.Name(v) if v in DTYPES:
            return DTYPES[v]
        case ast.Name(v):
            return Size(v)
        case ast.Call(ast.Name("size"), [ast.Constant(str(v))], []):
            return Size(v)
        case ast.Tuple(items) | ast.List(items):
            return tuple(parse_attr(i) for i in items)
        case ast.UnaryOp(ast.USub(), value):
            match parse_attr(value):
                case int() | float() as number:
                    return -number
                case Expr() as size:
                    return index.dim(-size)
            raise MalformedText(f"{ast.unparse(e)} negates a value that is not a number")
        case ast.BinOp(left, op, right):
            return _parse_size(_ARITHMETIC.get(type(op)), (left, right), e)
        case ast.Call(ast.Name("min" | "max" as fn), args, []) if args:
            return _parse_size(fn, tuple(args), e)
        case _:
            raise MalformedText(f"{ast.unparse(e)} is not an attribute value")


def _parse_size(fn: str | None, args: tuple[ast.expr, ...], source: ast.expr) -> Dim:
    terms = [parse_attr(a) for a in args]
    out = terms[0]
    for t in terms[1:]:
        if fn is None or not isinstance(out, (int, Expr)) or not isinstance(t, (int, Expr)):
            raise MalformedText(f"{ast.unparse(source)} is not a size")
        out = index.dim(apply(fn, index.as_index(out), index.as_index(t)))
    if not isinstance(out, (int, Expr)):
        raise MalformedText(f"{ast.unparse(source)} is not a size")
    return out


_SCALAR_TYPE = rf"\b({'|'.join((*DTYPES, 'any'))})\[\s*\]"  # f32[], which is not Python syntax
_NON_PYTHON = re.compile(rf""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|%(\d+)|{_SCALAR_TYPE}""")


def _as_python(m: re.Match[str]) -> str:
    if m[1] is not None:
        return f"_r{m[1]}"
    return f"{m[2]}[()]" if m[2] is not None else m[0]


def parser_message(e: Exception) -> str:
    """Return the message of Python's parser without its location, which refers to the rewritten
    text."""
    return e.msg if isinstance(e, SyntaxError) else str(e)


def expression(text: str) -> ast.expr:
    """Return the syntax tree of `text`, in which `%7` is a name."""
    plain = _NON_PYTHON.sub(_as_python, text.strip())
    try:
        return ast.parse(plain, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as e:
        raise MalformedText(f"not an expression: {parser_message(e)}") from None


def parse_type(e: ast.expr) -> TensorType:
    """Return the type in text such as `f32[2, n]`."""
    match e:
        case ast.Subscript(ast.Name(kind), dims) if kind in DTYPES or kind == "any":
            dtype = DTYPES.get(kind)
        case _:
            raise MalformedText(f"{ast.unparse(e)} is not a tensor type such as f32[2, n]")
    match dims:
        case ast.Constant(value) if value is ...:
            return TensorType(dtype, None)
        case ast.Tuple(items):
            pass
        case _:
            items = [dims]
    shape: list[Dim] = []
    for item in items:
        d = parse_attr(item)
        if not isinstance(d, (int, Expr)) or isinstance(d, bool):
            raise MalformedText(f"{ast.unparse(item)} is not a size")
        shape.append(d)
    return TensorType(dtype, tuple(shape))
