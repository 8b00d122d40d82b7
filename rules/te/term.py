"""The syntax of rules on tensor expressions: terms, rules, and their parser.

    hoist-left(x: f32[...], z: f32[...], c: number):
        sum(*k, store(x(*k) * c) * z(*k)) => sum(*k, x(*k) * z(*k)) * value(c)
        where near_one(c)

docs/reference/te_rules.md describes the language. The syntax is Python's, parsed with `ast` and
never evaluated.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import reduce
from itertools import pairwise
from typing import TypeAlias

from superopt.errors import UsageError
from superopt.ir.syntax import MalformedText, parser_message
from superopt.rules.lang.lines import logical_lines
from superopt.te.expr.dtype import DTYPES
from superopt.te.expr.functions import FUNCTIONS, REDUCTION_COMBINERS


@dataclass(frozen=True, slots=True)
class Lit:
    """A number as written."""

    value: int | float


@dataclass(frozen=True, slots=True)
class Var:
    """`x`, an expression, size, axis or number; `x(k, *h)`: an expression that may depend on these
    axes; with other arguments, the same expression with them in place of its axes."""

    name: str
    args: tuple[Term, ...] | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """`*k`: a run of axes or sizes among arguments or indices."""

    name: str


@dataclass(frozen=True, slots=True)
class Rest:
    """`...`: the axes of the tensor that is rewritten, or any indices."""


@dataclass(frozen=True, slots=True)
class Call:
    """A scalar function, an arithmetic operator, a comparison, or a function of a condition."""

    fn: str
    args: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Tuple:
    """`(p, m)`: names that a condition chooses."""

    items: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class AxisTerm:
    """`k < n`, `*k < n`, `k`; `k.r < n`: an axis named after `k`."""

    name: str
    extent: Term | None = None
    is_run: bool = False


@dataclass(frozen=True, slots=True)
class Fold:
    """A reduction over axes. fn "tensor": the tensor itself, with these axes; "axes": a condition
    on the axes of the tensor."""

    fn: str
    axes: tuple[AxisTerm | Rest, ...]
    body: Term


@dataclass(frozen=True, slots=True)
class Element:
    """`m[i, j]`: an element of a tensor that is not looked into."""

    tensor: str
    index: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """`store.name[j < p, ...](x)[index]`: an element of a tensor in memory with these axes. On the
    left side any tensor whose definition may be inlined; without axes those of the result."""

    name: str
    axes: tuple[AxisTerm | Rest, ...]
    body: Term
    index: tuple[Term, ...] | None = None


Term: TypeAlias = Lit | Var | Run | Rest | Call | Tuple | Fold | Element | Store


@dataclass(frozen=True, slots=True)
class TeRule:
    """A rule lhs => rhs. kinds: those of declared names. where: conditions, in order. names: terms
    that stand for names, written `name=term` among the conditions. source: file and line."""

    name: str
    kinds: Mapping[str, str]
    lhs: Term
    rhs: Term
    where: tuple[Term, ...] = ()
    names: Mapping[str, Term] = field(default_factory=dict)
    text: str = ""
    source: str = ""

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class Fact:
    """`invertible(x + c) where 1 <= abs(c)`: a property that expressions of a form have."""

    predicate: str
    rule: TeRule  # its left and right sides are the form


OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.Pow: "pow", ast.Lt: "lt", ast.LtE: "le", ast.Eq: "eq", ast.NotEq: "ne",
    ast.In: "in", ast.And: "and", ast.Or: "or",
}  # fmt: skip
# Functions of sizes and conditions beside the scalar functions.
SIZE_FUNCTIONS = frozenset(("prod", "unravel", "ravel", "count", "all", "value", "identity", "in"))
FOLDS = frozenset((*REDUCTION_COMBINERS, "reduce", "tensor"))
KINDS = frozenset((
    "any", "computed", "number", "constant", "reduction", "axis", "size", "nat", "int", "run",
    "order", "bool", *DTYPES,
))  # fmt: skip
_HEAD = re.compile(r"([a-z][\w-]*)(?:\((.*?)\))?:\s*(.*)")
_EACH = re.compile(r"each ([A-Z]): (.*)")
_HOLE = re.compile(r"\{([A-Z])\}")
_WHERE = re.compile(r"\bwhere\b")


def parse_te_rules(text: str, source: str) -> tuple[list[TeRule], list[Fact]]:
    """Return the rules and facts of a text. Raises UsageError, which names the line."""
    rules: list[TeRule] = []
    facts: list[Fact] = []
    for number, line in _expanded_lines(text):
        try:
            one = _parse_line(line, f"{source}:{number}")
        except MalformedText as e:
            raise UsageError(
                f"{source}:{number}: {e}", f"in the rule: {line}", "see docs/reference/te_rules.md"
            ) from None
        if isinstance(one, Fact):
            facts.append(one)
        else:
            rules.append(one)
    return rules, facts


def _expanded_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers; those with holes as `{R}` for each of the words that a
    line `each R: sum max` before them lists."""
    words: dict[str, list[str]] = {}
    for number, line in logical_lines(text):
        found = _EACH.fullmatch(line)
        if found is not None:
            words[found[1]] = found[2].split()
            continue
        lines = [line]
        for hole in dict.fromkeys(_HOLE.findall(line)):
            lines = [s.replace(f"{{{hole}}}", word) for s in lines for word in words[hole]]
        yield from ((number, s) for s in lines)


def _parse_line(line: str, source: str) -> TeRule | Fact:
    sides, _, conditions = (s.strip() for s in _WHERE.sub("\n", line, count=1).partition("\n"))
    where, names = _parse_where(conditions)
    head = _HEAD.fullmatch(sides)
    if head is None:
        raise MalformedText("a rule begins with its name and `:`")
    kinds = _parse_kinds(head[2] or "")
    left, arrow, right = head[3].partition("=>")
    lhs = _substitute_names(_term(_expression(left)), names)
    where = tuple(_substitute_names(t, names) for t in where)
    if not arrow:
        return Fact(head[1], TeRule(head[1], kinds, lhs, lhs, where, names, line, source))
    rhs = _substitute_names(_term(_expression(right)), names)
    return TeRule(head[1], kinds, lhs, rhs, where, names, line, source)


def _expression(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as e:
        raise MalformedText(f"{text.strip()}: {parser_message(e)}") from None


def _parse_where(text: str) -> tuple[tuple[Term, ...], dict[str, Term]]:
    match _expression(f"where({text})"):
        case ast.Call(_, args, keywords):
            return tuple(map(_term, args)), {k.arg or "": _term(k.value) for k in keywords}
    raise MalformedText(f"where {text}")


def _parse_kinds(text: str) -> dict[str, str]:
    """Return the kind of each parameter: `x: f32[...]` as "f32[...]", `*p` as "*"."""
    try:
        (tree,) = ast.parse(f"def rule({text}): pass").body
    except (SyntaxError, ValueError) as e:
        raise MalformedText(f"parameters ({text}): {parser_message(e)}") from None
    assert isinstance(tree, ast.FunctionDef)
    out: dict[str, str] = {}
    for p in tree.args.args:
        kind = "any" if p.annotation is None else ast.unparse(p.annotation)
        for one in element_kinds(kind):
            if one not in KINDS:
                raise MalformedText(f"{p.arg}: {one} is no kind; kinds are {sorted(KINDS)}")
        out[p.arg] = kind
    return out


def element_kinds(kind: str) -> list[str]:
    """Return the kinds in `f16`, `f16[...]` or `(f16 | bf16)[...]`."""
    return kind.removesuffix("[...]").strip("()").split(" | ")


def _term(e: ast.expr) -> Term:
    match e:
        case ast.Constant(int() | float() as v) if not isinstance(v, bool):
            return Lit(v)
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as v)):
            return Lit(-v)
        case ast.Constant(v) if v is ...:
            return Rest()
        case ast.Name("inf"):
            return Lit(float("inf"))
        case ast.Name(name):
            return Var(name)
        case ast.Attribute(ast.Name(base), name):
            return Var(f"{base}.{name}")
        case ast.Starred(x):
            return Run(_axis_name(x))
        case ast.Tuple(items):
            return Tuple(tuple(map(_term, items)))
        case ast.BinOp(a, op, b) if type(op) in OPERATORS:
            return Call(OPERATORS[type(op)], (_term(a), _term(b)))
        case ast.UnaryOp(ast.Not(), x):
            return Call("not", (_term(x),))
        case ast.UnaryOp(ast.USub(), x):
            return Call("neg", (_term(x),))
        case ast.BoolOp(op, items):
            return reduce(lambda a, b: Call(OPERATORS[type(op)], (a, b)), map(_term, items))
        case ast.Compare(first, ops, sides):
            terms = [_term(first), *map(_term, sides)]
            links = [
                Call(_comparison(op), pair) for op, pair in zip(ops, pairwise(terms), strict=True)
            ]
            return reduce(lambda a, b: Call("and", (a, b)), links)
        case ast.Subscript(ast.Name(tensor), index):
            return Element(tensor, _items(index))
        case ast.Subscript(ast.Call() as call, index):
            store = _term(call)
            if isinstance(store, Store):
                return Store(store.name, store.axes, store.body, _items(index))
        case ast.Call():
            return _call(e)
    raise MalformedText(f"{ast.unparse(e)} is not part of the rule language")


def _call(e: ast.Call) -> Term:
    match e:
        case ast.Call(ast.Subscript(ast.Name("store") | ast.Attribute(ast.Name("store")) as head,
                                    axes), [body], []):  # fmt: skip
            name = head.attr if isinstance(head, ast.Attribute) else "t"
            return Store(name, tuple(map(_axis, _elements(axes))), _term(body))
        case ast.Call(ast.Name("axes"), axes, []):
            return Fold("axes", tuple(map(_axis, axes)), Lit(0))
        case ast.Call(ast.Name("store"), [body], []):
            return Store("t", (Rest(),), _term(body))
        case ast.Call(ast.Name(fn), [*axes, body], []) if fn in FOLDS and axes:
            if fn not in FUNCTIONS or isinstance(axes[0], ast.Compare | ast.Starred):
                return Fold(fn, tuple(map(_axis, axes)), _term(body))
            return Call(fn, tuple(map(_term, (*axes, body))))  # max(x, y)
        case ast.Call(ast.Name(fn), args, []):
            if fn in FUNCTIONS or fn in SIZE_FUNCTIONS or fn in DTYPES:
                return Call(fn, tuple(map(_term, args)))
            return Var(fn, tuple(map(_term, args)))
    raise MalformedText(f"{ast.unparse(e)} is not part of the rule language")


def _comparison(op: ast.cmpop) -> str:
    if type(op) in OPERATORS:
        return OPERATORS[type(op)]
    raise MalformedText(f"write {type(op).__name__} the other way round")


def _elements(e: ast.expr) -> list[ast.expr]:
    return e.elts if isinstance(e, ast.Tuple) else [e]


def _items(e: ast.expr) -> tuple[Term, ...]:
    return tuple(map(_term, _elements(e)))


def _axis_name(e: ast.expr) -> str:
    match e:
        case ast.Name(name):
            return name
        case ast.Attribute(ast.Name(base), name):
            return f"{base}.{name}"
    raise MalformedText(f"{ast.unparse(e)} is not the name of an axis")


def _axis(e: ast.expr) -> AxisTerm | Rest:
    match e:
        case ast.Constant(v) if v is ...:
            return Rest()
        case ast.Starred(ast.Compare(k, [ast.Lt()], [n])):
            return AxisTerm(_axis_name(k), _term(n), True)
        case ast.Starred(k):
            return AxisTerm(_axis_name(k), None, True)
        case ast.Compare(k, [ast.Lt()], [n]):
            return AxisTerm(_axis_name(k), _term(n))
    return AxisTerm(_axis_name(e))


def subterms(t: Term) -> Iterator[Term]:
    """Yield a term and its parts."""
    yield t
    for f in fields(t):
        value = getattr(t, f.name)
        for x in value if isinstance(value, tuple) else (value,):
            if isinstance(x, AxisTerm):
                if x.extent is not None:
                    yield from subterms(x.extent)
            elif isinstance(x, Term):
                yield from subterms(x)


def _substitute_names(t: Term, names: Mapping[str, Term]) -> Term:
    """Return a term with the terms in place of the names that stand for them."""

    def axis(a: AxisTerm | Rest) -> AxisTerm | Rest:
        if isinstance(a, AxisTerm) and a.extent is not None:
            return AxisTerm(a.name, go(a.extent), a.is_run)
        return a

    def go(t: Term) -> Term:
        match t:
            case Var(name, None) if name in names:
                return go(names[name])
            case Var(name, args) if args is not None:
                return Var(name, tuple(map(go, args)))
            case Call(fn, args):
                return Call(fn, tuple(map(go, args)))
            case Tuple(items):
                return Tuple(tuple(map(go, items)))
            case Fold(fn, axes, body):
                return Fold(fn, tuple(map(axis, axes)), go(body))
            case Element(tensor, index):
                return Element(tensor, tuple(map(go, index)))
            case Store(name, axes, body, index):
                at = None if index is None else tuple(map(go, index))
                return Store(name, tuple(map(axis, axes)), go(body), at)
        return t

    return go(t) if names else t
