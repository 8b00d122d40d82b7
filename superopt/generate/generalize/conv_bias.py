"""Add a bias, which no enumeration has, to the convolutions of rewrite candidates."""

from __future__ import annotations

from dataclasses import dataclass, field

from superopt.generate.enumeration.pattern import Pattern, PatternCall, PatternVariable
from superopt.generate.families.family import Family
from superopt.generate.generalize.candidates import RewriteCandidate


def add_bias(candidate: RewriteCandidate, family: Family) -> RewriteCandidate | None:
    """Return the candidate with biases in its convolutions: one for equal kernels, joined for
    joined kernels.

    A sum has the bias in its first convolution. None if that is not possible; a trial decides
    whether the result holds.
    """
    made = _BiasBuilder(family, candidate.shapes)
    left = [made.bias_root(p) for p in candidate.left]
    some = tuple(p for p in left if p is not None)
    if len(some) < len(left):
        return None
    own: tuple[Pattern, ...] = tuple(made.bias_of.values())
    term: Pattern | None = own[0]
    if len(own) > 1:
        join = made.find_use("Concat", 0)
        term = None if join is None or len(own) > 2 else PatternCall(join, own)
    right = None if term is None else made.add_bias_to(candidate.right, term)
    return (
        None if right is None else RewriteCandidate(some, right, tuple(made.shapes), candidate.axis)
    )


@dataclass(slots=True)
class _BiasBuilder:
    """The biases of kernels so far, and the shapes of all variables."""

    family: Family
    variable_shapes: tuple[tuple[int, ...], ...]
    bias_of: dict[Pattern, PatternVariable] = field(default_factory=dict)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [
            *self.variable_shapes,
            *((self.output_channels(kernel),) for kernel in self.bias_of),
        ]

    def bias_root(self, p: Pattern) -> Pattern | None:
        """Return a root with a bias for each of its convolutions; of a sum, for the first."""
        if not isinstance(p, PatternCall):
            return None
        if self.op_name(p) == "Concat":
            parts = tuple(self.bias_root(o) for o in p.operands)
            known = tuple(o for o in parts if o is not None)
            return None if len(known) < len(parts) else PatternCall(p.use, known)
        conv = self.first_convolution(p)
        if conv is None:
            return None
        bias = self.bias_of.setdefault(
            conv.operands[1], PatternVariable(len(self.variable_shapes) + len(self.bias_of))
        )
        return self.add_bias_to(p, bias)

    def add_bias_to(self, p: Pattern, bias: Pattern) -> Pattern | None:
        """Return a convolution, or a sum with one as operand, with this bias."""
        conv = self.first_convolution(p)
        if conv is None or not isinstance(p, PatternCall):
            return None
        with_bias = PatternCall(conv.use, (*conv.operands, bias))
        if p is conv:
            return with_bias
        at = next(n for n, o in enumerate(p.operands) if o is conv)
        return PatternCall(p.use, (*p.operands[:at], with_bias, *p.operands[at + 1 :]))

    def first_convolution(self, p: Pattern) -> PatternCall | None:
        """Return the pattern if it is a convolution; of a sum, the first operand that is."""
        some = (p,) if not isinstance(p, PatternCall) or self.op_name(p) != "Add" else p.operands
        return next(
            (o for o in some if isinstance(o, PatternCall) and self.op_name(o) == "Conv"), None
        )

    def op_name(self, p: PatternCall) -> str:
        return self.family.uses[p.use].name

    def find_use(self, name: str, axis: int) -> int | None:
        every = enumerate(self.family.uses)
        return next((n for n, u in every if u.name == name and ("axis", axis) in u.attrs), None)

    def output_channels(self, kernel: Pattern) -> int:
        """Return the number of output channels of a kernel."""
        match kernel:
            case PatternVariable(n):
                return self.variable_shapes[n][0]
            case PatternCall(u, operands):
                joined = self.family.uses[u]
                if joined.name == "Concat" and ("axis", 0) in joined.attrs:
                    return sum(map(self.output_channels, operands))
                return self.output_channels(operands[0])
            case _:
                raise ValueError(f"{kernel} is not a kernel")
