"""Lower bounds of polynomials from the ranges of their atoms, without a solver."""

from __future__ import annotations

from collections.abc import Iterable

from superopt.verifier.poly import polynomial
from superopt.verifier.poly.polynomial import (
    Atom,
    ElementIndex,
    Min,
    Monomial,
    Poly,
    Quotient,
    Symbol,
    Var,
)


def is_independent_linear(p: Poly) -> bool:
    """True for a linear polynomial of sizes and variables with independent ranges: if
    `is_nonnegative` fails, it is negative somewhere."""
    return all(
        len(m) <= 1 and all(isinstance(a, (Symbol, Var)) for a in m) for m, _ in p.terms
    ) and all(
        all(len(m) <= 1 and all(isinstance(a, Symbol) for a in m) for m, _ in v.extent.terms)
        for v in p.vars
    )


PROVED_NONNEGATIVE = -1


def is_nonnegative(p: Poly, depth: int = 3) -> bool:
    """True if p >= 0 is shown for all sizes and all variables in their ranges."""
    # PROVED_NONNEGATIVE, or the depth of a failed attempt
    known = p.context.nonnegative
    before = known.get(p.number)
    if before is not None and (before == PROVED_NONNEGATIVE or before >= depth):
        return before == PROVED_NONNEGATIVE
    found = _is_nonnegative(p, depth)
    known[p.number] = PROVED_NONNEGATIVE if found else depth
    return found


def _is_nonnegative(p: Poly, depth: int) -> bool:
    if all(c > 0 for _, c in p.terms) and all(_is_atom_nonnegative(a) for a in p.atoms()):
        return True
    if not any(c > 0 for _, c in p.terms) and all(v.extent.value != 1 for v in p.vars):
        return False
    by_number = sorted(set(p.atoms()), key=lambda a: -a.number)
    for v in by_number:  # set a variable to the end of its range where p is least
        if isinstance(v, Var):
            split = polynomial.linear_coefficients(p, v)
            if split is None:
                break
            a, b = split
            if is_nonnegative(a, depth):
                return is_nonnegative(b, depth)
            if is_nonnegative(-a, depth):
                return is_nonnegative(a * (v.extent - 1) + b, depth)
            break
    if _is_nonnegative_shifted(p):
        return True
    if depth:
        return any(is_nonnegative(q, depth - 1) for q in _lower_bounds(p))
    return False


def _is_nonnegative_shifted(p: Poly) -> bool:
    """True if p has no negative coefficient after s' + low replaces each size s, where s' >= 0."""
    total: dict[Monomial, int] = {}
    for m, c in p.terms:
        part: dict[Monomial, int] = {(): c}
        for a in m:
            low = a.low if isinstance(a, Symbol) else 0
            more: dict[Monomial, int] = {(*k, a): x for k, x in part.items()}
            if low:
                for k, x in part.items():
                    more[k] = more.get(k, 0) + x * low
            part = more
        for k, x in part.items():
            total[k] = total.get(k, 0) + x
    return all(c >= 0 and (not c or all(map(_is_atom_nonnegative, m))) for m, c in total.items())


def _is_atom_nonnegative(a: Atom) -> bool:
    match a:
        case Symbol():
            return a.low >= 0
        case Quotient():
            return is_nonnegative(a.p)
        case Min():
            return is_nonnegative(a.p) and is_nonnegative(a.q)
        case _:
            return isinstance(a, (Var, ElementIndex))


def lower_bound(p: Poly) -> Poly | None:
    """Return a polynomial that is at most p, with no variable outside of quotients and minima: each
    is at the end where p is least."""
    for v in sorted((a for a in set(p.atoms()) if isinstance(a, Var)), key=lambda v: -v.number):
        split = polynomial.linear_coefficients(p, v)
        if split is None:
            return None
        a, b = split
        if is_nonnegative(a):
            p = b
        elif is_nonnegative(-a):
            p = a * (v.extent - 1) + b
        else:
            return None
    return p


def eliminate_quotient(p: Poly) -> Poly | None:
    """Return a polynomial that is >= 0 exactly where p is, with one quotient less: a // q <= e is a
    < (e + 1) q."""
    for a in sorted({a for a in p.atoms() if isinstance(a, Quotient)}, key=lambda a: -a.number):
        split = polynomial.linear_coefficients(p, a)
        if split is None or split[0].value not in (1, -1):
            continue
        rest = split[1]
        if split[0].value == 1:
            return a.p + rest * a.q
        return (rest + 1) * a.q - 1 - a.p
    return None


def _lower_bounds(p: Poly) -> list[Poly]:
    """Return polynomials that are at most p: a bound replaces a quotient or minimum."""
    out: list[Poly] = []
    for a in {a for a in p.atoms() if isinstance(a, (Quotient, Min, ElementIndex))}:
        split = polynomial.linear_coefficients(p, a)
        if split is None:
            continue
        k, rest = split
        match a:
            case Quotient():
                if is_nonnegative(k) or is_nonnegative(-k):
                    positive = is_nonnegative(k)
                    # q * (p // q) is between p - q + 1 and p
                    whole, left = polynomial.divide(k, a.q)
                    if not left.terms:
                        out.append(whole * (a.p - a.q + 1 if positive else a.p) + rest)
                    elif not positive and is_nonnegative(a.p):
                        out.append(k * a.p + rest)
                    if not positive:
                        most = _quotient_upper_bound(a)
                        if most is not None:
                            out.append(k * most + rest)
            case Min():
                if is_nonnegative(-k):
                    out += [k * a.p + rest, k * a.q + rest]
            case ElementIndex():
                if is_nonnegative(-k):
                    out.append(k * (a.bound - 1) + rest)
    return out


def _quotient_upper_bound(a: Quotient) -> Poly | None:
    """Return an upper bound of p // q: p < e q is p // q < e."""
    top = a.p
    for v in sorted(a.p.vars, key=lambda v: -v.number):
        split = polynomial.linear_coefficients(top, v)
        if split is None or not is_nonnegative(split[0]):
            return None
        top = split[0] * (v.extent - 1) + split[1]
    whole, rest = polynomial.divide(top + 1, a.q)
    if is_nonnegative(-rest):
        return whole - 1
    return whole if is_nonnegative(a.q - rest) else None


def is_sum_of_nonnegative(p: Poly, nonnegative: Iterable[Poly], depth: int = 2) -> bool:
    """True if p is a sum of multiples of `nonnegative` and of a nonnegative polynomial."""
    monos = dict(p.terms)
    for low in nonnegative:
        tried = {0}
        for m, c in low.terms:
            have = monos.get(m)
            if not m or have is None or have * c < 0:
                continue
            for k in {have // c, 1} - tried:
                tried.add(k)
                rest = p - low * k
                if is_nonnegative(rest, 1):
                    return True
                short = depth > 1 and len(rest.terms) <= len(p.terms) + 1
                if short and is_sum_of_nonnegative(rest, nonnegative, depth - 1):
                    return True
    return False
