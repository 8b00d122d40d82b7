"""The rewrite candidates that an equation between concrete terms allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from superopt.generate.enumeration.pattern import (
    Equation,
    Pattern,
    PatternCall,
    PatternVariable,
    call_count,
    is_embedded,
    replace_subterm,
    substitute,
    subterms,
    use_numbers,
    variable_numbers,
)
from superopt.generate.families.family import Family, Shape

PRODUCT_OPS = frozenset(["MatMul", "Conv"])


@dataclass(frozen=True, slots=True)
class RewriteCandidate:
    """`left` may be replaced by `right`. With several roots on the left, by the parts of `right`
    along `axis`. shapes: of the variables."""

    left: tuple[Pattern, ...]
    right: Pattern
    shapes: tuple[Shape, ...]
    axis: int | None = None


def as_candidate(e: Equation, family: Family) -> RewriteCandidate:
    """Return an equation as a candidate from left to right."""
    return RewriteCandidate((e.left,), e.right, tuple(family.inputs[i] for i in e.inputs))


def rewrite_candidates(e: Equation, family: Family) -> list[RewriteCandidate]:
    """Return the candidates of an equation.

    In each direction in which the left side binds all variables; if a side is a Concat, its
    operands as parts of the other side; if an operand is a Concat, any tensor in its place, with
    its parts on the other side; and if an operation on a part of a tensor equals the part of the
    operation on the tensor, the same for joins.
    """
    found: list[RewriteCandidate] = []
    shapes = as_candidate(e, family).shapes
    for left, right in ((e.left, e.right), (e.right, e.left)):
        if is_embedded(left, right) or _duplicates_operator(left, right):
            continue  # it would grow without end
        if isinstance(left, PatternCall) and set(variable_numbers(right)) <= set(
            variable_numbers(left)
        ):
            plain = RewriteCandidate((left,), right, shapes)
            found += [plain, *split_candidates(plain, family)]
            root = family.uses[left.use]
            if root.name == "Concat" and all(_has_product(o, family) for o in left.operands):
                (axis,) = (v for k, v in root.attrs if k == "axis")
                assert isinstance(axis, int)
                found.append(RewriteCandidate(left.operands, right, shapes, axis))
        found += joined_candidates(RewriteCandidate((left,), right, shapes), family)
    return found


def joined_candidates(c: RewriteCandidate, family: Family) -> list[RewriteCandidate]:
    """Return the candidates for joins that follow from a law for the first part of a tensor, in
    both directions.

        Softmax(Split(x, axis=0)[0], axis=2) => Split(Softmax(x, axis=2), axis=0)[0]
        Concat(Softmax(x, axis=2), Softmax(y, axis=2), axis=0)
        => Softmax(Concat(x, y, axis=0), axis=2)

    The second law follows from the first one for both parts, but not by a chain of rewrites, which
    would have to invent a join of x and y. So it need not be enumerated, although it has one more
    operator.
    """
    (left,) = c.left
    if not isinstance(c.right, PatternCall):
        return []
    split, whole = c.right.use, c.right.operands[0]
    of = family.uses[split]
    parts = [p for p in subterms(left) if isinstance(p, PatternCall) and p.use == split]
    if of.name != "Split" or of.result != 0 or len(parts) != 1 or left == parts[0]:
        return []
    axis, sizes = dict(of.attrs)["axis"], dict(of.attrs)["split"]
    joins = [
        n
        for n, u in enumerate(family.uses)
        if u.name == "Concat" and u.arity == 2 and dict(u.attrs)["axis"] == axis
    ]
    (one,) = parts[0].operands
    assert isinstance(axis, int)
    assert isinstance(sizes, tuple)
    once = all(
        list(variable_numbers(p)).count(getattr(one, "number", -1)) == 1 for p in (left, whole)
    )
    if not isinstance(one, PatternVariable) or not joins or len(sizes) != 2 or not once:
        return []
    two = PatternVariable(len(c.shapes))
    shape = c.shapes[one.number]
    first, second = ((*shape[:axis], int(d), *shape[axis + 1 :]) for d in sizes)  # type: ignore[arg-type]
    shapes = (*c.shapes[: one.number], first, *c.shapes[one.number + 1 :], second)
    apart = PatternCall(joins[0], tuple(replace_subterm(left, parts[0], h) for h in (one, two)))
    together = replace_subterm(whole, one, PatternCall(joins[0], (one, two)))
    return [
        RewriteCandidate((apart,), together, shapes),
        RewriteCandidate((together,), apart, shapes),
    ]


def _has_product(p: Pattern, family: Family) -> bool:
    """True if `p` contains a product. Joining anything else costs more than it saves."""
    return any(family.uses[u].name in PRODUCT_OPS for u in use_numbers(p))


def _duplicates_operator(left: Pattern, right: Pattern) -> bool:
    """True if one operator becomes several: the same one again, or of an operand that then occurs
    more often."""
    if call_count(left) != 1 or call_count(right) < 2:
        return False
    before, after = list(variable_numbers(left)), list(variable_numbers(right))
    again = list(use_numbers(right)).count(next(use_numbers(left)))
    return again > 1 or any(after.count(n) > before.count(n) for n in before)


def split_candidates(c: RewriteCandidate, family: Family) -> list[RewriteCandidate]:
    """Replace one of the two Concats of the left side by a new variable, and the Concat's operands
    on the right side by Splits of it. A weight of a model is not a Concat, but it can be split."""
    (left,) = c.left
    joins = [p for p in subterms(left) if is_join_of_two(p, family)]
    found: list[RewriteCandidate] = []
    if not _has_product(left, family) or len(joins) != 2:
        return found
    for join in joins:
        a, b = (o.number for o in join.operands if isinstance(o, PatternVariable))
        axis = dict(family.uses[join.use].attrs)["axis"]
        splits = [
            n
            for n, u in enumerate(family.uses)
            if u.name == "Split" and dict(u.attrs)["axis"] == axis
        ]
        if (
            len(splits) != 2
            or list(variable_numbers(left)).count(a) + list(variable_numbers(left)).count(b) != 2
        ):
            continue
        shape = list(c.shapes[a])
        assert isinstance(axis, int)
        shape[axis] += c.shapes[b][axis]
        whole = PatternVariable(a)
        pieces = {a: PatternCall(splits[0], (whole,)), b: PatternCall(splits[1], (whole,))}
        shapes = (*c.shapes[:a], tuple(shape), *c.shapes[a + 1 :])
        found.append(
            RewriteCandidate(
                (replace_subterm(left, join, whole),), substitute(c.right, pieces), shapes
            )
        )
    return found


def is_join_of_two(p: Pattern, family: Family) -> TypeGuard[PatternCall]:
    if not isinstance(p, PatternCall) or family.uses[p.use].name != "Concat":
        return False
    a, b = p.operands
    return isinstance(a, PatternVariable) and isinstance(b, PatternVariable) and a != b
