"""Which tensors are computed within those that read them, and are never in memory.

    movement     what only moves elements goes into all that read it
    elementwise  into its one reader, if that reads each element once
    sums         into what is elementwise after them, if that has no sum of its own

What is left is a kernel each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from superopt.plan.rows import once
from superopt.te import index as ix
from superopt.te.affine import affine
from superopt.te.expr import Tensor
from superopt.te.inline import Inlining, placed
from superopt.te.node import Apply, Axis, Const, Expr, Index, Load, Reduce
from superopt.te.walk import axes_of, loads, reductions, slides
from superopt.te.walk import parts as parts_of

SIMPLE = ("add", "sub", "mul", "neg", "abs", "max", "min", "select", "cast", "lt", "le", "eq")
DEAR = frozenset((
    "exp", "log", "erf", "tanh", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "asinh", "acosh", "atanh", "pow", "sigmoid",
))  # fmt: skip
LONGEST = 150  # functions in an expression
FOLDED = 12  # quotients and rests in its indices
_FOLDS = ("floordiv", "mod")
WIDER = 4  # elements of a reader for each one that it reads


Turning = Callable[[Mapping[Tensor, Tensor]], tuple[dict[Tensor, Tensor], set[Tensor]]]


@dataclass(frozen=True, slots=True)
class Site:
    """Where a tensor is read: by which, at which index; `summed`: within a sum of that."""

    reader: Tensor
    index: tuple[Expr, ...]
    summed: bool


def inlined(
    outputs: Sequence[Tensor],
    kept: Collection[Tensor] = (),
    parts: Mapping[Tensor, Sequence[Tensor]] | None = None,
    turning: Turning | None = None,
) -> dict[Tensor, Tensor]:
    """Each tensor that stays, as given, and as it is computed then; those it reads come before it.

    `outputs` and `kept` stay. parts: of tensors without an expression, what is written into them.
    turning: gives what is computed with copies of some operands, and these.
    """
    written = parts or {}
    current = {t: t for t in in_order(outputs, written)}
    stay = {*outputs, *kept, *(t for some in written.values() for t in some)}
    stay |= _large(current)
    stay |= _bordered(current) if turning is not None else set()
    dear = turning is not None
    current = once(settled(current, stay, (), dear))
    current, turned = turning(current) if turning is not None else (current, set())
    return settled(current, stay | turned, turned, dear)


def _large(current: Mapping[Tensor, Tensor]) -> set[Tensor]:
    """What stays, so that no expression becomes long or deep: what is read twice by each of its
    readers doubles with each of these, and so do indices of what is folded again and again. A
    sum ends an expression."""
    out: set[Tensor] = set()
    length: dict[Tensor, int] = {}
    folds: dict[Tensor, int] = {}
    for t, now in current.items():
        assert now.body is not None
        length[t] = _length(now.body, length)
        folds[t] = sum(isinstance(e, Apply) and e.fn in _FOLDS for e in parts_of(now.body))
        folds[t] += max((folds.get(x.tensor, 0) for x in loads(now.body)), default=0)
        if length[t] > LONGEST or folds[t] > FOLDED:
            out.add(t)
        if t in out or sums(now.body):
            length[t], folds[t] = 1, 0
    return out


def _bordered(current: Mapping[Tensor, Tensor]) -> set[Tensor]:
    """Parts of pictures over which windows slide beyond the edges: around a copy there are zeros,
    within the picture that they are of each place had to be asked for."""
    out: set[Tensor] = set()
    for t, now in current.items():
        for site, read in _sites(t, now.body) if now.body is not None and windows(now) else ():
            cut = current.get(read)
            if cut is None or not isinstance(cut.body, Load) or not evenly(cut.body):
                continue
            ends = [(*ix.bounds(i), n) for i, n in zip(site.index, _sizes(read), strict=True)]
            inside = all(
                low is not None and low >= 0 and h is not None and h < n for low, h, n in ends
            )
            if not inside and prod(_sizes(read)) < prod(_sizes(cut.body.tensor)):
                out.add(read)
    return out


def _length(e: Expr, length: Mapping[Tensor, int]) -> int:
    match e:
        case Apply(_, args):
            return 1 + sum(_length(a, length) for a in args)
        case Reduce(_, _, body):
            return 1 + _length(body, length)
        case Load(t, _):
            return length.get(t, 1)
    return 1


def settled(
    current: dict[Tensor, Tensor],
    stay: Collection[Tensor],
    turned: Collection[Tensor] = (),
    dear: bool = False,
) -> dict[Tensor, Tensor]:
    """With what should be so computed where it is read. turned: what has another order than what it
    reads, in which no sum is fast. dear: functions take longer than it takes to keep what they
    give: on a processor, where memory is near."""
    while chosen := _chosen(current, stay, turned, dear):
        current = _applied(current, chosen)
    return current


def in_order(outputs: Sequence[Tensor], parts: Mapping[Tensor, Sequence[Tensor]]) -> list[Tensor]:
    """The tensors that are computed, each behind those that it reads, and over which it is
    written."""
    done: dict[Tensor, None] = {}
    stack = [(o, False) for o in reversed(outputs)]
    while stack:
        t, over = stack.pop()
        if over:
            done[t] = None
            continue
        if t in done:
            continue
        for x in reversed(parts.get(t, ())):
            stack.append((x, False))
        if t.body is not None:
            stack.append((t, True))
            read = dict.fromkeys(x.tensor for x in loads(t.body))
            stack += [(x, False) for x in reversed(read) if x not in done]
    return list(done)


def _chosen(
    current: dict[Tensor, Tensor], kept: Collection[Tensor], turned: Collection[Tensor], dear: bool
) -> set[Tensor]:
    sites: dict[Tensor, set[Site]] = {t: set() for t in current}
    for t, now in current.items():
        assert now.body is not None
        for s, read in _sites(t, now.body):
            if read in sites:
                sites[read].add(s)
    summing = {t for t, now in current.items() if now.body is not None and sums(now.body)}
    taken: set[Tensor] = set()  # readers into which a sum goes
    chosen: set[Tensor] = set()
    going: set[Tensor] = set()  # these, and what waits for some of them
    for t in reversed(current):
        now = current[t]
        if t in kept or not sites[t] or now.body is None:
            continue
        if moves(now.body):
            several = len({*loads(now.body)}) > 1 or _chosen_by(now.body)
            even = evenly(now.body) and ordered(now)
            if (several or not even) and any(s.reader in going for s in sites[t]):
                ends = [(current[s.reader], s) for s in _ends(t, sites, going)]
                looked = any(_looked_for(*e) for e in ends)
                if (looked and not even) or (several and any(_multiplied(*e) for e in ends)):
                    going.add(t)  # until its readers have gone into theirs
                    continue
            if several and any(_multiplied(current[s.reader], s) for s in sites[t]):
                continue  # from two places, or one or none, which no product of matrices reads
            slid = [s for s in sites[t] if s.summed and windows(current[s.reader])]
            if not slid or (even and not any(_sliding(now, current[s.reader], s) for s in slid)):
                chosen.add(t)
                going.add(t)
            continue
        if len(sites[t]) != 1:
            continue
        (site,) = sites[t]
        if site.reader in going:
            continue  # it goes into another first, which may read it many times
        if site.summed and not _once(current[site.reader], site, t):
            continue
        costly = _gate(now, current) or (dear and not site.summed and _functions(now.body))
        if costly and WIDER * prod(_sizes(t)) <= prod(_sizes(site.reader)):
            continue
        if t in summing:
            same = prod(_sizes(t)) == prod(_sizes(site.reader)) and all(map(affine, site.index))
            busy = site.reader in summing or site.reader in taken or site.reader in turned
            if site.summed or busy or not same or _reshaped(now, site.reader):
                continue
            taken.add(site.reader)
        chosen.add(t)
        going.add(t)
    return chosen


def _reshaped(now: Tensor, reader: Tensor) -> bool:
    """Do windows of more than an element slide over a picture, of which the reader has fewer
    dimensions, or more? What is computed there would be no picture."""
    return now.rank != reader.rank and _slid(now)


def _gate(now: Tensor, current: Mapping[Tensor, Tensor]) -> bool:
    """Is it a costly function of what a product gives, as squeeze and excite have it? It is an end
    of that product then, and not computed anew for each element that is scaled by it."""
    assert now.body is not None
    before = [current[x.tensor] for x in loads(now.body) if x.tensor in current]
    products = [r for x in before for r in reductions(x.body) if _products(r.body)]
    return bool(products) and not _simple(now.body)


def _functions(e: Expr) -> bool:
    """Is it computed from others by more than a few instructions for each element?"""
    return any(isinstance(x, Apply) and x.fn in DEAR for x in parts_of(e))


def _simple(e: Expr) -> bool:
    match e:
        case Apply(fn, args):
            return fn in SIMPLE and all(map(_simple, args))
        case Reduce(_, _, body):
            return _simple(body)
    return True


def _once(reader: Tensor, site: Site, t: Tensor) -> bool:
    """Is each element of `t` read once in the sums of its reader?"""
    axes = set(reader.axes)
    for r in reductions(reader.body):
        axes |= set(r.axes)
    if any(_products(r.body) for r in reductions(reader.body)):
        return False
    return prod(a.extent for a in axes if isinstance(a.extent, int)) <= prod(_sizes(t))


def _sliding(now: Tensor, reader: Tensor, site: Site) -> bool:
    """Would windows slide over an operand over which none do, if this went into its reader? As over
    a kernel that is computed flat: which of both is the picture could not be told then."""
    over = [a for r in reductions(reader.body) for a in r.axes if a.extent != 1]
    env = dict(zip(now.axes, site.index, strict=True))
    read = [] if now.body is None else loads(now.body)
    before, *within = (
        Load(now, tuple(placed(i, use) for i in x), now.dtype)
        for use, x in (({}, site.index), *((env, x.index) for x in read))
    )
    return not slides(reader.axes, over, before) and any(
        slides(reader.axes, over, x) for x in within
    )


def _chosen_by(e: Expr) -> bool:
    """Do values say which element it is, as x where x > 1/2, else zero, has it?"""
    return any(isinstance(x, Apply) and x.fn == "select" and loads(x.args[0]) for x in parts_of(e))


def _multiplied(reader: Tensor, site: Site) -> bool:
    return site.summed and any(_products(r.body) for r in reductions(reader.body))


def _products(e: Expr) -> bool:
    return isinstance(e, Apply) and e.fn == "mul"


def _sizes(t: Tensor) -> list[int]:
    return [n for n in t.shape if isinstance(n, int)]


def sums(e: Expr) -> bool:
    return bool(reductions(e))


def moves(e: Expr) -> bool:
    """Is an element one of another tensor's, or a number, whatever the values are?"""
    match e:
        case Load(_, index):
            return all(_plain(i) for i in index)
        case Const():
            return True
        case Apply("select", (_, yes, no)):
            return moves(yes) and moves(no)
    return False


def windows(t: Tensor) -> bool:
    """Does a sum of it go over more than one dimension?"""
    return any(len(r.axes) > 1 for r in reductions(t.body))


def _ends(
    t: Tensor, sites: Mapping[Tensor, Collection[Site]], going: Collection[Tensor]
) -> set[Site]:
    """Where it will be read when what goes into others has done so."""
    out: set[Site] = set()
    todo, seen = [t], {t}
    while todo:
        for s in sites[todo.pop()]:
            if s.reader not in going:
                out.add(s)
            elif s.reader not in seen:
                seen.add(s.reader)
                todo.append(s.reader)
    return out


def _looked_for(reader: Tensor, site: Site) -> bool:
    """Does a sum over several dimensions look for each term? One factor for a vector of results,
    as a pixel is for all channels that a convolution of single pixels makes of it, may lie
    anywhere."""
    own = set(reader.axes) - set[Axis]().union(*map(axes_of, site.index))
    read = (x for r in reductions(reader.body) for x in loads(r.body))
    factor = not _slid(reader) and any(axes_of(i) & own for x in read for i in x.index)
    return site.summed and windows(reader) and not factor


def _slid(t: Tensor) -> bool:
    """Do its windows, of more than an element, slide over what it reads?"""
    return any(
        slides(t.axes, [a for a in r.axes if a.extent != 1], x)
        for r in reductions(t.body) for x in loads(r.body)
    )  # fmt: skip


def evenly(e: Expr) -> bool:
    """Are neighbours read from places that are as far apart everywhere?"""
    return all(affine(i) is not None for x in loads(e) for i in x.index)


def ordered(t: Tensor) -> bool:
    """Does what is read have its axes in the order of those of `t`? Where channels come last, a
    picture lies as it is read only if it is copied."""
    assert t.body is not None
    for x in loads(t.body):
        some = [[t.axes.index(a) for a in axes_of(i) if a in t.axes] for i in x.index]
        found = [n for each in some for n in sorted(each)]
        if found != sorted(found):
            return False
    return True


def _plain(e: Expr) -> bool:
    match e:
        case Index():
            return False
        case Apply(_, args):
            return all(map(_plain, args))
    return True


def _sites(reader: Tensor, e: Expr, summed: bool = False) -> Iterator[tuple[Site, Tensor]]:
    seen: set[tuple[int, bool]] = set()
    stack = [(e, summed)]
    while stack:
        e, summed = stack.pop()
        if (id(e), summed) in seen:
            continue
        seen.add((id(e), summed))
        match e:
            case Load(t, index):
                yield Site(reader, index, summed), t
                stack += [(i, summed) for i in index]
            case Apply(_, args):
                stack += [(a, summed) for a in args]
            case Reduce(_, _, body):
                stack.append((body, True))
            case Index(element, bound):
                stack += [(element, summed), (bound, summed)]


def _applied(current: Mapping[Tensor, Tensor], chosen: Collection[Tensor]) -> dict[Tensor, Tensor]:
    """The tensors that are left, with the bodies of the others in them."""
    change = Inlining({t: current[t] for t in chosen})
    out = {}
    for t, now in current.items():
        if t in chosen:
            continue
        assert now.body is not None
        out[t] = Tensor(now.name, now.dtype, now.shape, now.axes, change.expr(now.body))
    return out
