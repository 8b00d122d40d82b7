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

from superopt.kernels.algorithms.contraction import element_count
from superopt.plan.rewrites.fusion.expression_costs import (
    has_expensive_function,
    is_cheap,
    large_expressions,
)
from superopt.plan.rewrites.fusion.narrow_results import narrow_results, read_narrow_images
from superopt.plan.rewrites.reductions.shared_values import share_exponentials
from superopt.te.analysis.affine import affine
from superopt.te.analysis.inline import Inliner, substitute_axes
from superopt.te.analysis.walk import (
    has_ordered_axes,
    index_axes,
    is_window_load,
    loads,
    reductions,
)
from superopt.te.analysis.walk import subexpressions as parts_of
from superopt.te.expr import index as te_index
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load, Reduce
from superopt.te.expr.symbolic_int import hint
from superopt.te.expr.tensor import Tensor

# Elements of a reader for each element that it reads, up to which costly functions are inlined:
# four Gelus of a row of 256 that 2,000 rows add took 1.2 ms inlined, and take 0.06 ms.
MAX_BROADCAST_RATIO = 4

OperandReordering = Callable[[Mapping[Tensor, Tensor]], tuple[dict[Tensor, Tensor], set[Tensor]]]


@dataclass(frozen=True, slots=True)
class Site:
    """Where a tensor is read: the reader and the index. in_reduction: inside of a reduction of the
    reader."""

    reader: Tensor
    index: tuple[Expr, ...]
    in_reduction: bool


def inline_tensors(
    outputs: Sequence[Tensor],
    materialized: Collection[Tensor] = (),
    parts: Mapping[Tensor, Sequence[Tensor]] | None = None,
    reorder_operands: OperandReordering | None = None,
) -> dict[Tensor, Tensor]:
    """Return the definition of each tensor that is stored, producers first.

    `outputs` and `materialized` are stored. parts: for tensors without an expression, what is
    written into them. reorder_operands: returns the definitions with copies of some operands, and
    the copies.
    """
    written = parts or {}
    current = {t: t for t in topological_order(outputs, written)}
    stay = {*outputs, *materialized, *(t for some in written.values() for t in some)}
    dear = reorder_operands is not None
    stay |= large_expressions(current) | narrow_results(current, dear)
    stay |= _padded_slices(current) if dear else set()
    current = share_exponentials(inline_to_fixpoint(current, stay, (), dear))
    current, turned = (
        reorder_operands(current) if reorder_operands is not None else (current, set())
    )
    return read_narrow_images(inline_to_fixpoint(current, stay | turned, turned, dear), stay)


def _padded_slices(current: Mapping[Tensor, Tensor]) -> set[Tensor]:
    """Return slices of images over which windows slide beyond the edge: a copy has a border of
    zeros, while reading the image would need a test for each element."""
    out: set[Tensor] = set()
    for t, now in current.items():
        for site, read in (
            _read_sites(t, now.body) if now.body is not None and has_window_reduction(now) else ()
        ):
            cut = current.get(read)
            if cut is None or not isinstance(cut.body, Load) or not has_affine_loads(cut.body):
                continue
            ends = [
                (*te_index.bounds(i), n)
                for i, n in zip(site.index, map(hint, read.sizes), strict=True)
            ]
            inside = all(
                low is not None and low >= 0 and h is not None and h < n for low, h, n in ends
            )
            if not inside and element_count(read) < element_count(cut.body.tensor):
                out.add(read)
    return out


def inline_to_fixpoint(
    current: dict[Tensor, Tensor],
    materialized: Collection[Tensor],
    reordered: Collection[Tensor] = (),
    costly_functions: bool = False,
) -> dict[Tensor, Tensor]:
    """Return the definitions after inlining to a fixpoint. reordered: tensors with another axis
    order than their operands, in which a reduction is slow. costly_functions: recomputing functions
    costs more than storing their results: on a CPU, where memory is near."""
    while chosen := _choose_inlined(current, materialized, reordered, costly_functions):
        current = _inline_bodies(current, chosen)
    return current


def topological_order(
    outputs: Sequence[Tensor], parts: Mapping[Tensor, Sequence[Tensor]]
) -> list[Tensor]:
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


def _choose_inlined(
    current: dict[Tensor, Tensor],
    materialized: Collection[Tensor],
    reordered: Collection[Tensor],
    costly_functions: bool,
) -> set[Tensor]:
    sites: dict[Tensor, set[Site]] = {t: set() for t in current}
    for t, now in current.items():
        assert now.body is not None
        for s, read in _read_sites(t, now.body):
            if read in sites:
                sites[read].add(s)
    summing = {t for t, now in current.items() if now.body is not None and has_reduction(now.body)}
    taken: set[Tensor] = set()  # readers into which a reduction is inlined
    chosen: set[Tensor] = set()
    going: set[Tensor] = set()  # inlined, or waiting for readers that are
    for t in reversed(current):
        now = current[t]
        if t in materialized or not sites[t] or now.body is None:
            continue
        if is_data_movement(now.body):
            several = len({*loads(now.body)}) > 1 or _has_data_dependent_select(now.body)
            even = has_affine_loads(now.body) and has_ordered_axes(now)
            if (several or not even) and any(s.reader in going for s in sites[t]):
                ends = [(current[s.reader], s) for s in _final_sites(t, sites, going)]
                looked = any(_has_irregular_reads(*e) for e in ends)
                if (looked and not even) or (
                    several and any(_is_product_operand(*e) for e in ends)
                ):
                    going.add(t)  # until its readers are inlined
                    continue
            if several and any(_is_product_operand(current[s.reader], s) for s in sites[t]):
                continue  # operands of a matrix product must not select between sources
            slid = [
                s for s in sites[t] if s.in_reduction and has_window_reduction(current[s.reader])
            ]
            if not slid or (
                even and not any(_creates_window(now, current[s.reader], s) for s in slid)
            ):
                chosen.add(t)
                going.add(t)
            continue
        if len(sites[t]) != 1:
            continue
        (site,) = sites[t]
        if site.reader in going:
            continue  # it is inlined into another tensor first, which may read it many times
        if site.in_reduction and not _reads_each_once(current[site.reader], site, t):
            continue
        costly = _is_costly_epilogue(now, current) or (
            costly_functions and not site.in_reduction and has_expensive_function(now.body)
        )
        if costly and MAX_BROADCAST_RATIO * element_count(t) <= element_count(site.reader):
            continue
        if t in summing:
            same = element_count(t) == element_count(site.reader) and all(map(affine, site.index))
            busy = site.reader in summing or site.reader in taken or site.reader in reordered
            if site.in_reduction or busy or not same or _changes_image_rank(now, site.reader):
                continue
            taken.add(site.reader)
        chosen.add(t)
        going.add(t)
    return chosen


def _changes_image_rank(definition: Tensor, reader: Tensor) -> bool:
    """True if windows of more than one element slide over an image and the reader has another rank:
    the result would not be an image."""
    return definition.rank != reader.rank and _has_sliding_window(definition)


def _is_costly_epilogue(definition: Tensor, current: Mapping[Tensor, Tensor]) -> bool:
    """True for a costly function of a product's result, as in squeeze and excitation. It is an
    epilogue of that product and is not recomputed for each element that it scales."""
    assert definition.body is not None
    before = [current[x.tensor] for x in loads(definition.body) if x.tensor in current]
    products = [r for x in before for r in reductions(x.body) if _is_product(r.body)]
    return bool(products) and not is_cheap(definition.body)


def _reads_each_once(reader: Tensor, site: Site, t: Tensor) -> bool:
    """True if the reductions of the reader read each element of `t` once."""
    axes = set(reader.axes)
    for r in reductions(reader.body):
        axes |= set(r.axes)
    if any(_is_product(r.body) for r in reductions(reader.body)):
        return False
    return prod(hint(a.size) for a in axes) <= element_count(t)


def _creates_window(definition: Tensor, reader: Tensor, site: Site) -> bool:
    """True if inlining would make windows slide over an operand over which none do, such as a
    flattened kernel: the two operands could then not be told apart."""
    over = [a for r in reductions(reader.body) for a in r.axes if a.extent != 1]
    env = dict(zip(definition.axes, site.index, strict=True))
    read = [] if definition.body is None else loads(definition.body)
    before, *within = (
        Load(definition, tuple(substitute_axes(i, use) for i in x), definition.dtype)
        for use, x in (({}, site.index), *((env, x.index) for x in read))
    )
    return not is_window_load(reader.axes, over, before) and any(
        is_window_load(reader.axes, over, x) for x in within
    )


def _has_data_dependent_select(e: Expr) -> bool:
    """True if values decide which element is read, as in x where x > 1/2, else zero."""
    return any(isinstance(x, Apply) and x.fn == "select" and loads(x.args[0]) for x in parts_of(e))


def _is_product_operand(reader: Tensor, site: Site) -> bool:
    return site.in_reduction and any(_is_product(r.body) for r in reductions(reader.body))


def _is_product(e: Expr) -> bool:
    return isinstance(e, Apply) and e.fn == "mul"


def has_reduction(e: Expr) -> bool:
    return bool(reductions(e))


def is_data_movement(e: Expr) -> bool:
    """True if each element is an element of another tensor or a constant, independent of values."""
    match e:
        case Load(_, index):
            return all(_is_static_index(i) for i in index)
        case Const():
            return True
        case Apply("select", (_, yes, no)):
            return is_data_movement(yes) and is_data_movement(no)
    return False


def has_window_reduction(t: Tensor) -> bool:
    """True if it has a reduction over more than one axis."""
    return any(len(r.axes) > 1 for r in reductions(t.body))


def _final_sites(
    t: Tensor, sites: Mapping[Tensor, Collection[Site]], inlined: Collection[Tensor]
) -> set[Site]:
    """Return the sites that remain when all tensors in `inlined` are inlined."""
    out: set[Site] = set()
    todo, seen = [t], {t}
    while todo:
        for s in sites[todo.pop()]:
            if s.reader not in inlined:
                out.add(s)
            elif s.reader not in seen:
                seen.add(s.reader)
                todo.append(s.reader)
    return out


def _has_irregular_reads(reader: Tensor, site: Site) -> bool:
    """True if a reduction over several axes reads terms at irregular addresses. A factor that is
    shared by a vector of results, such as a pixel of a 1x1 convolution, may be anywhere."""
    own = set(reader.axes) - set[Axis]().union(*map(index_axes, site.index))
    read = (x for r in reductions(reader.body) for x in loads(r.body))
    factor = not _has_sliding_window(reader) and any(
        index_axes(i) & own for x in read for i in x.index
    )
    return site.in_reduction and has_window_reduction(reader) and not factor


def _has_sliding_window(t: Tensor) -> bool:
    """True if windows of more than one element slide over what it reads."""
    return any(
        is_window_load(t.axes, [a for a in r.axes if a.extent != 1], x)
        for r in reductions(t.body) for x in loads(r.body)
    )  # fmt: skip


def has_affine_loads(e: Expr) -> bool:
    """True if neighbours are read at a constant stride."""
    return all(affine(i) is not None for x in loads(e) for i in x.index)


def _is_static_index(e: Expr) -> bool:
    match e:
        case Index():
            return False
        case Apply(_, args):
            return all(map(_is_static_index, args))
    return True


def _read_sites(
    reader: Tensor, e: Expr, in_reduction: bool = False
) -> Iterator[tuple[Site, Tensor]]:
    seen: set[tuple[int, bool]] = set()
    stack = [(e, in_reduction)]
    while stack:
        e, in_reduction = stack.pop()
        if (id(e), in_reduction) in seen:
            continue
        seen.add((id(e), in_reduction))
        match e:
            case Load(t, index):
                yield Site(reader, index, in_reduction), t
                stack += [(i, in_reduction) for i in index]
            case Apply(_, args):
                stack += [(a, in_reduction) for a in args]
            case Reduce(_, _, body):
                stack.append((body, True))
            case Index(element, bound):
                stack += [(element, in_reduction), (bound, in_reduction)]


def _inline_bodies(
    current: Mapping[Tensor, Tensor], chosen: Collection[Tensor]
) -> dict[Tensor, Tensor]:
    """Return the remaining tensors with the others inlined."""
    change = Inliner({t: current[t] for t in chosen})
    out = {}
    for t, now in current.items():
        if t in chosen:
            continue
        assert now.body is not None
        out[t] = Tensor(now.name, now.dtype, now.shape, now.axes, change.expr(now.body))
    return out
