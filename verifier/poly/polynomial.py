"""Integer polynomials over sizes, index variables and quotients, hash-consed: equal is identical.

    i * n + j // (a * b) - 3

Remainders are not atoms: a % b is a - b * (a // b), so (a // b) * b + a % b is a by addition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from superopt.verifier.context import ProofContext

Monomial = tuple["Atom", ...]


class Atom:
    """A size, an index variable, a quotient, a minimum. `number` orders atoms."""

    __slots__ = ("context", "number", "poly")
    context: ProofContext
    number: int
    poly: Poly | None

    def __hash__(self) -> int:
        """Hash by number, not by address: iteration order of sets, and so proofs, are
        deterministic."""
        return self.number

    def __lt__(self, other: Atom) -> bool:
        return self.number < other.number


class Symbol(Atom):
    """A symbolic size, at least `low`."""

    __slots__ = ("low", "name")

    def __init__(self, name: str, low: int) -> None:
        self.name, self.low = name, low

    def __repr__(self) -> str:
        return self.name


class Var(Atom):
    """An index variable: 0 <= v < extent. `level` is 0 for output and fresh variables; those of
    closed sums are numbered from the inside out."""

    __slots__ = ("extent", "level", "name")

    def __init__(self, name: str, extent: Poly, level: int) -> None:
        self.name, self.extent, self.level = name, extent, level

    def __repr__(self) -> str:
        return self.name


class Quotient(Atom):
    """p // q, rounded down, q >= 1."""

    __slots__ = ("p", "q")

    def __init__(self, p: Poly, q: Poly) -> None:
        self.p, self.q = p, q

    def __repr__(self) -> str:
        return f"({self.p}) // ({self.q})"


class Min(Atom):
    """min(p, q)."""

    __slots__ = ("p", "q")

    def __init__(self, p: Poly, q: Poly) -> None:
        self.p, self.q = p, q

    def __repr__(self) -> str:
        return f"min({self.p}, {self.q})"


class ElementIndex(Atom):
    """An integer element of a tensor used as an index; its value is unknown."""

    __slots__ = ("bound", "element")

    def __init__(self, element: object, bound: Poly) -> None:
        self.element, self.bound = element, bound

    def __repr__(self) -> str:
        return f"index({self.element})"


class Poly:
    """A polynomial: ((atoms, coefficient), ...) in canonical order, without zero coefficients."""

    __slots__ = ("_vars", "context", "number", "terms")

    def __init__(
        self, context: ProofContext, terms: tuple[tuple[Monomial, int], ...], number: int
    ) -> None:
        self.context, self.terms, self.number = context, terms, number
        self._vars: frozenset[Var] | None = None

    def __hash__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return " + ".join("*".join([str(c), *map(str, m)]) for m, c in self.terms) or "0"

    def __lt__(self, other: Poly) -> bool:
        return self.number < other.number

    def __add__(self, other: Poly | int) -> Poly:
        b = const(self.context, other) if isinstance(other, int) else other
        if not b.terms:
            return self
        if not self.terms:
            return b
        known, key = self.context.sums, (self.number, b.number)
        found = known.get(key)
        if found is None:
            out = dict(self.terms)
            for m, c in b.terms:
                out[m] = out.get(m, 0) + c
            found = known[key] = from_terms(self.context, out)
        return found

    def __sub__(self, other: Poly | int) -> Poly:
        if isinstance(other, int):
            return self + -other
        if not other.terms:
            return self
        known, key = self.context.differences, (self.number, other.number)
        found = known.get(key)
        if found is None:
            out = dict(self.terms)
            for m, c in other.terms:
                out[m] = out.get(m, 0) - c
            found = known[key] = from_terms(self.context, out)
        return found

    def __neg__(self) -> Poly:
        return self.scale(-1)

    def __mul__(self, other: Poly | int) -> Poly:
        if isinstance(other, int):
            return self.scale(other)
        known, pair = self.context.products, (self.number, other.number)
        found = known.get(pair)
        if found is None:
            out: dict[Monomial, int] = {}
            for m, c in self.terms:
                for n, d in other.terms:
                    key = tuple(sorted((*m, *n))) if m and n else m or n
                    out[key] = out.get(key, 0) + c * d
            found = known[pair] = from_terms(self.context, out)
        return found

    def scale(self, k: int) -> Poly:
        if k == 1:
            return self
        known, key = self.context.multiples, (self.number, k)
        found = known.get(key)
        if found is None:
            found = known[key] = from_terms(self.context, {m: c * k for m, c in self.terms})
        return found

    @property
    def value(self) -> int | None:
        """The value of a constant polynomial, else None."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None

    @property
    def vars(self) -> frozenset[Var]:
        """The index variables in it, also inside quotients; not those in extents."""
        if self._vars is None:
            found: set[Var] = set()
            for m, _ in self.terms:
                for a in m:
                    match a:
                        case Var():
                            found.add(a)
                        case Quotient() | Min():
                            found |= a.p.vars | a.q.vars
                        case ElementIndex():
                            found |= free_vars(a.element)
                        case _:
                            pass
            self._vars = frozenset(found)
        return self._vars

    def atoms(self) -> Iterator[Atom]:
        for m, _ in self.terms:
            yield from m


def free_vars(element: object) -> frozenset[Var]:
    """Return the free index variables of an element that is used as an index."""
    return element.vars  # type: ignore[attr-defined,no-any-return]


def _next_number(context: ProofContext) -> int:
    context.created_count += 1
    return context.created_count


def _constant_number(n: int) -> int:
    """Return the number of a constant: negative, so below all other numbers."""
    return -2 * n - 2 if n >= 0 else 2 * n - 1


def _intern(context: ProofContext, key: object, atom: Atom) -> Atom:
    found = context.atoms.get(key)
    if found is None:
        atom.context, atom.number, atom.poly = context, _next_number(context), None
        found = context.atoms[key] = atom
    return found


def from_terms(context: ProofContext, terms: Mapping[Monomial, int]) -> Poly:
    """Return the polynomial with these terms."""
    key = frozenset([t for t in terms.items() if t[1]])
    found = context.polys.get(key)
    if found is None:
        rest = tuple(sorted(key, key=_term_order) if len(key) > 1 else key)
        if not rest or (len(rest) == 1 and not rest[0][0]):
            number = _constant_number(rest[0][1] if rest else 0)
        else:
            number = _next_number(context)
        found = context.polys[key] = Poly(context, rest, number)
    return found


def _term_order(t: tuple[Monomial, int]) -> tuple[int, list[int]]:
    return len(t[0]), [a.number for a in t[0]]


def const(context: ProofContext, n: int) -> Poly:
    found = context.constants.get(n)
    if found is None:
        found = context.constants[n] = from_terms(context, {(): n})
    return found


def atom_poly(a: Atom) -> Poly:
    if a.poly is None:
        a.poly = from_terms(a.context, {(a,): 1})
    return a.poly


def symbol(context: ProofContext, name: str, low: int = 1) -> Poly:
    return atom_poly(_intern(context, ("sym", name), Symbol(name, low)))


def fresh_var(extent: Poly, name: str = "k") -> Var:
    """Return a new variable."""
    v = Var(name, extent, 0)
    v.context, v.number, v.poly = extent.context, _next_number(extent.context), None
    v.name = f"{name}{v.number}"
    return v


def bound_var(level: int, extent: Poly) -> Var:
    """Return the bound variable of a level: one for each extent."""
    found = _intern(extent.context, ("var", level, extent), Var(f"b{level}", extent, level))
    assert isinstance(found, Var)
    return found


def quotient_atom(p: Poly, q: Poly) -> Atom:
    return _intern(p.context, ("quot", p, q), Quotient(p, q))


def minimum(p: Poly, q: Poly) -> Poly:
    """Return min(p, q), decided only if the difference is constant."""
    gap = (q - p).value
    if gap is not None:
        return p if gap > 0 else q
    if q.number < p.number:
        p, q = q, p
    return atom_poly(_intern(p.context, ("least", p, q), Min(p, q)))


def maximum(p: Poly, q: Poly) -> Poly:
    return -minimum(-p, -q)


def element_index(element: object, bound: Poly) -> Poly:
    return atom_poly(
        _intern(bound.context, ("chosen", element, bound), ElementIndex(element, bound))
    )


def linear_coefficients(p: Poly, v: Atom) -> tuple[Poly, Poly] | None:
    """Return (a, b) with p = a * v + b and no v in either; None if p is not linear in v."""
    known, key = p.context.linear_splits, (p.number, v.number)
    if key not in known:
        known[key] = _split_linear(p, v)
    return known[key]


def _split_linear(p: Poly, v: Atom) -> tuple[Poly, Poly] | None:
    a: dict[Monomial, int] = {}
    b: dict[Monomial, int] = {}
    for m, c in p.terms:
        n = m.count(v)
        if n > 1:
            return None
        if n == 1:
            k = m.index(v)
            a[m[:k] + m[k + 1 :]] = c
        else:
            b[m] = c
    first, rest = from_terms(p.context, a), from_terms(p.context, b)
    if isinstance(v, Var) and (v in first.vars or v in rest.vars):
        return None
    return first, rest


def divide(p: Poly, q: Poly) -> tuple[Poly, Poly]:
    """Return (quotient, remainder) by the terms of `p` that the monomial `q` divides."""
    if len(q.terms) != 1:
        if p is q:
            return const(p.context, 1), const(p.context, 0)
        return const(p.context, 0), p
    ((qm, qc),) = q.terms
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for m, c in p.terms:
        left = list(m)
        try:
            for a in qm:
                left.remove(a)
        except ValueError:
            rest[m] = c
            continue
        whole[tuple(left)], rest[m] = divmod(c, qc)
    return from_terms(p.context, whole), from_terms(p.context, rest)


def monomial_divides(m: Monomial, n: Monomial) -> bool:
    """True if the monomial m divides n."""
    left = list(n)
    for a in m:
        if a not in left:
            return False
        left.remove(a)
    return True


def replace_product(p: Poly, old: Monomial, new: Monomial) -> Poly:
    """Return `p` with the product `new` in place of `old` in each term that contains it."""
    out = const(p.context, 0)
    for m, c in p.terms:
        if monomial_divides(old, m):
            left = list(m)
            for a in old:
                left.remove(a)
            m = tuple(sorted((*left, *new)))
        out = out + from_terms(p.context, {m: c})
    return out


def divide_by_sum(p: Poly, q: Poly) -> tuple[Poly, Poly]:
    """Return (quotient, remainder) by a polynomial of several terms: n k + k + j is k (n + 1) +
    j."""
    lead, c = q.terms[-1]
    whole = const(p.context, 0)
    if c < -1:
        return whole, p
    for _ in range(8):
        part, _ = divide(p, from_terms(p.context, {lead: c}))
        if not part.terms:
            break
        whole, p = whole + part, p - part * q
    return whole, p
