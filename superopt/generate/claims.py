"""The rewrites that an equation between concrete terms allows."""

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
    along `axis`. shapes: of the holes."""

    left: tuple[Pattern, ...]
    right: Pattern
    shapes: tuple[Shape, ...]
    axis: int | None = None


def stated(e: Equation, family: Family) -> Claim:
    """An equation as it is, from left to right."""
    return Claim((e.left,), e.right, tuple(family.inputs[i] for i in e.inputs))


def claims(e: Equation, family: Family) -> list[Claim]:
    """The rewrites that an equation allows: in each direction in which the left side binds all;
    where a side is a Concat, that its operands are parts of the other side; where a Concat is an
    operand, that any tensor is, whose parts are then on the other side; and where a part of a
    tensor goes through something as the tensor does, that joins do."""
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
    """Where the first part of something is it of the first part of a tensor, and of nothing else
    about this tensor: that a join of two of it is it of their join, in both directions.

        Softmax(Split(x, axis=0)[0], axis=2) => Split(Softmax(x, axis=2), axis=0)[0]
        Concat(Softmax(x, axis=2), Softmax(y, axis=2), axis=0)
        => Softmax(Concat(x, y, axis=0), axis=2)

    This follows from the first line for both parts, and not from it by a chain of rewrites, which
    would have to make up a join of x and y. So it need not be enumerated, where it has an operator
    more."""
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
    """Is there a product in `p`? To join anything else costs more than it gains."""
    return any(family.uses[u].name in HEAVY for u in uses(p))


def _doubles(left: Pattern, right: Pattern) -> bool:
    """Does one operator become several: the same one again, or of an operand that is there more
    often then?"""
    if size(left) != 1 or size(right) < 2:
        return False
    before, after = list(holes(left)), list(holes(right))
    again = list(uses(right)).count(next(uses(left)))
    return again > 1 or any(after.count(n) > before.count(n) for n in before)


def taken_apart(c: Claim, family: Family) -> list[Claim]:
    """For every join of two variables beside another one on the left: any tensor in its place, and
    parts of it on the right, of the other one's sizes. A weight is no Concat in a model, but its
    rows may be told apart."""
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
