"""Instructions of a target that compute many elements at once, each as a tensor expression.

A schedule names one (`tensorize`), and the named loops must compute its expression. Element types,
and a conversion of operands before the product, are left to the target that has the instruction.
"""

from __future__ import annotations

from collections.abc import Sequence

from superopt.kernels.loops.loop_transforms import Scheduled, reduction
from superopt.kernels.loops.schedule import IllegalSchedule
from superopt.te.analysis.walk import index_axes
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Apply, Axis, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor, compute, reduce_sum


def _dot(k: int) -> Tensor:
    """Return the dot product of vpdpbusd (AVX-512 VNNI), sdot (Arm) and dp4a (NVIDIA)."""
    a, b = Tensor("a", F32, (k,)), Tensor("b", F32, (k,))
    return compute((), lambda: reduce_sum(k, lambda x: a[x] * b[x]))


def _matrix_product(m: int, n: int, k: int) -> Tensor:
    """Return the matrix product of tensor cores (mma), AMX and SME."""
    a, b = Tensor("a", F32, (m, k)), Tensor("b", F32, (k, n))
    return compute((m, n), lambda i, j: reduce_sum(k, lambda x: a[i, x] * b[x, j]))


INTRINSICS: dict[str, Tensor] = {
    "dot4": _dot(4),
    "mma4x4x4": _matrix_product(4, 4, 4),
    "mma16x16x16": _matrix_product(16, 16, 16),
}


def check_intrinsic(s: Scheduled, n: int, name: str) -> None:
    """Raise IllegalSchedule unless the loops from the n-th on compute the intrinsic."""
    what = f"tensorize({s.loops[n].axis.name.removeprefix(s.prefix)}, {name})"
    if name not in INTRINSICS:
        raise IllegalSchedule(f"{what}: the intrinsics are {', '.join(INTRINSICS)}")
    meant, found = INTRINSICS[name], reduction(s.tensor)
    assert isinstance(meant.body, Reduce)
    if found is None or found.fn != meant.body.fn:
        raise IllegalSchedule(f"{what}: {s.tensor.name} is not a {meant.body.fn}")
    loops = [(x.axis.name, x.extent, x.reduced) for x in s.loops[n:]]
    wanted = [(a.name, a.extent, False) for a in meant.axes]
    wanted += [(a.name, a.extent, True) for a in meant.body.axes]
    if [x[1:] for x in loops] != [x[1:] for x in wanted]:
        raise IllegalSchedule(
            f"{what}: the loops are {_loops_text(loops)}, not {_loops_text(wanted)}"
        )
    inner = dict(zip((x.axis for x in s.loops[n:]), (*meant.axes, *meant.body.axes), strict=True))
    if not _is_same_term(found.body, meant.body.body, s.env, inner):
        raise IllegalSchedule(f"{what}: {found.body} is not {meant.body.body} in these loops")


def _loops_text(loops: Sequence[tuple[str, object, bool]]) -> str:
    return ", ".join(f"{name} < {n}{' reduced' * over}" for name, n, over in loops)


def _is_same_term(e: Expr, expected: Expr, env: dict[Expr, Expr], inner: dict[Axis, Axis]) -> bool:
    match e, expected:
        case Apply("cast", (x,)), Load():
            return _is_same_term(x, expected, env, inner)
        case Apply(f, some), Apply(g, others) if f == g and len(some) == len(others):
            return all(_is_same_term(x, y, env, inner) for x, y in zip(some, others, strict=True))
        case Load(_, index), Load(_, wanted):
            moving = (_inner_index(te_index.substitute(i, env), inner) for i in index)
            return tuple(i for i in moving if i is not None) == wanted
    return False


def _inner_index(i: Expr, inner: dict[Axis, Axis]) -> Expr | None:
    """Return the part of an index that depends on the inner loops, over the intrinsic's axes; None
    if there is none."""
    part: te_index.Poly = {
        atoms: c
        for atoms, c in te_index.polynomial(i).items()
        if any(index_axes(a) & inner.keys() for a in atoms)
    }
    return (
        te_index.substitute(te_index.from_polynomial(part), dict(inner.items())) if part else None
    )
