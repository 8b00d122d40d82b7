"""Einstein summation."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.precision import narrowed, wider
from superopt.te.expr import Dim, Tensor, compute, reduce_sum
from superopt.te.node import Expr

DOTS = "..."
Term = tuple[str, ...]  # labels, and DOTS at most once


def _term(text: str, equation: str) -> Term:
    if text.count(DOTS) > 1 or any(ch not in string.ascii_letters for ch in text.replace(DOTS, "")):
        raise InferError(f"Einsum: {text!r} in {equation!r} is not letters with one ... at most")
    if DOTS not in text:
        return tuple(text)
    head, tail = text.split(DOTS)
    return (*head, DOTS, *tail)


def _parsed(equation: str) -> tuple[list[Term], Term]:
    """Return the labels of the operands and of the result, which is derived if it is implicit."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = [_term(t, equation) for t in left.split(",")]
    if arrow:
        result = _term(right, equation)
    else:
        seen = Counter(label for t in terms for label in t if label != DOTS)
        dots = (DOTS,) if any(DOTS in t for t in terms) else ()
        result = (*dots, *sorted(label for label, n in seen.items() if n == 1))
    if len(set(result)) != len(result):
        raise InferError(f"Einsum {equation!r}: the result has a label twice")
    known = {label for t in terms for label in t}
    for label in result:
        if label not in known and label != DOTS:
            raise InferError(f"Einsum {equation!r}: no operand has the label {label}")
    return terms, result


def _equation(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """The result written out; labels renamed a, b, c, ... in order of appearance."""
    equation = attrs["equation"]
    if not isinstance(equation, str):
        raise InferError(f"Einsum: the equation is {equation!r}")
    terms, result = _parsed(equation)
    names: dict[str, str] = {DOTS: DOTS}
    for t in terms:
        for label in t:
            if label != DOTS:
                names.setdefault(label, string.ascii_letters[len(names) - 1])
    left = ",".join("".join(names[label] for label in t) for t in terms)
    return {"equation": f"{left}->{''.join(names[label] for label in result)}"}


def _aligned(terms: Sequence[Term], xs: Sequence[Tensor], equation: str) -> list[Term]:
    """Replace ELLIPSIS in the labels by the broadcast axes, counted from the last: "-1", "-2"."""
    out: list[Term] = []
    for t, x in zip(terms, xs, strict=True):
        extra = x.rank - (len(t) - (DOTS in t))
        if extra < 0 or (extra and DOTS not in t):
            raise InferError(f"Einsum {equation!r}: {''.join(t)} labels {x.type}")
        axes = tuple(str(n - extra) for n in range(extra))
        at = t.index(DOTS) if DOTS in t else 0
        out.append((*t[:at], *axes, *t[at + 1 :]) if DOTS in t else t)
    return out


@op(
    "Einsum",
    example=(
        'f32[2,3,4] f32[2,3,5] equation="abc,abd->acd"',
        'f32[3,3] equation="aa->a"',
        'f32[2,3,4] f32[4,5] equation="...a,ab->...b"',
    ),
    laws="linear",
    since=12,
    canonical=_equation,
)
def einsum(*xs: Tensor, equation: str) -> Tensor:
    """Products of elements, summed over the labels that the result lacks."""
    terms, result = _parsed(equation)
    if len(terms) != len(xs):
        raise InferError(f"Einsum {equation!r} of {len(xs)} operands")
    if any(x.dtype != xs[0].dtype for x in xs):
        raise InferError(f"Einsum {equation!r} of {', '.join(str(x.type) for x in xs)}: dtypes")
    aligned = _aligned(terms, xs, equation)
    extents: dict[str, Dim] = {}
    for t, x in zip(aligned, xs, strict=True):
        for label, n in zip(t, x.shape, strict=True):
            have = extents.setdefault(label, n)
            dots = label.startswith("-")  # ... broadcasts, labels do not
            if dots and have == 1:
                extents[label] = n
            elif have != n and not (dots and n == 1):
                raise InferError(f"Einsum {equation!r}: {label} is {have} and {n}")
    broadcast_axes = sorted((k for k in extents if k.startswith("-")), key=int)
    if broadcast_axes and DOTS not in result:
        raise InferError(f"Einsum {equation!r}: the result lacks ...")
    free = [k for label in result for k in (broadcast_axes if label == DOTS else (label,))]
    summed = [k for k in extents if k not in free]
    wide = [wider(x) for x in xs] if summed or len(xs) > 1 else xs

    def element(*i: Expr) -> Expr:
        def term(*k: Expr) -> Expr:
            value = dict(zip((*free, *summed), (*i, *k), strict=True))
            product: Expr | None = None
            for t, x in zip(aligned, wide, strict=True):
                one = x[
                    tuple(
                        0 if n == 1 and label.startswith("-") else value[label]
                        for label, n in zip(t, x.shape, strict=True)
                    )
                ]
                product = one if product is None else product * one
            assert product is not None
            return product

        return reduce_sum([extents[k] for k in summed], term)

    return narrowed(compute(tuple(extents[k] for k in free), element), xs[0].dtype)
