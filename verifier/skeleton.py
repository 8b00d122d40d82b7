"""The content of two forms, independent of the indices at which they read.

The instances of an elementwise rule ask the same question: is max(min(x, y), x) = x for elements of
x and y? If each tensor is read at one index, and there is no sum, guard or size, then neither the
indices nor facts about sizes matter.
"""

from __future__ import annotations

from collections.abc import Iterable

from superopt.verifier import normal as N
from superopt.verifier.factors import Factor
from superopt.verifier.normal import NF, Term

Skeleton = tuple[object, ...]


class _Placed(Exception):
    """The forms read more than one element of a tensor."""


def skeleton(forms: Iterable[NF]) -> Skeleton | None:
    """Return the forms with tensors in place of their elements; None if the indices matter."""
    places: dict[str, N.Read] = {}
    try:
        return tuple(_form(a, places) for a in forms)
    except _Placed:
        return None


def _form(a: NF, places: dict[str, N.Read]) -> Skeleton:
    return tuple((t.coefficient, *_powers(t, places)) for t in a.terms)


def _powers(t: Term, places: dict[str, N.Read]) -> Skeleton:
    if t.bound or t.guards:
        raise _Placed
    return tuple((_factor(f, places), e) for f, e in t.powers)


def _factor(f: Factor, places: dict[str, N.Read]) -> object:
    match f:
        case N.Read(name=name) if places.setdefault(name, f) is f:
            return name
        case N.Fn():
            return (f.name, *(_form(a, places) for a in f.args))
        case N.Exp() | N.Total():
            return (type(f).__name__, _form(f.of, places))
        case N.Truth():
            return (f.fn, _form(f.of, places))
        case N.Top() if not any(p.bound or p.guards for p in f.pieces):
            return ("max", *(_form(p.value, places) for p in f.pieces))
        case _:
            raise _Placed
