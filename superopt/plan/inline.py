"""Decide which tensors are inlined into their readers and never stored in memory.

movement     inlined into all readers
elementwise  inlined into its only reader, if that reads each element once
reduction    inlined into an elementwise epilogue without a reduction of its own

Each remaining tensor is a kernel.
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
FOLDED = 12  # quotients and remainders in its indices
_FOLDS = ("floordiv", "mod")
WIDER = 4  # elements of a reader for each element that it reads


Turning = Callable[[Mapping[Tensor, Tensor]], tuple[dict[Tensor, Tensor], set[Tensor]]]


@dataclass(frozen=True, slots=True)
class Site:
    """Where a tensor is read: the reader and the index. in_reduction: inside of a reduction of the
    reader."""

    reader: Tensor
    index: tuple[Expr, ...]
    summed: bool


def inlined(
    outputs: Sequence[Tensor],
    kept: Collection[Tensor] = (),
    parts: Mapping[Tensor, Sequence[Tensor]] | None = None,
    turning: Turning | None = None,
) -> dict[Tensor, Tensor]:
    """Return the definition of each tensor that is stored, producers first.

    `outputs` and `materialized` are stored. parts: for tensors without an expression, what is
    written into them. reorder_operands: returns the definitions with copies of some operands, and
    the copies.
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
    """Return tensors that are stored so that no expression becomes long or deep. An expression that
    reads an operand twice doubles with each inlining, and so do the indices of repeated reshapes. A
    reduction ends an expression."""
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
    """Return slices of images over which windows slide beyond the edge: a copy has a border of
    zeros, while reading the image would need a test for each element."""
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
    """Return the definitions after inlining to a fixpoint. reordered: tensors with another axis
    order than their operands, in which a reduction is slow. costly_functions: recomputing functions
    costs more than storing their results: on a CPU, where memory is near."""
    while chosen := _chosen(current, stay, turned, dear):
        current = _applied(current, chosen)
    return current


def in_order(outputs: Sequence[Tensor], parts: Mapping[Tensor, Sequence[Tensor]]) -> list[Tensor]:
    """Return the computed tensors in topological order: after their operands and after the tensors
    that they overwrite."""
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
    taken: set[Tensor] = set()  # readers into which a reduction is inlined
    chosen: set[Tensor] = set()
    going: set[Tensor] = set()  # inlined, or waiting for readers that are
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
                    going.add(t)  # until its readers are inlined
                    continue
            if several and any(_multiplied(current[s.reader], s) for s in sites[t]):
                continue  # operands of a matrix product must not select between sources
            slid = [s for s in sites[t] if s.summed and windows(current[s.reader])]
            if not slid or (even and not any(_sliding(now, current[s.reader], s) for s in slid)):
                chosen.add(t)
                going.add(t)
            continue
        if len(sites[t]) != 1:
            continue
        (site,) = sites[t]
        if site.reader in going:
            continue  # it is inlined into another tensor first, which may read it many times
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
    """True if windows of more than one element slide over an image and the reader has another rank:
    the result would not be an image."""
    return now.rank != reader.rank and _slid(now)


def _gate(now: Tensor, current: Mapping[Tensor, Tensor]) -> bool:
    """True for a costly function of a product's result, as in squeeze and excitation. It is an
    epilogue of that product and is not recomputed for each element that it scales."""
    assert now.body is not None
    before = [current[x.tensor] for x in loads(now.body) if x.tensor in current]
    products = [r for x in before for r in reductions(x.body) if _products(r.body)]
    return bool(products) and not _simple(now.body)


def _functions(e: Expr) -> bool:
    """True if it takes more than a few instructions for each element."""
    return any(isinstance(x, Apply) and x.fn in DEAR for x in parts_of(e))


def _simple(e: Expr) -> bool:
    match e:
        case Apply(fn, args):
            return fn in SIMPLE and all(map(_simple, args))
        case Reduce(_, _, body):
            return _simple(body)
    return True


def _once(reader: Tensor, site: Site, t: Tensor) -> bool:
    """True if the reductions of the reader read each element of `t` once."""
    axes = set(reader.axes)
    for r in reductions(reader.body):
        axes |= set(r.axes)
    if any(_products(r.body) for r in reductions(reader.body)):
        return False
    return prod(a.extent for a in axes if isinstance(a.extent, int)) <= prod(_sizes(t))


def _sliding(now: Tensor, reader: Tensor, site: Site) -> bool:
    """True if inlining would make windows slide over an operand over which none do, such as a
    flattened kernel: the two operands could then not be told apart."""
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
    """True if values decide which element is read, as in x where x > 1/2, else zero."""
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
    """True if each element is an element of another tensor or a constant, independent of values."""
    match e:
        case Load(_, index):
            return all(_plain(i) for i in index)
        case Const():
            return True
        case Apply("select", (_, yes, no)):
            return moves(yes) and moves(no)
    return False


def windows(t: Tensor) -> bool:
    """True if it has a reduction over more than one axis."""
    return any(len(r.axes) > 1 for r in reductions(t.body))


def _ends(
    t: Tensor, sites: Mapping[Tensor, Collection[Site]], going: Collection[Tensor]
) -> set[Site]:
    """Return the sites that remain when all tensors in `inlined` are inlined."""
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
    """True if a reduction over several axes reads terms at irregular addresses. A factor that is
    shared by a vector of results, such as a pixel of a 1x1 convolution, may be anywhere."""
    own = set(reader.axes) - set[Axis]().union(*map(axes_of, site.index))
    read = (x for r in reductions(reader.body) for x in loads(r.body))
    factor = not _slid(reader) and any(axes_of(i) & own for x in read for i in x.index)
    return site.summed and windows(reader) and not factor


def _slid(t: Tensor) -> bool:
    """True if windows of more than one element slide over what it reads."""
    return any(
        slides(t.axes, [a for a in r.axes if a.extent != 1], x)
        for r in reductions(t.body) for x in loads(r.body)
    )  # fmt: skip


def evenly(e: Expr) -> bool:
    """True if neighbours are read at a constant stride."""
    return all(affine(i) is not None for x in loads(e) for i in x.index)


def ordered(t: Tensor) -> bool:
    """True if operands have their axes in the order of `t`. With channels last, an image has the
    layout that is read only after a copy."""
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
    """Return the remaining tensors with the others inlined."""
    change = Inlining({t: current[t] for t in chosen})
    out = {}
    for t, now in current.items():
        if t in chosen:
            continue
        assert now.body is not None
        out[t] = Tensor(now.name, now.dtype, now.shape, now.axes, change.expr(now.body))
    return out
