"""Compute sums of products by matrix products.

Operands are arrays with the same trailing axes, of length 1 where they do not depend on an axis.
The lengths determine the role of each axis: reduced, batch (in both operands), row or column (in
one operand). A window view (the im2col of a convolution) is copied into a matrix; if the copy would
be too large, it is made slab by slab.
"""

from __future__ import annotations

import math

import numpy as np

from superopt.te.eval.domain import Domain
from superopt.te.eval.strided import slice_dims
from superopt.te.expr.dtype import DType

MAX_COPY_BYTES = 1 << 25  # of one operand that is copied into a matrix


def contract(
    domain: Domain, dtype: DType, factors: list[np.ndarray], rank: int, reduced_count: int
) -> np.ndarray:
    """Return the sum of the product of `factors` over the last `reduced_count` of their `rank`
    trailing axes.

    Reduced axes keep length 1. An axis of length 1 in all factors is not reduced.
    """
    rest = list(factors)
    while len(rest) > 1:
        left, right = _smallest_pair(rest, rank)
        a, b = rest[left], rest[right]
        others = [x for n, x in enumerate(rest) if n not in (left, right)]
        over = [
            p
            for p in range(rank - reduced_count, rank)
            if all(x.shape[p - rank] == 1 for x in others)
        ]
        rest = [*others, _contract_pair(domain, dtype, a, b, rank, frozenset(over))]
    (out,) = rest
    over_left = tuple(
        p - rank for p in range(rank - reduced_count, rank) if out.shape[p - rank] != 1
    )
    return domain.reduce("sum", out, over_left, dtype) if over_left else out


def _smallest_pair(xs: list[np.ndarray], rank: int) -> tuple[int, int]:
    """Return the two operands whose joint index space is the smallest."""
    pairs = [(a, b) for a in range(len(xs)) for b in range(a + 1, len(xs))]
    return min(pairs, key=lambda p: math.prod(_broadcast_lengths(xs[p[0]], xs[p[1]], rank)))


def _broadcast_lengths(a: np.ndarray, b: np.ndarray, rank: int) -> tuple[int, ...]:
    """Return the broadcast lengths of the trailing axes of `a` and `b`."""
    return tuple(
        n if m == 1 else m
        for n, m in zip(_trailing_shape(a, rank), _trailing_shape(b, rank), strict=True)
    )


def _trailing_shape(x: np.ndarray, rank: int) -> tuple[int, ...]:
    return x.shape[x.ndim - rank :]


def _contract_pair(
    domain: Domain, dtype: DType, a: np.ndarray, b: np.ndarray, rank: int, reduced: frozenset[int]
) -> np.ndarray:
    """Return the sum over `reduced` of the product of two operands; reduced axes keep length 1."""
    for p in sorted(reduced):  # an axis that only one operand depends on is reduced first
        n, m = a.shape[p - rank], b.shape[p - rank]
        if n != 1 and m == 1:
            a = domain.reduce("sum", a, (p - rank,), dtype)
        elif m != 1 and n == 1:
            b = domain.reduce("sum", b, (p - rank,), dtype)
    slab = _choose_slab(a, b, rank, reduced) or _choose_slab(b, a, rank, reduced)
    if slab is None:
        return _contract_by_matmul(domain, dtype, a, b, rank, reduced)
    p, step = slab
    n = _broadcast_lengths(a, b, rank)[p]
    parts = (
        _contract_pair(
            domain,
            dtype,
            _slice_axis(a, p - rank, i, i + step),
            _slice_axis(b, p - rank, i, i + step),
            rank,
            reduced,
        )
        for i in range(0, n, step)
    )
    if p in reduced:
        total = next(parts)
        for piece in parts:
            total = domain.apply("add", (total, piece), (dtype, dtype), dtype)
        return total
    first = next(parts)
    shape = list(first.shape)
    shape[p - rank] = n
    out = np.empty(shape, first.dtype)
    _slice_axis(out, p - rank, 0, step)[...] = first
    for i, piece in enumerate(parts, 1):
        _slice_axis(out, p - rank, i * step, (i + 1) * step)[...] = piece
    return out


def _slice_axis(x: np.ndarray, axis: int, start: int, stop: int) -> np.ndarray:
    """Return a range of `axis` (negative); all of it if its length is 1."""
    if x.shape[axis] == 1:
        return x
    return slice_dims(x, x.ndim + axis, [slice(start, stop)])


def _choose_slab(
    x: np.ndarray, y: np.ndarray, rank: int, reduced: frozenset[int]
) -> tuple[int, int] | None:
    """Return (axis, length) of slabs of `x` that are small enough to copy; None if all of it is.

    Only a view with overlapping elements (or strides of 0) is larger than its memory.
    """
    if x.nbytes <= MAX_COPY_BYTES or not _has_overlap(x):
        return None
    lengths = _trailing_shape(x, rank)
    kept = [p for p in range(rank) if p not in reduced and lengths[p] > 1]
    own = [p for p in kept if y.shape[p - rank] == 1]
    candidates = own or kept or [p for p in range(rank) if lengths[p] > 1]
    p = max(candidates, key=lambda q: (lengths[q], -q))
    pieces = min(lengths[p], -(-x.nbytes // MAX_COPY_BYTES))
    return (p, -(-lengths[p] // pieces)) if pieces > 1 else None


def _has_overlap(x: np.ndarray) -> bool:
    """True if the view contains elements more than once."""
    steps = sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1)
    reach = x.itemsize
    for stride, n in steps:
        if stride < reach:
            return True
        reach = stride * (n - 1) + reach
    return False


def _contract_by_matmul(
    domain: Domain, dtype: DType, a: np.ndarray, b: np.ndarray, rank: int, reduced: frozenset[int]
) -> np.ndarray:
    """Return the product by one call of the domain's matmul.

    The last run of axes that only one operand has are the columns; the run before that only the
    other has are the rows. All other kept axes are batch axes, broadcast where an operand lacks
    them.
    """
    na, nb = _trailing_shape(a, rank), _trailing_shape(b, rank)
    inner = [p for p in range(rank) if p in reduced and na[p] != 1]
    owners = {
        p: ("ab" if nb[p] != 1 else "a") if na[p] != 1 else "b"
        for p in range(rank)
        if p not in reduced and (na[p] != 1 or nb[p] != 1)
    }
    single = [p for p in owners if owners[p] != "ab"]
    columns = _last_run(single, owners)
    rows = _last_run(single[: len(single) - len(columns)], owners)
    if columns and owners[columns[0]] == "a":
        a, b, na, nb = b, a, nb, na
        owners = {p: {"a": "b", "b": "a"}.get(o, o) for p, o in owners.items()}
    rest = [p for p in owners if p not in rows and p not in columns]
    many = math.prod(max(na[p], nb[p]) for p in rest if owners[p] != "ab")
    work = math.prod(max(na[p], nb[p]) for p in (*rows, *columns, *inner))
    if many > 1 and work < 1 << 12:  # too little work for one call each: one large product
        rows = [p for p in owners if owners[p] == "a"]
        columns = [p for p in owners if owners[p] == "b"]
        rest = [p for p in owners if owners[p] == "ab"]
    left = _as_matrices(a, rank, rest, rows, inner)
    right = _as_matrices(b, rank, rest, inner, columns)
    out = domain.matmul(left, right, dtype)
    lengths = [max(na[p], nb[p]) if min(na[p], nb[p]) else 0 for p in range(rank)]
    order = [*rest, *rows, *columns]
    lead = out.shape[: out.ndim - len(rest) - 2]
    out = out.reshape((*lead, *(lengths[p] for p in order)))
    back = sorted(range(len(order)), key=order.__getitem__)
    out = out.transpose(*range(len(lead)), *(len(lead) + p for p in back))
    return out.reshape((*lead, *(lengths[p] if p in owners else 1 for p in range(rank))))


def _last_run(axes: list[int], owners: dict[int, str]) -> list[int]:
    """Return the trailing axes that have the same owner."""
    out: list[int] = []
    for p in reversed(axes):
        if out and owners[p] != owners[out[0]]:
            break
        out.insert(0, p)
    return out


def _as_matrices(
    x: np.ndarray, rank: int, batch: list[int], rows: list[int], columns: list[int]
) -> np.ndarray:
    """Return `x` as matrices of `rows` by `columns` for each index of the `batch` axes."""
    lead = x.ndim - rank
    order = [*batch, *rows, *columns]
    dropped = [p for p in range(rank) if p not in order]
    y = x.transpose(*range(lead), *(lead + p for p in (*order, *dropped)))
    shape = [x.shape[lead + p] for p in batch]
    height = math.prod(x.shape[lead + p] for p in rows)
    width = math.prod(x.shape[lead + p] for p in columns)
    return y.reshape((*x.shape[:lead], *shape, height, width))
