"""The rewrite candidates that an equation between concrete terms allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from superopt.generate.family import Family, Shape
from superopt.generate.pattern import (
    Equation,
    Hole,
    Made,
    Pattern,
    embedded,
    filled,
    holes,
    parts_of,
    replaced,
    size,
    uses,
)

HEAVY = frozenset(["MatMul", "Conv"])


@dataclass(frozen=True, slots=True)
class Claim:
    """`left` may be replaced by `right`. With several roots on the left, by the parts of `right`
    along `axis`. shapes: of the variables."""

    left: tuple[Pattern, ...]
    right: Pattern
    shapes: tuple[Shape, ...]
    axis: int | None = None


def stated(e: Equation, family: Family) -> Claim:
    """Return an equation as a candidate from left to right."""
    return Claim((e.left,), e.right, tuple(family.inputs[i] for i in e.inputs))


def claims(e: Equation, family: Family) -> list[Claim]:
    """Return the candidates of an equation.

    In each direction in which the left side binds all variables; if a side is a Concat, its
    operands as parts of the other side; if an operand is a Concat, any tensor in its place, with
    its parts on the other side; and if an operation on a part of a tensor equals the part of the
    operation on the tensor, the same for joins.
    """
    found: list[Claim] = []
    shapes = stated(e, family).shapes
    for left, right in ((e.left, e.right), (e.right, e.left)):
        if embedded(left, right) or _doubles(left, right):
            continue  # it would grow without end
        if isinstance(left, Made) and set(holes(right)) <= set(holes(left)):
            plain = Claim((left,), right, shapes)
            found += [plain, *taken_apart(plain, family)]
            root = family.uses[left.use]
            if root.name == "Concat" and all(_heavy(o, family) for o in left.operands):
                (axis,) = (v for k, v in root.attrs if k == "axis")
                assert isinstance(axis, int)
                found.append(Claim(left.operands, right, shapes, axis))
        found += joined(Claim((left,), right, shapes), family)
    return found


def joined(c: Claim, family: Family) -> list[Claim]:
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
    if not isinstance(c.right, Made):
        return []
    split, whole = c.right.use, c.right.operands[0]
    of = family.uses[split]
    parts = [p for p in parts_of(left) if isinstance(p, Made) and p.use == split]
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
    once = all(list(holes(p)).count(getattr(one, "number", -1)) == 1 for p in (left, whole))
    if not isinstance(one, Hole) or not joins or len(sizes) != 2 or not once:
        return []
    two = Hole(len(c.shapes))
    shape = c.shapes[one.number]
    first, second = ((*shape[:axis], int(d), *shape[axis + 1 :]) for d in sizes)  # type: ignore[arg-type]
    shapes = (*c.shapes[: one.number], first, *c.shapes[one.number + 1 :], second)
    apart = Made(joins[0], tuple(replaced(left, parts[0], h) for h in (one, two)))
    together = replaced(whole, one, Made(joins[0], (one, two)))
    return [Claim((apart,), together, shapes), Claim((together,), apart, shapes)]


def _heavy(p: Pattern, family: Family) -> bool:
    """True if `p` contains a product. Joining anything else costs more than it saves."""
    return any(family.uses[u].name in HEAVY for u in uses(p))


def _doubles(left: Pattern, right: Pattern) -> bool:
    """True if one operator becomes several: the same one again, or of an operand that then occurs
    more often."""
    if size(left) != 1 or size(right) < 2:
        return False
    before, after = list(holes(left)), list(holes(right))
    again = list(uses(right)).count(next(uses(left)))
    return again > 1 or any(after.count(n) > before.count(n) for n in before)


def taken_apart(c: Claim, family: Family) -> list[Claim]:
    """Return the candidates with any tensor in place of one of two joins of variables on the left,
    and its parts (with the other join's sizes) on the right. A weight of a model is not a Concat,
    but it can be split."""
    (left,) = c.left
    joins = [p for p in parts_of(left) if joins_two(p, family)]
    found: list[Claim] = []
    if not _heavy(left, family) or len(joins) != 2:
        return found
    for join in joins:
        a, b = (o.number for o in join.operands if isinstance(o, Hole))
        axis = dict(family.uses[join.use].attrs)["axis"]
        splits = [
            n
            for n, u in enumerate(family.uses)
            if u.name == "Split" and dict(u.attrs)["axis"] == axis
        ]
        if len(splits) != 2 or list(holes(left)).count(a) + list(holes(left)).count(b) != 2:
            continue
        shape = list(c.shapes[a])
        assert isinstance(axis, int)
        shape[axis] += c.shapes[b][axis]
        whole = Hole(a)
        pieces = {a: Made(splits[0], (whole,)), b: Made(splits[1], (whole,))}
        shapes = (*c.shapes[:a], tuple(shape), *c.shapes[a + 1 :])
        found.append(Claim((replaced(left, join, whole),), filled(c.right, pieces), shapes))
    return found


def joins_two(p: Pattern, family: Family) -> TypeGuard[Made]:
    if not isinstance(p, Made) or family.uses[p.use].name != "Concat":
        return False
    a, b = p.operands
    return isinstance(a, Hole) and isinstance(b, Hole) and a != b
