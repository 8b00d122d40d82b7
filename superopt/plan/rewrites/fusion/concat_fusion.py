"""Fuse the operands of a Concat that are computed elementwise into one kernel: each element selects
the operand in which it lies. Used on a GPU, where a launch for each operand costs more than the
selects."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from superopt.plan.lowering.polyphase import StridedPart
from superopt.rules.te.match import Context
from superopt.rules.te.rewrite import load_te_rules, rewrite_definitions
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import loads, reductions, subexpressions
from superopt.te.expr.node import Apply, Axis, Expr
from superopt.te.expr.tensor import Tensor, compare, select

MAX_CONCAT_PARTS = 16  # operands in one kernel
MAX_CONCAT_FUNCTIONS = 64  # scalar functions of all operands in one kernel


def fuse_concat(
    current: Mapping[Tensor, Tensor], written_parts: dict[Tensor, tuple[StridedPart, ...]]
) -> dict[Tensor, Tensor]:
    """Return the definitions with concatenated parts fused. written_parts: the tensors that are
    written in parts; entries that become one tensor are removed."""
    read = {x.tensor for now in current.values() if now.body is not None for x in loads(now.body)}
    place = {t: n for n, t in enumerate(current)}
    made: dict[Tensor, tuple[Tensor, Tensor]] = {}  # inserted after the last of its parts
    inside: set[Tensor] = set()
    for t, some in list(written_parts.items()):
        d = _concat_axis(t, some)
        if d is None:
            continue
        runs = _fusible_runs(some, d, current, read)
        for n, run in enumerate(runs):
            if len(run) == 1:
                continue
            now = _fuse_run(t, run, d, current)
            key = t if len(runs) == 1 else now
            made[max((x.tensor for x in run), key=lambda x: place[x])] = key, now
            inside |= {x.tensor for x in run}
            runs[n] = [StridedPart(now, run[0].begin, run[0].step)]
        if len(runs) == 1 and len(some) > 1:
            del written_parts[t]
        else:
            written_parts[t] = tuple(x for run in runs for x in run)
    out: dict[Tensor, Tensor] = {}
    for t, now in current.items():
        if t in made:
            key, one = made[t]
            out[key] = one
        if t not in inside:
            out[t] = now
    return out


def inline_float_casts(
    current: Mapping[Tensor, Tensor], materialized: Collection[Tensor]
) -> dict[Tensor, Tensor]:
    """Return the definitions with casts from fp16 or bf16 to float32 inlined into their readers.
    materialized: the tensors that must be in memory."""
    inlined = {t: now for t, now in current.items() if t not in materialized}
    return rewrite_definitions(load_te_rules("casts"), current, Context(inlined), repeat=True)


def _concat_axis(t: Tensor, parts: Sequence[StridedPart]) -> int | None:
    """Return the dimension along which the parts follow each other and cover `t`; None where they
    do not."""
    along = [d for d in range(t.rank) if len({x.begin[d] for x in parts}) > 1]
    if len(along) != 1 or any(step != 1 for x in parts for step in x.step):
        return None
    (d,) = along
    end = 0
    for x in parts:
        if x.begin[d] != end:
            return None
        end += _part_extent(x, d)
    return d if end == t.shape[d] else None


def _fusible_runs(
    parts_in_order: Sequence[StridedPart],
    d: int,
    current: Mapping[Tensor, Tensor],
    read_tensors: Collection[Tensor],
) -> list[list[StridedPart]]:
    """Group neighbouring parts that can be one kernel; each other part is a group of its own."""
    out: list[list[StridedPart]] = []
    room = -1
    for x in parts_in_order:
        body = current[x.tensor].body if x.tensor in current else None
        length = (
            MAX_CONCAT_FUNCTIONS + 1
            if body is None
            else sum(isinstance(e, Apply) for e in subexpressions(body))
        )
        simple = body is not None and not reductions(body) and x.tensor not in read_tensors
        simple = simple and length <= MAX_CONCAT_FUNCTIONS
        if simple and room >= length and len(out[-1]) < MAX_CONCAT_PARTS:
            out[-1].append(x)
            room -= length
        else:
            out.append([x])
            room = MAX_CONCAT_FUNCTIONS - length if simple else -1
    return out


def _fuse_run(
    t: Tensor, run: Sequence[StridedPart], d: int, current: Mapping[Tensor, Tensor]
) -> Tensor:
    shape = list(run[0].tensor.shape)
    shape[d] = sum(_part_extent(x, d) for x in run)
    axes = tuple(Axis(f"i{n}", size) for n, size in enumerate(shape))
    body: Expr | None = None
    for x in reversed(run):
        now = current[x.tensor]
        assert now.body is not None
        begin = x.begin[d] - run[0].begin[d]
        at = {a: i - begin if n == d else i
              for n, (a, i) in enumerate(zip(now.axes, axes, strict=True))}  # fmt: skip
        own = substitute_axes(now.body, at)
        end = begin + _part_extent(x, d)
        body = own if body is None else select(compare("lt", axes[d], end), own, body)
    return Tensor(t.name, t.dtype, tuple(shape), axes, body)


def _part_extent(x: StridedPart, d: int) -> int:
    return x.tensor.sizes[d]
