"""The content of two forms, independent of the indices at which they read.

The instances of an elementwise rule ask the same question: is max(min(x, y), x) = x for elements of
x and y? If each tensor is read at one index, and there is no sum, guard or size, then neither the
indices nor facts about sizes matter.
"""

from __future__ import annotations

from collections.abc import Iterable

from superopt.verifier.elements import normal
from superopt.verifier.elements.factors import Factor
from superopt.verifier.elements.normal import NF, Term

Skeleton = tuple[object, ...]


class _PlaceDependent(Exception):
    """The forms read more than one element of a tensor."""


def skeleton(forms: Iterable[NF]) -> Skeleton | None:
    """Return the forms with tensors in place of their elements; None if the indices matter."""
    places: dict[str, normal.Read] = {}
    try:
        return tuple(_form(a, places) for a in forms)
    except _PlaceDependent:
        return None


def _form(a: NF, places: dict[str, normal.Read]) -> Skeleton:
    return tuple((t.coefficient, *_powers(t, places)) for t in a.terms)


def _powers(t: Term, places: dict[str, normal.Read]) -> Skeleton:
    if t.bound or t.guards:
        raise _PlaceDependent
    return tuple((_factor(f, places), e) for f, e in t.powers)


def _factor(f: Factor, places: dict[str, normal.Read]) -> object:
    match f:
        case normal.Read(name=name) if places.setdefault(name, f) is f:
            return name
        case normal.Fn():
            return (f.name, *(_form(a, places) for a in f.args))
        case normal.Exp() | normal.Sum():
            return (type(f).__name__, _form(f.argument, places))
        case normal.Truth():
            return (f.fn, _form(f.argument, places))
        case normal.Max() if not any(p.bound or p.guards for p in f.pieces):
            return ("max", *(_form(p.value, places) for p in f.pieces))
        case _:
            raise _PlaceDependent
