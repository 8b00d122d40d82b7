"""Parse Python's syntax trees to terms, formulas and parameters. Nothing is evaluated.

The caller reports `Malformed` with the file and the line.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass

from superopt.ir.op import REQUIRED, Op
from superopt.ir.syntax import MalformedText, parser_message
from superopt.rules.lang.functions import FUNCTIONS
from superopt.rules.lang.printer import show
from superopt.rules.lang.term import (
    FILL_ARITIES,
    Absent,
    AllResults,
    App,
    Binary,
    Call,
    Compare,
    Comprehension,
    Fill,
    Formula,
    If,
    Lit,
    Logic,
    MapTerms,
    Name,
    Number,
    OperandRun,
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
from superopt.te.expr.dtype import BOOL, DTYPES, I8, I32, I64, INDEX, U8, DType

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}
_UNARY: dict[type[ast.unaryop], str] = {ast.USub: "-", ast.Not: "not"}
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
}
_SPECIAL = {"single_use": (1, 1), "all": (1, 1), "any": (1, 1)}
# Parameter kinds: a letter is one element type in a rule, a word any of several types.
LETTERS = ("f", "g", "i", "q")
FLOATS = frozenset(d for d in DTYPES.values() if d.is_float)
# Integers of the other types are named by themselves: runtimes have few operators on them.
INTEGERS = frozenset((I32, I64))
QUANTIZED = frozenset((I8, U8))
KINDS: dict[str, frozenset[DType]] = {
    "f": FLOATS,
    "g": FLOATS,
    "i": INTEGERS,
    "q": QUANTIZED,
    "num": FLOATS | INTEGERS,
    "bool": frozenset((BOOL,)),
    "any": frozenset(DTYPES.values()) - {INDEX},
}


def element_types(kind: str) -> frozenset[DType]:
    """Return the element types that a parameter of this kind may have."""
    return KINDS.get(kind) or frozenset((DTYPES[kind],))


@dataclass(frozen=True, slots=True)
class Param:
    """`x: f[*s, n, 4]`: an operand; `shape` None is any. `is_run`: `*xs`, a run of operands."""

    name: str
    kind: str = "any"
    shape: tuple[Formula, ...] | None = None
    is_run: bool = False

    def __str__(self) -> str:
        dims = "" if self.shape is None else f"[{', '.join(map(show, self.shape))}]"
        return f"{'*' * self.is_run}{self.name}: {self.kind}{dims}"

    @property
    def literal_elements(self) -> int:
        """The number of elements by its literal sizes, whatever its named sizes are."""
        numbers = [d.value for d in self.shape or () if isinstance(d, Lit)]
        return math.prod(n for n in numbers if isinstance(n, int))


@dataclass(frozen=True, slots=True)
class AttrParam:
    """`k: axis(x)` after `*`: an attribute variable; its kind is used to generate test
    instances."""

    name: str
    kind: Formula | None = None

    def __str__(self) -> str:
        return self.name if self.kind is None else f"{self.name}: {show(self.kind)}"


def parse_formula(e: ast.expr, ops: Mapping[str, Op], check_functions: bool = True) -> Formula:
    """Parse a formula. Without `check_functions`, any function name is accepted."""

    def sub(x: ast.expr) -> Formula:
        return parse_formula(x, ops, check_functions)

    match e:
        case ast.Constant(bool() | int() | float() | str() | None as v):
            return Lit(v)
        case ast.Name("inf"):
            return Lit(math.inf)
        case ast.Name(n):
            return Lit(DTYPES[n]) if n in DTYPES else Name(n)
        case ast.Tuple(items) | ast.List(items):
            return Seq(tuple(sub(i) for i in items))
        case ast.Starred(v):
            return Spread(sub(v))
        case ast.Call() | ast.Subscript() if _is_operator_result(e, ops):
            return TermValue(parse_term(e, ops))
        case ast.Call(ast.Name(n), args, []):
            if check_functions:
                _check_call(n, args)
            return Call(n, tuple(sub(a) for a in args))
        case ast.UnaryOp(ast.USub(), v) if (number := _literal_number(v)) is not None:
            return Lit(-number)
        case ast.UnaryOp(op, v) if type(op) in _UNARY:
            return Unary(_UNARY[type(op)], sub(v))
        case ast.BinOp(a, op, b) if type(op) in _BINARY:
            return Binary(_BINARY[type(op)], sub(a), sub(b))
        case ast.BoolOp(op, operands):
            return Logic(
                "and" if isinstance(op, ast.And) else "or", tuple(sub(s) for s in operands)
            )
        case ast.Compare(first, links, rest) if all(type(o) in _COMPARE for o in links):
            pairs = zip(links, rest, strict=True)
            return Compare(sub(first), tuple((_COMPARE[type(o)], sub(r)) for o, r in pairs))
        case ast.IfExp(test, yes, no):
            return If(sub(test), sub(yes), sub(no))
        case ast.Subscript(v, ast.Slice(start, stop, step)):
            ends = [None if x is None else sub(x) for x in (start, stop, step)]
            return Slice(sub(v), ends[0], ends[1], ends[2])
        case ast.Subscript(v, index):
            return Subscript(sub(v), sub(index))
        case ast.GeneratorExp(body, [g]) | ast.ListComp(body, [g]):
            own, over, ifs = _parse_loop(g)
            tests = tuple(sub(t) for t in ifs)
            guard = None if not tests else tests[0] if len(tests) == 1 else Logic("and", tests)
            return Comprehension(sub(body), own, sub(over), guard)
        case _:
            raise MalformedText(f"{ast.unparse(e)} is not part of the rule language")


def _literal_number(e: ast.expr) -> int | float | None:
    """Return the number that a literal is, also inf; None for other expressions."""
    match e:
        case ast.Constant(int() | float() as v) if not isinstance(v, bool):
            return v
        case ast.Name("inf"):
            return math.inf
        case _:
            return None


def _is_operator_result(e: ast.expr, ops: Mapping[str, Op]) -> bool:
    """True for Relu(x) and Split(x)[0], False for functions such as shape(x)."""
    match e:
        case ast.Call(ast.Name(n)) | ast.Subscript(ast.Call(ast.Name(n)), ast.Constant(int())):
            return n in ops
        case _:
            return False


def _check_call(name: str, args: list[ast.expr]) -> None:
    if name in FUNCTIONS:
        least, most = FUNCTIONS[name].min_args, FUNCTIONS[name].max_args
    elif name in _SPECIAL:
        least, most = _SPECIAL[name]
    else:
        known = ", ".join(sorted({*FUNCTIONS, *_SPECIAL}))
        raise MalformedText(f"there is no function or operator {name}; functions are {known}")
    if any(isinstance(a, ast.Starred) for a in args):
        return
    if not least <= len(args) <= most:
        count = str(least) if least == most else f"{least} to {most}"
        raise MalformedText(f"{name} takes {count} arguments, not {len(args)}")


def _parse_loop(g: ast.comprehension) -> tuple[tuple[str, ...], ast.expr, list[ast.expr]]:
    match g.target:
        case _ if g.is_async:
            raise MalformedText("async is not part of the rule language")
        case ast.Name(n):
            return (n,), g.iter, g.ifs
        case ast.Tuple(items):
            own = tuple(i.id for i in items if isinstance(i, ast.Name))
            if len(own) == len(items) > 1:
                return own, g.iter, g.ifs
    raise MalformedText(f"for {ast.unparse(g.target)}: the variables must be names")


def _parse_map(
    e: ast.expr, body: ast.expr, loop: ast.comprehension, ops: Mapping[str, Op]
) -> MapTerms:
    names, over, tests = _parse_loop(loop)
    if tests:
        raise MalformedText(f"{ast.unparse(e)}: no `if` among operands")
    match parse_formula(over, ops):
        case TermValue(App() as app):
            return MapTerms(parse_term(body, ops), names, app)
        case source:
            return MapTerms(parse_term(body, ops), names, source)


def parse_term(e: ast.expr, ops: Mapping[str, Op]) -> Term:
    """Parse a term."""
    match e:
        case ast.Constant(None):
            return Absent()
        case ast.Constant(int() | float() as v):
            return Number(v)
        case ast.Name("inf"):
            return Number(math.inf)
        case ast.UnaryOp(ast.USub(), v) if (number := _literal_number(v)) is not None:
            return Number(-number)
        case ast.Name(n) if n not in DTYPES:
            return Var(n)
        case ast.Starred(ast.Name(n)):
            return OperandRun(n)
        case ast.Starred(inner):
            match parse_term(inner, ops):
                case App() as app:
                    return AllResults(app)
                case MapTerms() as terms:
                    return terms
        case ast.ListComp(body, [g]) | ast.GeneratorExp(body, [g]):
            return _parse_map(e, body, g, ops)
        case ast.Subscript(v, ast.Constant(int() as index)):
            match parse_term(v, ops):
                case App() as app if index >= 0:
                    return Pick(app, index)
        case ast.Call(ast.Name("lit"), [v], []):
            return Scalar(parse_formula(v, ops))
        case ast.Call(ast.Name(n), args, []) if n in FILL_ARITIES:
            return _parse_fill(n, args, ops)
        case ast.Call(ast.Name(n), args, keywords):
            if n not in ops:
                raise MalformedText(f"there is no operator {n}")
            return _parse_app(ops[n], args, keywords, ops)
    raise MalformedText(f"{ast.unparse(e)} is not a term such as Relu(x)")


def _parse_fill(kind: str, given: list[ast.expr], ops: Mapping[str, Op]) -> Fill:
    least, most = FILL_ARITIES[kind]
    if not least <= len(given) <= most:
        raise MalformedText(f"{kind} takes {least} or {most} arguments, not {len(given)}")
    args = tuple(parse_formula(a, ops) for a in given)
    if len(args) == most:
        match args[-1]:
            case Seq() | Lit(int() | float() | str()):
                shown = show(args[-1])
                raise MalformedText(f"{kind}: {shown} is not an element type such as dtype(x)")
    if kind == "table":
        if not isinstance(args[0], Seq):
            raise MalformedText(f"table takes tuples of numbers, not {show(args[0])}")
        _table_shape(args[0])
    return Fill(kind, args)


def _table_shape(rows: Formula) -> tuple[int, ...]:
    """Return the shape of a table."""
    match rows:
        case Seq(()):
            raise MalformedText("table: a row is empty")
        case Seq(items):
            inner = {_table_shape(i) for i in items}
            if len(inner) > 1:
                raise MalformedText(f"table: the rows of {show(rows)} differ in length")
            return (len(items), *inner.pop())
        case Lit(str() | bool() as v):
            raise MalformedText(f"table: {v!r} is not a number")
    return ()


def _parse_app(
    op: Op, args: list[ast.expr], keywords: list[ast.keyword], ops: Mapping[str, Op]
) -> Term:
    if op.opaque:
        raise MalformedText(f"{op.name} has no tensor expression: rules cannot use it")
    operands = [parse_term(a, ops) for a in args]
    while operands and isinstance(operands[-1], Absent):
        operands.pop()
    runs = [t for t in operands if isinstance(t, (OperandRun, AllResults, MapTerms))]
    if runs and not op.variadic:
        raise MalformedText(f"{op.name} takes no run of operands")
    most = len(op.inputs)
    if not runs and (len(operands) < op.required or (len(operands) > most and not op.variadic)):
        takes = f"{op.required} or more" if op.variadic else f"{op.required} to {most}"
        raise MalformedText(f"{op.name} takes {takes} operands, not {len(operands)}")
    attrs: dict[str, Formula] = {}
    rest: str | None = None
    for k in keywords:
        if k.arg is None:
            if rest is not None or not isinstance(k.value, ast.Name):
                raise MalformedText(f"**{ast.unparse(k.value)}: one name may follow **")
            rest = k.value.id
        elif k.arg not in op.attrs:
            known = ", ".join(op.attrs) or "none"
            raise MalformedText(f"{op.name} has no attribute {k.arg}; it has {known}")
        else:
            attrs[k.arg] = parse_formula(k.value, ops)
    missing = [k for k, v in op.attrs.items() if v is REQUIRED and k not in attrs]
    if missing and rest is None:
        raise MalformedText(f"{op.name} needs the attribute {missing[0]}")
    return App(op, tuple(operands), tuple(attrs.items()), rest)


def parse_params(header: str, ops: Mapping[str, Op]) -> tuple[Param | AttrParam, ...]:
    """Parse `x: f[n, k], *xs: f, k: axis(x)` as Python parses a function's parameters."""
    text = header.replace("[ ]", "[]").replace("[]", "[()]")
    try:
        (tree,) = ast.parse(f"def rule({text}): pass").body
    except (SyntaxError, ValueError) as e:
        raise MalformedText(f"parameters ({header}): {parser_message(e)}") from None
    if not isinstance(tree, ast.FunctionDef) or len(tree.body) != 1:
        raise MalformedText(f"({header}) are not parameters")
    a = tree.args
    if a.posonlyargs or a.kwarg or a.defaults or any(d is not None for d in a.kw_defaults):
        raise MalformedText(f"({header}): only names with kinds, `*xs`, and names after `*`")
    out: list[Param | AttrParam] = [_parse_param(p, False, ops) for p in a.args]
    if a.vararg is not None:
        out.append(_parse_param(a.vararg, True, ops))
    for p in a.kwonlyargs:
        kind = (
            None
            if p.annotation is None
            else parse_formula(p.annotation, ops, check_functions=False)
        )
        out.append(AttrParam(p.arg, kind))
    for one in out:
        if one.name in DTYPES or one.name == "inf":
            raise MalformedText(f"{one.name} is the name of an element type or number")
    return tuple(out)


def _parse_param(p: ast.arg, is_run: bool, ops: Mapping[str, Op]) -> Param:
    kind, shape = "any", None
    match p.annotation:
        case None:
            pass
        case ast.Name(kind):
            pass
        case ast.Subscript(ast.Name(kind), ast.Constant(v)) if v is ...:
            pass
        case ast.Subscript(ast.Name(kind), ast.Tuple(items)):
            shape = tuple(parse_formula(i, ops) for i in items)
        case ast.Subscript(ast.Name(kind), item):
            shape = (parse_formula(item, ops),)
        case other:
            raise MalformedText(f"{p.arg}: {ast.unparse(other)} is not a type such as f[n, 4]")
    if kind not in KINDS and kind not in DTYPES:
        known = ", ".join(KINDS)
        raise MalformedText(
            f"{p.arg}: {kind} is not a tensor kind; kinds are {known} and types as f32"
        )
    if shape is not None:
        runs = [d for d in shape if isinstance(d, Spread)]
        if len(runs) > 1 or any(not isinstance(d.value, Name) for d in runs):
            raise MalformedText(f"{p.arg}: at most one *name among the sizes")
    return Param(p.arg, kind, shape, is_run)
