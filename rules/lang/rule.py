"""Rewrite rules: data, their text, and the library.

    matmul-merge(x: f[*s, n, k], a: f[k, m], b: f[k, p]):
        (MatMul(x, a), MatMul(x, b))
        => Split(MatMul(x, Concat(a, b, axis=1)), axis=-1, split=(m, p))
        where const(a), const(b) ; float=E1 ; origin=hand

A rule is one logical line: leading white space continues the previous line, `#` starts a comment.
`<=>` is two rules, `name` and `name~`. docs/reference/rule_language.md describes the language.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path

from superopt.errors import UsageError
from superopt.ir.op import Op
from superopt.ir.syntax import MalformedText, parser_message
from superopt.ops import OPS
from superopt.rules.lang.lines import STRING_PATTERN, logical_lines
from superopt.rules.lang.printer import show
from superopt.rules.lang.syntax import AttrParam, Param, parse_formula, parse_params, parse_term
from superopt.rules.lang.term import (
    AllResults,
    App,
    Compare,
    Formula,
    Lit,
    MapTerms,
    Name,
    OperandRun,
    Part,
    Pick,
    Scalar,
    Spread,
    Term,
    TermValue,
    Var,
    free_names,
    walk,
)

FLOAT_CLASSES = ("E0", "E1", "E2", "E3")  # bit-exact, reassociated, distributed, exceptional
LIBRARY = Path(__file__).resolve().parents[1] / "library"
PARTIAL_PREFIX = "partial/"  # source prefix of pairs of partially equivalent programs


@dataclass(frozen=True, slots=True)
class Rule:
    """`rhs` may replace whatever matches `lhs` if the conditions hold.

    lhs, rhs: a term for each result; or one operator with several results, taken in order.
    float_class: the effect on floats (E0 none, E1 reassociates, E2 distributes or folds weights, E3
    changes overflow, Inf or NaN). caveat: a note for users of a rewritten model. text, source: the
    rule as written, and where; they are not part of a rule's identity. steps: by how many
    quantization steps results of QuantizeLinear may differ; the float class is before rounding.
    """

    name: str
    params: tuple[Param | AttrParam, ...]
    lhs: tuple[Term, ...]
    rhs: tuple[Term, ...]
    where: tuple[Formula, ...] = ()
    float_class: str = "E1"
    origin: str = "hand"
    caveat: str = ""
    text: str = field(default="", compare=False)
    source: str = field(default="", compare=False)
    steps: int = 0
    _hash: int = field(default=0, init=False, compare=False, repr=False)

    @property
    def is_from_pair(self) -> bool:
        """True if the rule is made from a pair of partially equivalent programs."""
        return self.source.startswith(PARTIAL_PREFIX)

    def __hash__(self) -> int:
        """Return the cached hash of what readings of one law differ in: they share their name."""
        if not self._hash:
            made = hash((self.name, self.params, self.lhs, self.rhs, self.where, self.float_class))
            object.__setattr__(self, "_hash", made or 1)
        return self._hash

    def __str__(self) -> str:
        where = f" where {', '.join(map(show, self.where))}" if self.where else ""
        sides = f"{show_side(self.lhs)} => {show_side(self.rhs)}{where}"
        header = f"{self.name}({_show_params(self.params)}): "
        caveat = f" ; caveat={self.caveat}" if self.caveat else ""
        sides += f" ; steps={self.steps}" if self.steps else ""
        return f"{header}{sides} ; float={self.float_class} ; origin={self.origin}{caveat}"


def _show_params(given: tuple[Param | AttrParam, ...]) -> str:
    out: list[str] = []
    starred = any(isinstance(p, Param) and p.is_run and i for i, p in enumerate(given))
    for p in given:
        if isinstance(p, AttrParam) and not starred:
            out.append("*")
            starred = True
        starred = starred or (isinstance(p, Param) and p.is_run)
        out.append(str(p))
    return ", ".join(out)


def has_one_shape(rule: Rule) -> bool:
    """True if only the numbers of the operands are open."""
    return all(
        isinstance(p, Param) and p.shape is not None and all(isinstance(d, Lit) for d in p.shape)
        for p in rule.params
    )


def has_one_size(rule: Rule) -> bool:
    """True if only one size and the numbers of the operands are open."""
    params = [
        p for p in rule.params if isinstance(p, Param) and p.shape is not None and not p.is_run
    ]
    sizes = {d for p in params for d in p.shape or () if not isinstance(d, Lit)}
    return len(params) == len(rule.params) and len(sizes) == 1 and isinstance(sizes.pop(), Name)


def show_side(terms: tuple[Term, ...]) -> str:
    """Return one side of a rule as text."""
    if len(terms) == 1:
        if isinstance(terms[0], (OperandRun, AllResults)):
            return f"({show(terms[0])},)"
        return show(terms[0]).removeprefix("*")  # a list of results
    return f"({', '.join(map(show, terms))})"


# --- reading --------------------------------------------------------------------------------------


MAX_ERRORS_SHOWN = 9  # of a file, after the first one


def parse_rules(
    text: str,
    source: str = "<text>",
    ops: Mapping[str, Op] = OPS,
    wanted: Collection[str] | None = None,
) -> list[Rule]:
    """Return the rules of a text, in order.

    wanted: names of rules; other lines are not parsed. Raises UsageError, which names the source,
    line and text of each error."""
    out: list[Rule] = []
    seen: dict[str, str] = {}
    wrong: list[tuple[str, str]] = []
    for number, line in logical_lines(text):
        head = _NAME.match(line)
        if wanted is not None and (head is None or not {head[1], head[1] + "~"} & {*wanted}):
            continue
        place = f"{source}:{number}"
        try:
            found = _parse_line(line, place, ops)
            for rule in found:
                if rule.name in seen:
                    raise MalformedText(f"{rule.name} is already a rule at {seen[rule.name]}")
                seen[rule.name] = place
        except MalformedText as e:
            wrong.append((f"{place}: {e}", line if len(line) <= 200 else line[:197] + "..."))
        else:
            out.extend(found)
    if wrong:
        (first, line), *others = wrong
        more = "; ".join(complaint for complaint, _ in others[:MAX_ERRORS_SHOWN])
        left = len(others) - MAX_ERRORS_SHOWN
        more += f"; and {left} more" if left > 0 else ""
        raise UsageError(
            first,
            f"in the rule: {line}" + (f". Also wrong: {more}" if more else ""),
            "The rule language is described in docs/reference/rule_language.md.",
        )
    return out


_MARK = re.compile(rf"{STRING_PATTERN}|<=>|=>|;|\bwhere\b|[()\[\]{{}}]")


def _split_clauses(text: str) -> list[tuple[str, str]]:
    """Split the text at the marks `=>`, `<=>`, `where`, `;` outside brackets; each part has its
    mark."""
    out: list[tuple[str, str]] = []
    depth, last, mark = 0, 0, ""
    for m in _MARK.finditer(text):
        token = m[0]
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth -= 1
        elif depth == 0 and token[0] not in "\"'":
            out.append((mark, text[last : m.start()].strip()))
            mark, last = token, m.end()
    out.append((mark, text[last:].strip()))
    return out


_NAME = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*~?)\s*(?=[(:])")


def _parse_line(line: str, place: str, ops: Mapping[str, Op]) -> list[Rule]:
    head = _NAME.match(line)
    if head is None:
        raise MalformedText("a rule starts with its name: name(params): left => right")
    rest = line[head.end() :]
    depth = end = 0
    while end < len(rest):
        depth += (rest[end] in "([{") - (rest[end] in ")]}")
        if depth == 0:
            break
        end += 1
    inside, colon, body = ("", rest[:1], rest[1:])
    if rest.startswith("("):
        colon, inside, body = (
            rest[end + 1 :].lstrip()[:1],
            rest[1:end],
            rest[end + 1 :].lstrip()[1:],
        )
    if colon != ":" or depth:
        raise MalformedText(f"{head[1]}(...) is not followed by `:`")
    given = parse_params(inside, ops)
    pieces = _split_clauses(body)
    marks = [m for m, _ in pieces]
    if len(pieces) < 2 or marks[0] or marks[1] not in ("=>", "<=>") or "where" in marks[3:]:
        raise MalformedText(f"{head[1]}: expected left => right [where conditions] [; key=value]")
    where: tuple[Formula, ...] = ()
    keys = {"float": "E1", "origin": "hand", "caveat": "", "steps": "0"}
    for mark, piece in pieces[2:]:
        if mark == "where":
            where = _parse_conditions(piece, ops)
            continue
        key, equals, value = (s.strip() for s in piece.partition("="))
        if mark != ";" or not equals or key not in keys:
            raise MalformedText(
                f"{mark} {piece}: clauses are ; float=E0 to E3 ; steps= ; origin= ; caveat="
            )
        keys[key] = value
    classes = keys["float"].split("/")
    if not set(classes) <= set(FLOAT_CLASSES) or len(classes) > 1 + (marks[1] == "<=>"):
        raise MalformedText(
            f"float={keys['float']}: the classes are {', '.join(FLOAT_CLASSES)}; of both directions"
            " of a rule with <=> two of them, as E1/E2"
        )
    if not keys["steps"].isdecimal():
        raise MalformedText(f"steps={keys['steps']} is not a number of quantization steps")
    lhs, rhs = _parse_terms(pieces[0][1], ops), _parse_terms(pieces[1][1], ops)
    clauses = (keys["origin"], keys["caveat"], line, place, int(keys["steps"]))
    out = [Rule(head[1], given, lhs, rhs, where, classes[0], *clauses)]
    if marks[1] == "<=>":
        out.append(Rule(head[1] + "~", given, rhs, lhs, where, classes[-1], *clauses))
    for rule in out:
        _check_rule(rule)
    return out


def _parse_expression(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as e:
        raise MalformedText(f"`{text}` is not an expression: {parser_message(e)}") from None


def _parse_terms(text: str, ops: Mapping[str, Op]) -> tuple[Term, ...]:
    match _parse_expression(text):
        case ast.Tuple(items) if items:
            return tuple(parse_term(i, ops) for i in items)
        case e:
            return (parse_term(e, ops),)


def _parse_conditions(text: str, ops: Mapping[str, Op]) -> tuple[Formula, ...]:
    plain = text.strip().removesuffix(",")
    if not plain:
        raise MalformedText("no conditions after where")
    match _parse_expression(f"({plain},)"):
        case ast.Tuple(items):
            return tuple(parse_formula(i, ops) for i in items)
        case _:
            raise MalformedText(f"{text} are not conditions")


# --- checking -------------------------------------------------------------------------------------


def definition(condition: Formula, bound: frozenset[str]) -> tuple[str, Formula] | None:
    """Return (m, formula) for a condition `m == formula` that defines the unbound name m, else
    None."""
    match condition:
        case Compare(Name(n), (("==", value),)) if n not in bound and free_names(value) <= bound:
            return n, value
        case _:
            return None


@lru_cache(maxsize=1 << 13)
def bound_names(rule: Rule) -> frozenset[str]:
    """Return the names that a match of the left side and the conditions bind."""
    bound: set[str] = set()
    for p in rule.params:
        if isinstance(p, Param):
            bound.add(p.name)
            for d in p.shape or ():
                d = d.value if isinstance(d, Spread) else d
                if isinstance(d, Name):
                    bound.add(d.id)
    for side in rule.lhs:
        for part in _matched_terms(side):
            match part:
                case App(_, _, attrs, rest):
                    bound.update(v.id for _, v in attrs if isinstance(v, Name))
                    bound.update(() if rest is None else (rest,))
                case Scalar(Name(n)):
                    bound.add(n)
                case _:
                    pass
    for condition in rule.where:
        found = definition(condition, frozenset(bound))
        if found is not None:
            bound.add(found[0])
    return frozenset(bound)


def _matched_terms(t: Term) -> Iterator[Term]:
    """Yield a side and its subterms, without those inside formulas, which only provide shapes."""
    yield t
    match t:
        case App():
            for operand in t.operands:
                yield from _matched_terms(operand)
        case Pick(app, _) | AllResults(app):
            yield from _matched_terms(app)
        case _:
            pass


def _check_rule(rule: Rule) -> None:
    """Raise Malformed if the sides, parameters and conditions are inconsistent."""
    operands = {p.name: p for p in rule.params if isinstance(p, Param)}
    if len({p.name for p in rule.params}) != len(rule.params):
        raise MalformedText(f"{rule.name}: a parameter is declared twice")
    left, right = ([tuple(walk(t)) for t in side] for side in (rule.lhs, rule.rhs))
    for parts in (*left, *right):
        _check_operands(rule, parts, operands)
    for side, parts in zip(rule.lhs, left, strict=True):
        if not isinstance(side, (App, Pick, AllResults)):
            raise MalformedText(f"{rule.name}: the left side {show(side)} is not an operator")
        loop = next((p for p in parts if isinstance(p, MapTerms)), None)
        if loop is not None:
            raise MalformedText(f"{rule.name}: {show(loop)} cannot be matched on a left side")
    dims = [d for p in operands.values() for d in p.shape or ()]
    _check_names(rule, operands, dims)
    every = chain.from_iterable((*left, *right, *map(walk, (*rule.where, *dims))))
    subterms = [p for p in every if isinstance(p, TermValue)]
    inside = set(chain.from_iterable(left)) if subterms else set()
    for p in subterms:
        if p.term not in inside:
            raise MalformedText(f"{rule.name}: {show(p)} is not part of the left side")
    runs = any(isinstance(t, (MapTerms, OperandRun, AllResults)) for t in rule.rhs)
    counts = len(rule.lhs), len(rule.rhs)
    if min(counts) > 1 and not runs and counts[0] != counts[1]:
        raise MalformedText(f"{rule.name}: {counts[0]} results become {counts[1]}")


def _check_operands(rule: Rule, parts: Sequence[Part], operands: Mapping[str, Param]) -> None:
    """Raise Malformed if an operand of a side is not declared as one."""
    own = {n for p in parts if isinstance(p, MapTerms) for n in p.names}
    for p in parts:
        if not isinstance(p, (Var, OperandRun)) or p.name in own:
            continue
        if any(p.name == q.name for q in rule.params) and p.name not in operands:
            raise MalformedText(f"{rule.name}: {p.name} stands after *, so it is an attribute")
        if p.name not in operands:
            raise MalformedText(f"{rule.name}: {p.name} is not among the parameters")
        if isinstance(p, Var) and operands[p.name].is_run:
            raise MalformedText(f"{rule.name}: {p.name} is a run of operands: *{p.name}")


def _check_names(rule: Rule, operands: Iterable[str], dims: Sequence[Formula]) -> None:
    """Raise Malformed if an operand is a size or is not used, or a name has no value."""
    sizes = {d.id for d in dims if isinstance(d, Name)}
    if both := [n for n in operands if n in sizes]:
        raise MalformedText(f"{rule.name}: {both[0]} is both an operand and a size")
    used = frozenset[str]().union(*map(free_names, rule.lhs))
    if unused := [n for n in operands if n not in used]:
        raise MalformedText(
            f"{rule.name}: {unused[0]} is not on the left side {show_side(rule.lhs)}"
        )
    free = used.union(*map(free_names, (*rule.rhs, *rule.where, *dims))) - bound_names(rule)
    if free:
        raise MalformedText(
            f"{rule.name}: {min(free)} has no value: the left side does not bind it"
        )
