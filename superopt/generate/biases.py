"""Add a bias, which no enumeration has, to the convolutions of rewrite candidates."""

from __future__ import annotations

from dataclasses import dataclass, field

from superopt.generate.claims import Claim
from superopt.generate.family import Family
from superopt.generate.pattern import Hole, Made, Pattern


def biased(c: Claim, family: Family) -> Claim | None:
    """Return the candidate with biases in its convolutions: one for equal kernels, joined for
    joined kernels.

    A sum has the bias in its first convolution. None if that is not possible; a trial decides
    whether the result holds.
    """
    made = _Biases(family, c.shapes)
    left = [made.left(p) for p in c.left]
    some = tuple(p for p in left if p is not None)
    if len(some) < len(left):
        return None
    own: tuple[Pattern, ...] = tuple(made.of.values())
    term: Pattern | None = own[0]
    if len(own) > 1:
        join = made.use("Concat", 0)
        term = None if join is None or len(own) > 2 else Made(join, own)
    right = None if term is None else made.added(c.right, term)
    return None if right is None else Claim(some, right, tuple(made.shapes), c.axis)


@dataclass(slots=True)
class _Biases:
    """The biases of kernels so far, and the shapes of all variables."""

    family: Family
    found: tuple[tuple[int, ...], ...]
    of: dict[Pattern, Hole] = field(default_factory=dict)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [*self.found, *((self.channels(kernel),) for kernel in self.of)]

    def left(self, p: Pattern) -> Pattern | None:
        """Return a root with a bias for each of its convolutions; of a sum, for the first."""
        if not isinstance(p, Made):
            return None
        if self.name(p) == "Concat":
            parts = tuple(self.left(o) for o in p.operands)
            known = tuple(o for o in parts if o is not None)
            return None if len(known) < len(parts) else Made(p.use, known)
        conv = self.first(p)
        if conv is None:
            return None
        bias = self.of.setdefault(conv.operands[1], Hole(len(self.found) + len(self.of)))
        return self.added(p, bias)

    def added(self, p: Pattern, bias: Pattern) -> Pattern | None:
        """Return a convolution, or a sum with one as operand, with this bias."""
        conv = self.first(p)
        if conv is None or not isinstance(p, Made):
            return None
        with_bias = Made(conv.use, (*conv.operands, bias))
        if p is conv:
            return with_bias
        at = next(n for n, o in enumerate(p.operands) if o is conv)
        return Made(p.use, (*p.operands[:at], with_bias, *p.operands[at + 1 :]))

    def first(self, p: Pattern) -> Made | None:
        """Return the pattern if it is a convolution; of a sum, the first operand that is."""
        some = (p,) if not isinstance(p, Made) or self.name(p) != "Add" else p.operands
        return next((o for o in some if isinstance(o, Made) and self.name(o) == "Conv"), None)

    def name(self, p: Made) -> str:
        return self.family.uses[p.use].name

    def use(self, name: str, axis: int) -> int | None:
        every = enumerate(self.family.uses)
        return next((n for n, u in every if u.name == name and ("axis", axis) in u.attrs), None)

    def channels(self, kernel: Pattern) -> int:
        """Return the number of output channels of a kernel."""
        match kernel:
            case Hole(n):
                return self.found[n][0]
            case Made(u, operands):
                joined = self.family.uses[u]
                if joined.name == "Concat" and ("axis", 0) in joined.attrs:
                    return sum(map(self.channels, operands))
                return self.channels(operands[0])
            case _:
                raise ValueError(f"{kernel} is not a kernel")
