"""The ranks at which a rule is proved."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import (
    App,
    Call,
    Compare,
    Fill,
    Formula,
    Lit,
    MapTerms,
    Name,
    Number,
    Part,
    Scalar,
    Seq,
    Spread,
    Term,
    Var,
    free_names,
    walk,
)
from superopt.te.expr.dtype import DTYPES
from superopt.verifier.instances.choices import Ranks

MAX_RANK = 4  # of the operands of any rank, if they are at most two
MAX_RANK_OF_MANY = 3  # if they are more
MATRICES = frozenset(("MatMul", "Gemm"))
IMAGES = frozenset(
    (
        "Conv",
        "ConvTranspose",
        "AveragePool",
        "MaxPool",
        "LpPool",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "GlobalLpPool",
        "InstanceNormalization",
        "BatchNormalization",
        "LRN",
    )
)


def rank_scope(rule: Rule) -> Ranks:
    """Return the ranks to prove: up to MAX_RANK if few operands have open rank, fewer for many
    combinations, and enough that axes counted from the front and from the end differ.

    If every operator is elementwise, ranks 0 and 1 cover all ranks: an axis is independent of the
    others, and each operand is read at one index only.
    """
    if is_elementwise(rule):
        return Ranks(0, 1)
    apps = [t for side in (*rule.lhs, *rule.rhs) for t in walk(side) if isinstance(t, App)]
    free = {n for p in rule.params if isinstance(p, Param) and (n := _open_rank_name(p))}
    images = any(t.op.name in IMAGES for t in apps)
    most = MAX_RANK if images or len(free) <= 2 else MAX_RANK_OF_MANY
    return Ranks(0, max(most, _separating_rank(rule, apps)) if free else most)


def _separating_rank(rule: Rule, apps: Sequence[App]) -> int:
    """Return the rank at which axes named from the front and from the end are disjoint with one
    axis between them: at rank 4 axis -3 is the second, and at rank 5 it is not."""
    front = back = 0
    for t in apps:
        if t.op.name in IMAGES:
            front = max(front, 2)
        if t.op.name in MATRICES:
            back = max(back, 2)
        for key, f in t.attrs:
            for k in _literal_axes(f) if key in ("axis", "axes") else ():
                front, back = max(front, k + 1), max(back, -k)
    for p in rule.params:
        if not isinstance(p, Param) or p.shape is None:
            continue
        runs = [n for n, f in enumerate(p.shape) if isinstance(f, Spread)]
        if runs:
            front, back = max(front, runs[0]), max(back, len(p.shape) - 1 - runs[-1])
        elif any(is_broadcasting(t) and Var(p.name) in t.operands for t in apps):
            back = max(back, len(p.shape))
    return front + back + 1 if (front and back) or back > 3 else 0


def _literal_axes(f: Formula) -> Iterator[int]:
    """Yield the literal axes."""
    for p in f.items if isinstance(f, Seq) else (f,):
        if isinstance(p, Lit) and isinstance(p.value, int):
            yield p.value


def is_elementwise(rule: Rule) -> bool:
    """True if every operator of both sides works element by element."""
    terms = [t for side in (*rule.lhs, *rule.rhs) for t in walk(side)]
    apps = all("elementwise" in t.op.laws for t in terms if isinstance(t, App))
    uses_shapes = any(_calls(f, SHAPE_FUNCTIONS) for f in _formulas(rule))
    return apps and not uses_shapes and not any(isinstance(t, Fill) for t in terms)


# Functions whose value may differ between ranks.
SHAPE_FUNCTIONS = frozenset(("rank", "shape", "size", "numel", "len"))


def _formulas(rule: Rule) -> list[Formula]:
    """Return the formulas of attributes and numbers, which affect what is computed."""
    terms = [t for side in (*rule.lhs, *rule.rhs) for t in walk(side)]
    found = [f for t in terms if isinstance(t, App) for _, f in t.attrs]
    return [*found, *(t.value for t in terms if isinstance(t, Scalar))]


def _calls(f: Part, functions: Collection[str]) -> bool:
    return any(isinstance(q, Call) and q.fn in functions for q in walk(f))


SEVERAL_TYPES = "a cast in a rule for several types, or a range of values"
CASTS = frozenset(("Cast", "CastLike"))
BOOLEAN_OPS = frozenset(
    ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Xor", "Not")
)


def unclear_reason(rule: Rule) -> str:
    """Return why the proof says nothing about a rule, else "": its meaning depends on something
    that has one value here, or few. An operand of any type is a float32 here, so a cast to float32
    is nothing."""
    terms = [t for side in (*rule.lhs, *rule.rhs) for t in walk(side)]
    if any(isinstance(t, Scalar) and _calls(t.value, ("rank", "len")) for t in terms):
        return "a number that depends on a rank"
    for f in _formulas(rule):
        if _calls(f, ("all_equal",)):
            return "a number that depends on whether others are all equal"
        if any(isinstance(p, Compare) and _calls(p, ("dtype",)) for p in walk(f)):
            return "a number that depends on an element type"
    if all(p.kind in DTYPES for p in rule.params if isinstance(p, Param)):
        return ""
    if any(isinstance(p, Param) and p.kind == "q" for p in rule.params):
        return SEVERAL_TYPES
    bools = {p.name for p in rule.params if isinstance(p, Param) and p.kind == "bool"}
    casts = [t for t in terms if isinstance(t, App) and t.op.name in CASTS]
    if any(
        not _is_boolean(t.operands[0], bools) and not _is_cast_to_open_type(t, rule) for t in casts
    ):
        return SEVERAL_TYPES
    return ""


def _is_cast_to_open_type(t: App, rule: Rule) -> bool:
    """True for a cast to an open type. It also covers casts to other types, which are uninterpreted
    functions: what holds for these holds for every elementwise function."""
    to = dict(t.attrs).get("to")
    uses_dtype = any(isinstance(q, Call) and q.fn == "dtype" for f in rule.where for q in walk(f))
    return isinstance(to, Name) and not uses_dtype


def _is_boolean(t: Term, bools: Collection[str]) -> bool:
    """True for a boolean, or a cast of one."""
    match t:
        case Var(name):
            return name in bools
        case App(op, operands):
            return op.name in BOOLEAN_OPS or (op.name in CASTS and _is_boolean(operands[0], bools))
        case _:
            return False


NON_BROADCASTING = frozenset(("Clip", "PRelu"))  # their operands may not have any shape


def broadcast_only_operands(rule: Rule) -> dict[str, App]:
    """Return operands that are read only where terms of the same operands broadcast them: Sub(x, y)
    and Sub(y, x).

    Such an operand stands for itself expanded to the shape of the terms: smaller shapes add
    nothing.
    """
    out: dict[str, App] = {}
    apps = [t for side in (*rule.lhs, *rule.rhs) for t in walk(side) if isinstance(t, App)]
    terms = [t for side in (*rule.lhs, *rule.rhs) for t in walk(side)]
    others = any(isinstance(t, (Fill, Scalar, MapTerms)) for t in terms)  # that may refer to shapes
    for p in rule.params:
        if not isinstance(p, Param) or p.shape is not None or p.is_run:
            continue
        users = [t for t in apps if Var(p.name) in t.operands]
        if not users or not all(
            is_broadcasting(t) and _has_same_operands(t, users[0]) for t in users
        ):
            continue
        if any(p.name in free_names(f) for f in rule.where if not _is_const_condition(f)):
            continue
        formulas = [f for t in apps for _, f in t.attrs]
        formulas += [f for q in rule.params if isinstance(q, Param) for f in q.shape or ()]
        is_mentioned = any(p.name in free_names(f) for f in formulas)
        if not is_mentioned and not others and Var(p.name) not in (*rule.lhs, *rule.rhs):
            out[p.name] = users[0]
    return out


def _has_same_operands(t: App, u: App) -> bool:
    """True if both broadcast the same operands. A number may have axes on the left, and none on the
    right."""
    plain = not any(isinstance(o, Number) for o in t.operands)
    return t == u or (plain and frozenset(t.operands) == frozenset(u.operands))


def is_broadcasting(t: App) -> bool:
    """True if each operand may have any shape that broadcasts."""
    return (
        "elementwise" in t.op.laws
        and len(t.operands) > 1
        and t.op.name not in NON_BROADCASTING
        and t.rest is None
    )


def _is_const_condition(f: Formula) -> bool:
    return isinstance(f, Call) and f.fn == "const"


def show_ranks(rule: Rule, ranks: Ranks) -> str:
    """Return the text of the ranks that a proof at these ranks covers."""
    tried = f"ranks {ranks.min_rank} to {ranks.max_rank}"
    return f"any rank, each axis by itself (from {tried})" if is_elementwise(rule) else tried


def _open_rank_name(p: Param) -> str:
    """Return the name of what leaves the rank of `p` open, else ""."""
    if p.shape is None:
        return p.name
    for f in p.shape:
        if isinstance(f, Spread) and isinstance(f.value, Name):
            return f"*{f.value.id}"
    return ""
