"""Lower bounds of polynomials from the ranges of their atoms, without a solver."""

from __future__ import annotations

from collections.abc import Iterable

from superopt.verifier import poly as P
from superopt.verifier.poly import Atom, Chosen, Least, Mono, Poly, Quot, Sym, Var


def simple(p: Poly) -> bool:
    """True for a linear polynomial of sizes and variables with independent ranges: if
    `is_nonnegative` fails, it is negative somewhere."""
    return all(
        len(m) <= 1 and all(isinstance(a, (Sym, Var)) for a in m) for m, _ in p.terms
    ) and all(
        all(len(m) <= 1 and all(isinstance(a, Sym) for a in m) for m, _ in v.extent.terms)
        for v in p.vars
    )


YES = -1
_NONNEG: dict[Poly, int] = {}  # PROVED_NONNEGATIVE, or the depth of a failed attempt


def forget() -> None:
    _NONNEG.clear()
    P.forget()


def nonneg(p: Poly, depth: int = 3) -> bool:
    """True if p >= 0 is shown for all sizes and all variables in their ranges."""
    before = _NONNEG.get(p)
    if before is not None and (before == YES or before >= depth):
        return before == YES
    found = _nonneg(p, depth)
    _NONNEG[p] = YES if found else depth
    return found


def _nonneg(p: Poly, depth: int) -> bool:
    n = p.value
    if n is not None:
        return n >= 0
    if all(c >= 0 for _, c in p.terms) and all(_atom_nonneg(a) for a in p.atoms()):
        return True
    if not any(c > 0 for _, c in p.terms) and all(v.extent.value != 1 for v in p.vars):
        return False
    by_number = sorted(set(p.atoms()), key=lambda a: -a.number)
    for v in by_number:  # set a variable to the end of its range where p is least
        if isinstance(v, Var):
            split = P.linear_in(p, v)
            if split is None:
                break
            a, b = split
            if nonneg(a, depth):
                return nonneg(b, depth)
            if nonneg(-a, depth):
                return nonneg(a * (v.extent - 1) + b, depth)
            break
    if _shifted_nonneg(p):
        return True
    if depth:
        return any(nonneg(q, depth - 1) for q in _bounded(p))
    return False


def _shifted_nonneg(p: Poly) -> bool:
    """True if p has no negative coefficient after s' + low replaces each size s, where s' >= 0."""
    total: dict[Mono, int] = {}
    for m, c in p.terms:
        part: dict[Mono, int] = {(): c}
        for a in m:
            low = a.low if isinstance(a, Sym) else 0
            more: dict[Mono, int] = {(*k, a): x for k, x in part.items()}
            if low:
                for k, x in part.items():
                    more[k] = more.get(k, 0) + x * low
            part = more
        for k, x in part.items():
            total[k] = total.get(k, 0) + x
    return all(c >= 0 and (not c or all(map(_atom_nonneg, m))) for m, c in total.items())


def _atom_nonneg(a: Atom) -> bool:
    match a:
        case Sym():
            return a.low >= 0
        case Var() | Chosen():
            return True
        case Quot():
            return nonneg(a.p)
        case Least():
            return nonneg(a.p) and nonneg(a.q)
        case _:
            return False


def lowest(p: Poly) -> Poly | None:
    """Return a polynomial that is at most p and has no variables: each is at the end where p is
    least."""
    for v in sorted((a for a in set(p.atoms()) if isinstance(a, Var)), key=lambda v: -v.number):
        split = P.linear_in(p, v)
        if split is None:
            return None
        a, b = split
        if nonneg(a):
            p = b
        elif nonneg(-a):
            p = a * (v.extent - 1) + b
        else:
            return None
    return p


def without_quotient(p: Poly) -> Poly | None:
    """Return a polynomial that is >= 0 exactly where p is, with one quotient less: a // q <= e is a
    < (e + 1) q."""
    for a in sorted({a for a in p.atoms() if isinstance(a, Quot)}, key=lambda a: -a.number):
        split = P.linear_in(p, a)
        if split is None or split[0].value not in (1, -1):
            continue
        rest = split[1]
        if split[0].value == 1:
            return a.p + rest * a.q
        return (rest + 1) * a.q - 1 - a.p
    return None


def _bounded(p: Poly) -> list[Poly]:
    """Return polynomials that are at most p: a bound replaces a quotient or minimum."""
    out: list[Poly] = []
    for a in {a for a in p.atoms() if isinstance(a, (Quot, Least, Chosen))}:
        split = P.linear_in(p, a)
        if split is None:
            continue
        k, rest = split
        match a:
            case Quot():
                if k.value is not None or nonneg(k) or nonneg(-k):
                    positive = nonneg(k)
                    # q * (p // q) is between p - q + 1 and p
                    whole, left = P.divided(k, a.q)
                    if not left.terms:
                        out.append(whole * (a.p - a.q + 1 if positive else a.p) + rest)
                    elif not positive and nonneg(a.p):
                        out.append(k * a.p + rest)
                    if not positive:
                        most = _most_quotient(a)
                        if most is not None:
                            out.append(k * most + rest)
            case Least():
                if nonneg(-k):
                    out += [k * a.p + rest, k * a.q + rest]
            case Chosen():
                if nonneg(-k):
                    out.append(k * (a.bound - 1) + rest)
    return out


def _most_quotient(a: Quot) -> Poly | None:
    """Return an upper bound of p // q: p < e q is p // q < e."""
    top = a.p
    for v in sorted(a.p.vars, key=lambda v: -v.number):
        split = P.linear_in(top, v)
        if split is None or not nonneg(split[0]):
            return None
        top = split[0] * (v.extent - 1) + split[1]
    whole, rest = P.divided(top + 1, a.q)
    if nonneg(-rest):
        return whole - 1
    return whole if nonneg(a.q - rest) else None


def by_sum(p: Poly, lows: Iterable[Poly], depth: int = 2) -> bool:
    """True if p is a sum of multiples of `nonnegative` and of a nonnegative polynomial."""
    monos = dict(p.terms)
    for low in lows:
        tried: set[int] = set()
        for m, c in low.terms:
            have = monos.get(m)
            if not m or have is None or have * c <= 0:
                continue
            for k in {max(have // c, 1), 1}:
                if k in tried:
                    continue
                tried.add(k)
                rest = p - low * k
                if nonneg(rest, 1):
                    return True
                short = depth > 1 and len(rest.terms) <= len(p.terms) + 1
                if short and by_sum(rest, lows, depth - 1):
                    return True
    return False
