"""Fuse the operands of a Concat that are computed elementwise into one kernel: each element selects
the operand in which it lies. Used on a GPU, where a launch for each operand costs more than the
selects."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from superopt.plan.phases import Phase
from superopt.te.dtype import BF16, F16, F32
from superopt.te.expr import Tensor, compare, select
from superopt.te.inline import Inlining, placed
from superopt.te.node import Apply, Axis, Expr, Load
from superopt.te.walk import loads, parts, reductions

MOST = 16  # operands in one kernel
LONGEST = 64  # scalar functions of all operands in one kernel


def knitted(
    current: Mapping[Tensor, Tensor], joined: dict[Tensor, tuple[Phase, ...]]
) -> dict[Tensor, Tensor]:
    """Return the definitions with concatenated parts fused. written_parts: the tensors that are
    written in parts; entries that become one tensor are removed."""
    read = {x.tensor for now in current.values() if now.body is not None for x in loads(now.body)}
    place = {t: n for n, t in enumerate(current)}
    made: dict[Tensor, tuple[Tensor, Tensor]] = {}  # inserted after the last of its parts
    inside: set[Tensor] = set()
    for t, some in list(joined.items()):
        d = _along(t, some)
        if d is None:
            continue
        runs = _runs(some, d, current, read)
        for n, run in enumerate(runs):
            if len(run) == 1:
                continue
            now = _one(t, run, d, current)
            key = t if len(runs) == 1 else now
            made[max((x.tensor for x in run), key=lambda x: place[x])] = key, now
            inside |= {x.tensor for x in run}
            runs[n] = [Phase(now, run[0].begin, run[0].step)]
        if len(runs) == 1 and len(some) > 1:
            del joined[t]
        else:
            joined[t] = tuple(x for run in runs for x in run)
    out: dict[Tensor, Tensor] = {}
    for t, now in current.items():
        if t in made:
            key, one = made[t]
            out[key] = one
        if t not in inside:
            out[t] = now
    return out


def uncast(current: Mapping[Tensor, Tensor], stay: Collection[Tensor]) -> dict[Tensor, Tensor]:
    """Return the definitions with casts from fp16 or bf16 to float32 inlined into their readers.
    materialized: the tensors that must be in memory."""
    casts = {}
    for t, now in current.items():
        match now.body:
            case Apply("cast", (Load(_, _, kind),), dtype) if dtype == F32 and t not in stay:
                if kind in (F16, BF16):
                    casts[t] = now
    if not casts:
        return dict(current)
    put = Inlining(casts)
    return {
        t: Tensor(now.name, now.dtype, now.shape, now.axes, put.expr(now.body))
        for t, now in current.items()
        if t not in casts and now.body is not None
    }


def _along(t: Tensor, some: Sequence[Phase]) -> int | None:
    """Return the dimension along which the parts follow each other and cover `t`; None where they
    do not."""
    along = [d for d in range(t.rank) if len({x.begin[d] for x in some}) > 1]
    if len(along) != 1 or any(step != 1 for x in some for step in x.step):
        return None
    (d,) = along
    end = 0
    for x in some:
        if x.begin[d] != end:
            return None
        end += _size(x, d)
    return d if end == t.shape[d] else None


def _runs(
    some: Sequence[Phase], d: int, current: Mapping[Tensor, Tensor], read: Collection[Tensor]
) -> list[list[Phase]]:
    """Group neighbouring parts that can be one kernel; each other part is a group of its own."""
    out: list[list[Phase]] = []
    room = -1
    for x in some:
        body = current[x.tensor].body if x.tensor in current else None
        length = LONGEST + 1 if body is None else sum(isinstance(e, Apply) for e in parts(body))
        simple = body is not None and not reductions(body) and x.tensor not in read
        simple = simple and length <= LONGEST
        if simple and room >= length and len(out[-1]) < MOST:
            out[-1].append(x)
            room -= length
        else:
            out.append([x])
            room = LONGEST - length if simple else -1
    return out


def _one(t: Tensor, run: Sequence[Phase], d: int, current: Mapping[Tensor, Tensor]) -> Tensor:
    shape = list(run[0].tensor.shape)
    shape[d] = sum(_size(x, d) for x in run)
    axes = tuple(Axis(f"i{n}", size) for n, size in enumerate(shape))
    body: Expr | None = None
    for x in reversed(run):
        now = current[x.tensor]
        assert now.body is not None
        begin = x.begin[d] - run[0].begin[d]
        at = {a: i - begin if n == d else i
              for n, (a, i) in enumerate(zip(now.axes, axes, strict=True))}  # fmt: skip
        own = placed(now.body, at)
        end = begin + _size(x, d)
        body = own if body is None else select(compare("lt", axes[d], end), own, body)
    return Tensor(t.name, t.dtype, tuple(shape), axes, body)


def _size(x: Phase, d: int) -> int:
    n = x.tensor.shape[d]
    assert isinstance(n, int)
    return n
