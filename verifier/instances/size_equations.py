"""Equations between products of sizes, as polynomials that are zero."""

from __future__ import annotations

import math
from collections.abc import Collection

from superopt.rules.lang.rule import Rule
from superopt.rules.lang.term import Binary, Lit, Name, walk
from superopt.te.expr import index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Const, Expr, Size

MAX_FACTORINGS = 4


def factorings(gap: index.Poly) -> list[dict[str, int]] | None:
    """Return all solutions of a * b * c == n if they are few, else None."""
    terms = [(m, c) for m, c in gap.items() if m]
    if len(terms) != 1 or () not in gap:
        return None
    ((m, c),) = terms
    if gap[()] == -c and all(isinstance(x, Size) for x in m):
        return [{x.name: 1 for x in m if isinstance(x, Size)}]
    names = sorted({x.name for x in m if isinstance(x, Size)})
    if len(names) != len(m) or gap[()] % c:
        return None if gap[()] % c == 0 else []
    n = -gap[()] // c
    if n < 1:
        return []
    out: list[dict[str, int]] = []

    def fill(k: int, left: int, so_far: dict[str, int]) -> None:
        if k == len(names) - 1:
            out.append(so_far | {names[k]: left})
            return
        for d in range(1, left + 1):
            if left % d == 0:
                fill(k + 1, left // d, so_far | {names[k]: d})

    fill(0, n, {})
    return out if len(out) <= MAX_FACTORINGS else None


def mentioned_differences(rule: Rule) -> frozenset[tuple[str, int]]:
    """Return (n, 1) for each n - 1 in a rule."""
    found = set()
    for p in (q for side in (*rule.lhs, *rule.rhs) for q in walk(side)):
        match p:
            case Binary("-", Name(n), Lit(int() as c)):
                found.add((n, c))
    return frozenset(found)


def has_size(x: Expr, s: Size) -> bool:
    return s.name in index.symbols(x)


def linear_coefficients(e: Expr, s: Size) -> tuple[Expr, Expr] | None:
    """Return (a, b) for a s + b; None if s is absent or not linear."""
    terms = index.polynomial(e)
    times = {tuple(x for x in m if x != s): c for m, c in terms.items() if m.count(s) == 1}
    rest = {m: c for m, c in terms.items() if s not in m}
    if len(times) + len(rest) < len(terms) or not times:
        return None
    if any(has_size(x, s) for m in (*times, *rest) for x in m):
        return None
    return index.from_polynomial(times), index.from_polynomial(rest)


def show_equation(gap: index.Poly, sign: str) -> str:
    """Return the text of gap == 0 (or > 0, or >= 0), with negative terms moved to the other
    side."""
    sides = ({m: c for m, c in gap.items() if c > 0}, {m: -c for m, c in gap.items() if c < 0})
    left, right = (str(index.from_polynomial(side)) for side in sides)
    return f"{_strip_parentheses(left)} {sign} {_strip_parentheses(right)}"


def _strip_parentheses(text: str) -> str:
    """Strip the parentheses around the whole text."""
    depth = 0
    for n, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and n < len(text) - 1:
            return text
    return text[1:-1] if text.startswith("(") else text


def drop_common_factors(gap: index.Poly) -> index.Poly:
    """Divide by the factors common to all terms (sizes are at least 1)."""
    if not gap:
        return gap
    scale = math.gcd(*gap.values())
    shared = None
    for m in gap:
        sizes = [x for x in m if isinstance(x, Size)]
        shared = sizes if shared is None else [x for x in dict.fromkeys(shared) if x in sizes]
    out: index.Poly = {}
    for m, c in gap.items():
        left = list(m)
        for x in dict.fromkeys(shared or ()):
            left.remove(x)
        out[tuple(left)] = c // scale
    return out


def solve_multiple(gap: index.Poly) -> tuple[str, list[Expr]] | None:
    """Solve (n // g) * g == n: n is a multiple of g."""
    for m in gap:
        for x in m:
            match x:
                case Apply("floordiv", (Size(name), g), _):
                    wanted = index.as_index(index.as_index(x * g) - Size(name))
                    poly = index.polynomial(wanted)
                    if (
                        drop_common_factors(poly) == gap
                        or drop_common_factors({k: -c for k, c in poly.items()}) == gap
                    ):
                        return name, [index.as_index(Size(f"{name}'") * g)]
                case _:
                    pass
    return None


def solve_remainder(
    gap: index.Poly, mentioned: Collection[tuple[str, int]]
) -> tuple[str, list[Expr]] | None:
    """Solve p % g == c for p = n + r: n is a multiple of g, less r, plus c. Return the values of n.
    mentioned: the differences n - c in the rule, which become products."""
    left = dict(gap)
    c = left.pop((), 0)
    match list(left.items()):
        case [((Apply("mod", (p, g), _),), sign)] if abs(sign) == 1:
            poly = index.polynomial(p)
        case _:
            return None
    c *= -sign
    whole = g.value if isinstance(g, Const) and isinstance(g.value, int) else 0
    if c < 0 or (c and c >= whole):
        return None
    for m, k in poly.items():
        if len(m) != 1 or abs(k) != 1 or not isinstance(m[0], Size) or has_size(g, m[0]):
            continue
        rest = {n: x * k for n, x in poly.items() if n != m}
        if any(has_size(x, m[0]) for n in rest for x in n):
            continue
        r = index.from_polynomial({**rest, (): rest.get((), 0) - k * c})
        low, _ = index.bounds(r)
        if low is None or low < -max(whole, 1):
            continue
        positive = Size(f"{m[0].name}'")  # n + r is at least 1 + low, so it is g or more, or 0
        if isinstance(r, Const) and (m[0].name, -low) in mentioned:  # n - 1 is 2 n', not 2 n' - 2
            return m[0].name, [Const(-low, INDEX), index.as_index(positive * g - r)]
        return m[0].name, [index.as_index((positive if low >= 0 else positive - 1) * g - r)]
    return None


def holds_at(hypothesis: Expr, sizes: dict[str, int]) -> bool:
    """True if a hypothesis holds for these sizes."""
    match hypothesis:
        case Apply(fn, (a, b), _):
            x, y = index.evaluate(a, sizes), index.evaluate(b, sizes)
            return {"lt": x < y, "le": x <= y, "eq": x == y, "ne": x != y}[fn]
        case _:
            return False
