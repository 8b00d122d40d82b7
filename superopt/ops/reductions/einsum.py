"""Einstein summation."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.shared.precision import narrow_tensor, widen_tensor
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Dim, Tensor, compute, reduce_sum

ELLIPSIS = "..."
Labels = tuple[str, ...]  # labels, and DOTS at most once


def _parse_labels(text: str, equation: str) -> Labels:
    if text.count(ELLIPSIS) > 1 or any(
        ch not in string.ascii_letters for ch in text.replace(ELLIPSIS, "")
    ):
        raise InferError(f"Einsum: {text!r} in {equation!r} is not letters with one ... at most")
    if ELLIPSIS not in text:
        return tuple(text)
    head, tail = text.split(ELLIPSIS)
    return (*head, ELLIPSIS, *tail)


def _parse_equation(equation: str) -> tuple[list[Labels], Labels]:
    """Return the labels of the operands and of the result, which is derived if it is implicit."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = [_parse_labels(t, equation) for t in left.split(",")]
    if arrow:
        result = _parse_labels(right, equation)
    else:
        seen = Counter(label for t in terms for label in t if label != ELLIPSIS)
        dots = (ELLIPSIS,) if any(ELLIPSIS in t for t in terms) else ()
        result = (*dots, *sorted(label for label, n in seen.items() if n == 1))
    if len(set(result)) != len(result):
        raise InferError(f"Einsum {equation!r}: the result has a label twice")
    known = {label for t in terms for label in t}
    for label in result:
        if label not in known and label != ELLIPSIS:
            raise InferError(f"Einsum {equation!r}: no operand has the label {label}")
    return terms, result


def _einsum_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """The result written out; labels renamed a, b, c, ... in order of appearance."""
    equation = attrs["equation"]
    if not isinstance(equation, str):
        raise InferError(f"Einsum: the equation is {equation!r}")
    terms, result = _parse_equation(equation)
    names: dict[str, str] = {ELLIPSIS: ELLIPSIS}
    for t in terms:
        for label in t:
            if label != ELLIPSIS:
                names.setdefault(label, string.ascii_letters[len(names) - 1])
    left = ",".join("".join(names[label] for label in t) for t in terms)
    return {"equation": f"{left}->{''.join(names[label] for label in result)}"}


def _broadcast_labels(terms: Sequence[Labels], xs: Sequence[Tensor], equation: str) -> list[Labels]:
    """Replace ELLIPSIS in the labels by the broadcast axes, counted from the last: "-1", "-2"."""
    out: list[Labels] = []
    for t, x in zip(terms, xs, strict=True):
        extra = x.rank - (len(t) - (ELLIPSIS in t))
        if extra < 0 or (extra and ELLIPSIS not in t):
            raise InferError(f"Einsum {equation!r}: {''.join(t)} labels {x.type}")
        axes = tuple(str(n - extra) for n in range(extra))
        at = t.index(ELLIPSIS) if ELLIPSIS in t else 0
        out.append((*t[:at], *axes, *t[at + 1 :]) if ELLIPSIS in t else t)
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
    canonical=_einsum_attrs,
)
def einsum(*xs: Tensor, equation: str) -> Tensor:
    """Products of elements, summed over the labels that the result lacks."""
    terms, result = _parse_equation(equation)
    if len(terms) != len(xs):
        raise InferError(f"Einsum {equation!r} of {len(xs)} operands")
    if any(x.dtype != xs[0].dtype for x in xs):
        raise InferError(f"Einsum {equation!r} of {', '.join(str(x.type) for x in xs)}: dtypes")
    aligned = _broadcast_labels(terms, xs, equation)
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
    if broadcast_axes and ELLIPSIS not in result:
        raise InferError(f"Einsum {equation!r}: the result lacks ...")
    free = [k for label in result for k in (broadcast_axes if label == ELLIPSIS else (label,))]
    summed = [k for k in extents if k not in free]
    wide = [widen_tensor(x) for x in xs] if summed or len(xs) > 1 else xs

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

    return narrow_tensor(compute(tuple(extents[k] for k in free), element), xs[0].dtype)
