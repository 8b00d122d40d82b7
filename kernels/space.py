"""The options of a kernel on the CPU by the kind of computation, and the one estimated to be the
fastest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from superopt.kernels import attention as at
from superopt.kernels import contraction as co
from superopt.kernels import flat as fl
from superopt.kernels import forms as fo
from superopt.kernels import packing, rows, walk
from superopt.kernels import reducing as re
from superopt.kernels import strassen as st
from superopt.kernels import winograd as wi
from superopt.kernels.default import LANES, default, turning
from superopt.kernels.few import Few, few
from superopt.kernels.few import scheduled as in_lanes
from superopt.kernels.groups import Groups, groups
from superopt.kernels.layout import lying
from superopt.kernels.option import Option
from superopt.kernels.problem import Choice, Problem
from superopt.kernels.transform import reduction, unscheduled

TURNED = 16  # elements of a side of a transposed tile


def choice(p: Problem, wanted: Option | None = None) -> Choice:
    """Return the choice of the requested option, if the problem has it; else of the best one."""
    first = best(p)
    if wanted is not None and wanted != first and wanted in options(p):
        return chosen(p, wanted)
    return chosen(p, first)


def best(p: Problem) -> Option:
    """Return the option that is estimated to be the fastest."""
    fused = _attention(p)
    if fused is not None:
        return _blocked(*next(at.options(fused)))
    if walk.walks(p.tensor):
        return Option.of("walk", trees=walk.TREES)
    if p.lead:
        return Option.of("rows", lanes=_of_rows(p))
    found = _product(p)
    if found is not None:
        c, frame = found
        directly, time = _directly(p, c, frame)
        if (tiled := fo.paying(p, c, time)) is not None:
            return fo.winograd(tiled[1])
        square = fo.square(p, c)
        if square is not None:
            rows = square.count * square.high
            times = rows // (1 if frame.m is None else frame.m.size)
            row = times * min(frame.tiles())[0]
            starts = st.LATE if _deep(p, c)[0] in co.SHORT else st.STARTS
            plan = st.best(square, p.lanes, p.levels, row, p.registers, starts, frame.halves)
            if plan is not None:
                return fo.parts(plan)
        if flowing := list(_streams(p, c)):
            return flowing[0]
        if (narrow := _few(p)) is not None:
            return Option.of("few", rows=narrow.rows[0])
        return directly
    each = _groups(p)
    some = re.options(p.tensor, p.layouts, p.lanes, p.registers)
    if each is not None and not (some and _several(p, each)):
        _, rows, vectors = min(each.frame.tiles())
        return Option.of("groups", rows=rows, vectors=vectors)
    if some:
        return min(some, key=lambda x: x[0])[1]
    if turning(p.tensor, p.layouts, side(p)) is not None:
        return Option.of("turning", lanes=side(p))
    return Option.of("loops", lanes=LANES)


def side(p: Problem) -> int:
    """Return the side of a transposed tile: so many vectors must be in registers."""
    return min(p.lanes, TURNED)


def takes(p: Problem) -> float | None:
    """Return the estimated time of a contraction, direct or by Winograd, in vector FMAs; None if it
    is none."""
    found = _product(p)
    if found is None:
        return None
    _, time = _directly(p, *found)
    tiled = fo.paying(p, found[0], time)
    return time if tiled is None else tiled[0]


def _of_rows(p: Problem) -> int:
    """Return the elements of rows at a time: with few registers all of a short row, else as few as
    hide latency (18 softmaxes and norms of 33 to 30,522 elements)."""
    if p.registers != co.FEWER:
        return LANES
    return 2 * LANES if p.tensor.axes[-1].size <= 2 * LANES else LANES // 4


def _directly(p: Problem, c: co.Contraction, frame: co.Frame) -> tuple[Option, float]:
    """Return the option of register tiles, and its estimated time in vector FMAs."""
    deep = _deep(p, c)[0]
    short = deep in co.SHORT
    how, of = "direct", frame
    if (one := _flat(p, c, frame)) and fl.pays(one, frame, short):
        how, of = "flat", one.frame
    elif packing.possible(p, c, frame) and packing.pays(p, c, frame):
        how = "packing"
    time, rows_, vectors = min(of.tiles(short))
    times = prod(a.size for a in c.of_a) // max(1 if of.m is None else of.m.size, 1)
    option = Option.of(how, rows=rows_, vectors=vectors, deep=deep)
    return option, time * times * of.terms


def _deep(p: Problem, c: co.Contraction) -> list[int]:
    """Return K block sizes, best first."""
    return co.blocks(p.tensor, c, p.layouts, p.registers)


def options(p: Problem) -> Iterator[Option]:
    """Yield all options, the estimated fastest first."""
    first = best(p)
    yield first
    yield from (o for o in dict.fromkeys(_options(p)) if o != first)


def _options(p: Problem) -> Iterator[Option]:
    fused = _attention(p)
    if fused is not None:
        yield from (_blocked(*some) for some in at.options(fused))
        return
    if walk.walks(p.tensor):
        yield from (Option.of("walk", trees=n) for n in (8, 16, 32))
        return
    if p.lead:
        yield from (Option.of("rows", lanes=n) for n in (LANES // 4, LANES // 2, LANES, 2 * LANES))
        return
    found = _product(p)
    if found is not None:
        c, frame = found
        yield from _streams(p, c)
        narrow = _few(p)
        yield from () if narrow is None else (Option.of("few", rows=n) for n in narrow.rows)
        for _, rows, vectors in sorted(frame.tiles()):
            for deep in _deep(p, c):
                knobs = {"rows": rows, "vectors": vectors, "deep": deep}
                yield Option.of("direct", **knobs)
                if packing.possible(p, c, frame):
                    yield Option.of("packing", **knobs)
        if one := _flat(p, c, frame):
            for _, rows_, vectors in sorted(one.frame.tiles()):
                for deep in _deep(p, c):
                    yield Option.of("flat", rows=rows_, vectors=vectors, deep=deep)
        picture = fo.pictured(p, c)
        if picture is not None:
            for m in picture.fitting():
                yield from (fo.winograd(x) for _, x in wi.plans(picture, m, p.lanes, p.registers))
        square = fo.square(p, c)
        if square is not None:
            yield from map(fo.parts, st.plans(square, p.lanes, p.levels, p.registers, frame.halves))
    each = _groups(p)
    if each is not None:
        for _, rows, vectors in sorted(each.frame.tiles()):
            yield Option.of("groups", rows=rows, vectors=vectors)
    for _, option in sorted(
        re.options(p.tensor, p.layouts, p.lanes, p.registers), key=lambda x: x[0]
    ):
        yield option
    if turning(p.tensor, p.layouts, side(p)) is not None:
        yield Option.of("turning", lanes=side(p))
    if found is None:
        yield from (Option.of("loops", lanes=n) for n in (LANES // 4, LANES // 2, LANES, 2 * LANES))


def chosen(p: Problem, option: Option) -> Choice:
    """Return the choice of an option. Raises ValueError or KeyError if the problem does not have
    it."""
    match option.algorithm:
        case "direct" | "packing":
            c, frame = _given(p, option)
            tile = option["rows"], option["vectors"], option["deep"]
            near = option.algorithm == "packing"
            block = packing.block(p.tensor, frame, *tile[:2]) if near else 0
            how = co.scheduled(p.tensor, c, p.layouts, frame, *tile, block, near)
            packed = (c.b.tensor,) if c.b.tensor in p.constants else ()
            return Choice(option, p.tensor, {p.tensor: how}, packed)
        case "flat":
            c, frame = _given(p, option)
            if one := _flat(p, c, frame):
                rows_, wide, deep = option["rows"], option["vectors"], option["deep"]
                how = fl.scheduled(one, p.layouts, rows_, wide, deep)
                packed = (one.c.b.tensor,) if one.c.b.tensor in p.constants else ()
                return Choice(option, one.root, {one.root: how}, packed, one.lies)
        case "streamed":
            c, frame = _given(p, option)
            how = co.streamed(p.tensor, c, option["columns"], option["terms"], frame.lanes)
            return Choice(option, p.tensor, {p.tensor: how})
        case "few":
            if (narrow := _few(p)) is not None:
                how_ = in_lanes(narrow, option["rows"])
                return Choice(option, narrow.root, how_, (narrow.b,), narrow.lies)
        case "groups":
            return _in_groups(p, option)
        case "winograd":
            return fo.in_tiles(p, _given(p, option)[0], option)
        case "strassen":
            return fo.in_parts(p, _given(p, option)[0], option)
        case "along" | "across":
            how, order = re.scheduled(p.tensor, p.layouts, p.constants, option)
            return Choice(option, p.tensor, {p.tensor: how}, order)
        case "attention":
            fused = _attention(p)
            if fused is not None:
                knobs = tuple(option[k] for k in _BLOCKED)
                held = [x for x in at.operands(fused) if x in p.constants]
                lanes = _of_rows(replace(p, tensor=fused.row))
                return Choice(option, p.tensor, at.scheduled(fused, knobs, lanes), tuple(held))
        case "rows" if p.lead:
            laid = rows.scheduled(p.tensor, p.lead, option["lanes"])
            return Choice(option, p.tensor, laid, settles=True)
        case "walk" if walk.walks(p.tensor):
            return Choice(option, p.tensor, walk.walk_schedules(p.tensor, option["trees"]))
        case "turning":
            turned = turning(p.tensor, p.layouts, option["lanes"])
            if turned is not None:
                return Choice(option, p.tensor, {p.tensor: turned})
        case "loops":
            if option["lanes"] == LANES:
                return Choice(option, p.tensor)
            layout = lying(p.layouts.get(p.tensor), p.tensor.rank)
            how = default(unscheduled(p.tensor), layout, option["lanes"])
            return Choice(option, p.tensor, {p.tensor: how})
    raise ValueError(f"{option} is not an option of {p.tensor.name}")


def _product(p: Problem) -> tuple[co.Contraction, co.Frame] | None:
    for lanes in dict.fromkeys((p.lanes, p.parts)):  # groups may have a part of a vector each
        found = co.contraction(p.tensor, p.constants, lanes)
        if found is None:
            return None
        alone = prod(a.size for a in found.of_b) == 1 and _few(p) is None
        if found.of_b and not alone and not _dotted(p, found):
            # an unpacked matrix: vectors of different rows are in different pages, and a wide tile
            # reads fewer of these per FMA (256 x 1024 x 1024: 9.0 ms by one vector, 5.0 by 4)
            near = found.b.tensor in p.constants or found.b.tensor in p.layouts
            halves = p.halves and lanes == p.lanes and near
            frame = co.frame(p.tensor, found, p.layouts, lanes, p.registers, halves)
            return None if frame is None else (found, frame)
    return None


def _dotted(p: Problem, c: co.Contraction) -> bool:
    """True for few rows times a column-major matrix: each column is read once, and lanes run along
    the reduction."""
    rows = prod(a.size for a in c.of_a)
    if rows >= co.ROWS or c.b.tensor in p.constants or c.b.tensor in p.layouts:
        return False
    found = reduction(p.tensor)
    return found is not None and co.strides(c.b, found.axes[-1]) == 1 != co.strides(c.b, c.of_b[-1])


def _streams(p: Problem, c: co.Contraction) -> Iterator[Option]:
    """Yield options for one row times a row-major matrix that is not constant, best first."""
    rows, n, found = prod(a.size for a in c.of_a), c.of_b[-1], reduction(p.tensor)
    if rows > 1 or found is None or c.b.tensor in p.constants or c.b.tensor in p.layouts:
        return
    if p.tensor.axes[-1] != n or co.strides(c.b, n) != 1 or n.size < 2 * p.lanes:
        return
    for columns in (2048, 4096, 1024):
        terms_ = [n for n in (8, 4, 7, 6, 5, 3, 11, 13, 2, 1) if found.axes[-1].size % n == 0]
        for terms in terms_[:2]:
            yield Option.of("streamed", columns=columns, terms=terms)


def _given(p: Problem, option: Option) -> tuple[co.Contraction, co.Frame]:
    found = _product(p)
    if found is None:
        raise ValueError(f"{option}: {p.tensor.name} is not a contraction")
    return found


def _flat(p: Problem, c: co.Contraction, by_rows: co.Frame) -> fl.Flat | None:
    return fl.flat(p.tensor, c, by_rows, p.constants, p.layouts)


def _few(p: Problem) -> Few | None:
    return few(p.tensor, p.constants, p.layouts, p.lanes, p.registers)


def _groups(p: Problem) -> Groups | None:
    return groups(p.tensor, p.constants, p.layouts, p.lanes, p.registers)


def _several(p: Problem, each: Groups) -> bool:
    """True if a vector holds at least four groups. With long vectors it is faster to run along all
    of them than within each (128 channels at 56 x 56 in groups of 4: 266 us instead of 589)."""
    size = each.frame.n.size
    return p.registers != co.FEWER and p.lanes % size == 0 and p.lanes >= 4 * size


def _in_groups(p: Problem, option: Option) -> Choice:
    each = _groups(p)
    if each is None:
        raise ValueError(f"{option}: {p.tensor.name} is not a grouped product")
    knobs = option["rows"], option["vectors"], 0
    how = co.scheduled(each.root, each.c, p.layouts, each.frame, *knobs)
    packed = (each.c.b.tensor,) if each.c.b.tensor in p.constants else ()
    return Choice(option, each.root, {each.root: how}, packed, each.lies)


_BLOCKED = ("block", "rows", "vectors", "before", "wide")


def _blocked(*knobs: int) -> Option:
    return Option("attention", tuple(zip(_BLOCKED, knobs, strict=True)))


def _attention(p: Problem) -> at.Attention | None:
    given = p.tensor, p.constants, p.layouts, p.lanes, p.registers
    return at.attention(*given) if p.lead else None
