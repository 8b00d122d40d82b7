"""Prove inequalities of indices for sizes in known ranges.

`index.bounds` holds for all sizes >= 1; here a size has a range of its own, such as 64 <= n, and
the quotients of ceiling division and minima are compared with what they are made of:

    x // d                is in [(x - d + 1) / d, x / d]
    axis                  is in [0, extent - 1]
    min(x, y)             is at most each, and at least a common lower bound
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from superopt.te.expr import index
from superopt.te.expr.node import Apply, Axis, Const, Expr, Size

MAX_STEPS = 64  # atoms that are replaced by their bounds in one proof


@dataclass(slots=True)
class SizeRanges:
    """The least and greatest values of sizes: a size is at least 1, and has no greatest value, if
    it is not there."""

    least: dict[str, int] = field(default_factory=dict)
    greatest: dict[str, int] = field(default_factory=dict)

    def is_nonnegative(self, e: Expr) -> bool:
        """True if `e` is proved to be at least 0."""
        return self._is_nonnegative(index.polynomial(e), MAX_STEPS)

    def is_in_range(self, e: Expr, n: Expr) -> bool:
        """True if 0 <= e < n is proved."""
        return self.is_nonnegative(e) and self.is_nonnegative(index.as_index(n - e - 1))

    def add_nonnegative(self, e: Expr) -> None:
        """Narrow the range of a size by e >= 0."""
        p = _at_most(index.polynomial(e))
        atoms = {atoms for atoms in p if atoms}
        match list(atoms):
            case [(Size(name),)]:
                c, base = p[next(iter(atoms))], p.get((), 0)
                if c > 0:
                    self.least[name] = max(self.least.get(name, 1), -(base // c))
                else:
                    most = base // -c
                    self.greatest[name] = min(self.greatest.get(name, most), most)

    def _is_nonnegative(self, p: index.Poly, steps: int) -> bool:
        p = _without_common_factor(p)
        for atoms, c in p.items():
            found = next((a for a in atoms if not isinstance(a, Size)), None)
            if found is None:
                continue
            if not steps:
                return False
            others = list(atoms)
            others.remove(found)
            if not all(self._is_factor_nonnegative(a, steps - 1) for a in others):
                return False
            rest = {k: v for k, v in p.items() if k != atoms}
            times = index.from_polynomial({tuple(others): c})
            return self._is_nonnegative_without(found, rest, times, c > 0, steps - 1)
        return self._is_nonnegative_for_sizes(p)

    def _is_factor_nonnegative(self, a: Expr, steps: int) -> bool:
        return isinstance(a, Size | Axis) or self._is_nonnegative({(a,): 1}, steps)

    def _is_nonnegative_without(
        self, atom: Expr, rest: index.Poly, times: Expr, is_added: bool, steps: int
    ) -> bool:
        """True if rest + times * atom >= 0 is proved with a bound of the atom; times: of the sign
        of `is_added`."""
        base = index.from_polynomial(rest)

        def holds(bound: Expr | int, scale: int = 1) -> bool:
            made = index.as_index(base * scale + times * bound)
            return self._is_nonnegative(index.polynomial(made), steps)

        match atom:
            case Axis(_, extent):
                return holds(0) if is_added else holds(index.as_index(extent) - 1)
            case Apply("min" | "max" as fn, (x, y), _):
                some = (holds(bound) for bound in (x, y))
                return all(some) if is_added == (fn == "min") else any(some)
            case Apply("floordiv", (x, Const(d)), _) if d > 0:
                n = int(d)
                if times == index.as_index(1):  # rest + q >= 0 if and only if n rest + x >= 0
                    return holds(x, n)
                if times == index.as_index(-1):  # rest - q >= 0 if and only if x < n (rest + 1)
                    return holds(x - (n - 1), n)
                return holds(x - (n - 1) if is_added else x, n)
            case Apply("mod", (_, n), _):
                return holds(0) if is_added else holds(n - 1)
        return False

    def _is_nonnegative_for_sizes(self, p: index.Poly) -> bool:
        """True if a polynomial of sizes is at least 0: with size = least + more, no coefficient is
        negative; a size with a negative one has its greatest value where it stands alone."""
        p = dict(p)
        for atoms, c in list(p.items()):
            match atoms:
                case (Size(name),) if c < 0 and name in self.greatest:
                    del p[atoms]
                    p[()] = p.get((), 0) + c * self.greatest[name]
        names = {a.name for atoms in p for a in atoms if isinstance(a, Size)}
        shifted: dict[Expr, Expr] = {
            Size(n): index.as_index(Size(n) + self.least.get(n, 1)) for n in names
        }
        # the new sizes are at least 0, so that their products are
        q = index.polynomial(index.substitute(index.from_polynomial(p), shifted))
        return all(c >= 0 for c in q.values())


def _without_common_factor(p: index.Poly) -> index.Poly:
    """Return a polynomial that is at least 0 where `p` is: g q + c >= 0 if q + c // g >= 0."""
    g = math.gcd(*(c for atoms, c in p.items() if atoms))
    return {atoms: c // g for atoms, c in p.items()} if g > 1 else p


def _at_most(p: index.Poly) -> index.Poly:
    """Return a polynomial that is nonnegative where `p` is, without quotients that stand alone."""
    for atoms, c in p.items():
        match atoms:
            case (Apply("floordiv", (x, Const(d)), _),) if d > 0:
                n = int(d)
                rest = index.from_polynomial({k: v for k, v in p.items() if k != atoms})
                bound = x if c > 0 else x - (n - 1)
                return _at_most(index.polynomial(index.as_index(rest * n + c * bound)))
    return p
