"""Attribute variables of a rule: how a concrete value may be written on either side.

On the left a value may get a name; on the right it may be any of a few formulas of those names that
give the concrete value where the equation was found. A trial decides which one is correct.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from superopt.ir.op import Attr
from superopt.ir.syntax import show_attr

# The geometry of these stays together in one bundle `**e`.
GEOMETRY_OPS = frozenset(("Conv", "AveragePool", "MaxPool"))
BUNDLE_NAMES = ("**e", "**h")
# A convolution with a padded image or kernel: its pads are separate from the other attributes.
PAD_NAME, EDGE_NAME = "pad", "edge"
EDGED_CONV = f"pads={EDGE_NAME}, dilations=(1, 1), **e"
ATTRIBUTE_NAMES = {
    "axis": "kji",
    "perm": "pqr",
    "split": "gh",
    "shape": "tuv",
    "axes": "mno",
    "starts": ("start", "start2"),
    "ends": ("end", "end2"),
    "steps": ("step", "step2"),
    "pads": (PAD_NAME,),
    "epsilon": ("eps", "eps2"),
    "keepdims": ("keep", "keep2"),
}
AXIS_NAME = ATTRIBUTE_NAMES["axis"][0]
JOIN_AXES = f"({AXIS_NAME},)"  # axes equal to that of a join
SLICE_BOUNDS = frozenset(("starts", "ends", "steps"))
# Boolean attributes, for which a name generalizes little: what holds for one value holds for more
# ranks than what holds for both.
BOOLEAN_ATTRIBUTES = frozenset(("keepdims",))
# Any value of these is allowed where none is given: a law with an arbitrary value is not useful.
FREE_ATTRIBUTES = frozenset(("perm", "shape", "axes"))
# The spatial entries of pads of four axes: before, then after.
SPATIAL_PADS = (2, 3, 6, 7)


@dataclass(frozen=True, slots=True)
class AttributeSlot:
    """An attribute of a side (or all attributes of an operator, with an empty key) and its concrete
    value."""

    key: str
    value: Attr


SlotTexts = Mapping[AttributeSlot, str]


@dataclass(frozen=True, slots=True)
class Join:
    """A Concat of two variables: its axis, their names and their sizes along it."""

    axis: int
    names: tuple[str, str]
    sizes: tuple[int, int]


def attribute_slots(op: str, attrs: Sequence[tuple[str, Attr]]) -> list[AttributeSlot]:
    """Return the slots of an operator's attributes."""
    if op in GEOMETRY_OPS:
        return [AttributeSlot("", tuple((k, v) for k, v in attrs))]
    return [AttributeSlot(k, v) for k, v in attrs]


def literal_text(s: AttributeSlot) -> str:
    """Return the value as text."""
    if s.key:
        return show_attr(s.value)
    return ", ".join(f"{k}={show_attr(v)}" for k, v in _attribute_pairs(s.value))


def _attribute_pairs(value: Attr) -> list[tuple[str, Attr]]:
    """Return all attributes of an operator from a bundle slot."""
    assert isinstance(value, tuple)
    out: list[tuple[str, Attr]] = []
    for pair in value:
        assert isinstance(pair, tuple)
        key, of = pair
        assert isinstance(key, str)
        out.append((key, of))
    return out


def left_forms(
    slots: Sequence[AttributeSlot], rank: int, joins: Sequence[Join] = ()
) -> Iterator[SlotTexts]:
    """Yield the forms of the left side's values, the most general first.

    rank: of the results; axes may be counted from its end. joins: Concats whose parts a slice may
    be.
    """
    counts: dict[str, int] = {}
    choices: list[list[str]] = []
    for s in slots:
        n = counts.get(s.key, 0)
        counts[s.key] = n + 1
        names: Sequence[str] = BUNDLE_NAMES if not s.key else ATTRIBUTE_NAMES.get(s.key, ())
        some = [names[n]] if n < len(names) else []
        if (
            not s.key
            and n == 0
            and "group" in dict(_attribute_pairs(s.value))
            and _has_image_pads(slots)
        ):
            some.insert(0, EDGED_CONV)
        if s.key == "axis" and isinstance(s.value, int):
            some.append(str(s.value - rank))
        if s.key == "axes":
            own = list(_axes_forms(s, slots, rank))
            if JOIN_AXES in own and any(t.key in SLICE_BOUNDS for t in slots):
                # laws of slices along other axes are separate, and take long to prove
                own.remove(JOIN_AXES)
                some.insert(0, JOIN_AXES)
            some += own
        if s.key in ("starts", "ends"):
            some += _join_bounds(s, joins)
        if not s.key and ("group", 1) in _attribute_pairs(s.value):
            some += [f"group=1, {name}" for name in some if name != EDGED_CONV]
        # a target of fixed sizes fits one tensor only
        choices.append(some if s.key == "shape" else [*some, literal_text(s)])
    # by the number of choices that are not the most general one
    every = sorted(
        product(*(range(len(c)) for c in choices)), key=lambda row: (sum(row), tuple(row))
    )
    for row in every:
        written = {s: c[n] for s, c, n in zip(slots, choices, row, strict=True)}
        used = set(written.values())
        cut = {
            text in ATTRIBUTE_NAMES[s.key] for s, text in written.items() if s.key in SLICE_BOUNDS
        }
        seams = any("size" in text for s, text in written.items() if s.key in SLICE_BOUNDS)
        if (EDGED_CONV in used and PAD_NAME not in used) or (
            JOIN_AXES in used and AXIS_NAME not in used
        ):
            continue
        if len(cut) < 2 and (JOIN_AXES in used or not seams):  # a slice has all its names or none
            yield written


def _axes_forms(s: AttributeSlot, found: Sequence[AttributeSlot], rank: int) -> Iterator[str]:
    """Yield axes equal to that of a join, or counted from the end."""
    value = _integers(s.value)
    if len(value) == 1:
        if next((t.value for t in found if t.key == "axis"), None) == value[0]:
            yield JOIN_AXES
        yield f"({value[0] - rank},)"


def _join_bounds(s: AttributeSlot, joins: Sequence[Join]) -> Iterator[str]:
    """Yield slice bounds at the boundaries of a join's parts."""
    for j in joins:
        first, second = (f"size({name}, {AXIS_NAME})" for name in j.names)
        if s.value == (j.sizes[0],):
            yield f"({first},)"
        if s.value == (sum(j.sizes),):
            yield f"({first} + {second},)"


def has_fixed_attributes(written: SlotTexts) -> bool:
    """True if an attribute that could have a name is literal. A slice that is a part of a join
    begins at 0."""
    if any(s.key in SLICE_BOUNDS and "size" in text for s, text in written.items()):
        return False
    open_ = ATTRIBUTE_NAMES.keys() - BOOLEAN_ATTRIBUTES
    return any(
        text == literal_text(s) for s, text in written.items() if s.key in open_ or not s.key
    )


def is_all_literal(written: SlotTexts) -> bool:
    """True if everything that may be literal is."""
    return not any(
        text in (*ATTRIBUTE_NAMES.get(s.key, ()), JOIN_AXES)
        or "size" in text
        or EDGE_NAME in text
        or "**" in text
        for s, text in written.items()
        if s.key != "shape"
    )


def has_arbitrary_value(right: SlotTexts, left: SlotTexts) -> bool:
    """True if the right side has an arbitrary value that does not come from the left."""
    return any(
        s.key in FREE_ATTRIBUTES and text == literal_text(s) and left.get(s) != text
        for s, text in right.items()
    )


def _has_image_pads(found: Sequence[AttributeSlot]) -> bool:
    return any(s.key == "pads" and len(_integers(s.value)) == 8 for s in found)


def name_conditions(written: SlotTexts) -> list[str]:
    """Return conditions on the names: a split has a fixed number of parts; an image is padded only
    along its spatial axes, by nonnegative amounts."""
    edges = []
    if EDGED_CONV in written.values():
        edges += [f"{PAD_NAME}[{n}] == 0" for n in (0, 1, 4, 5)] + [f"min({PAD_NAME}) >= 0"]
        edges += [f"{EDGE_NAME}[{n}] >= {PAD_NAME}[{k}]" for n, k in enumerate(SPATIAL_PADS)]
    return edges + [
        f"len({text}) == {len(s.value)}"
        for s, text in written.items()
        if s.key == "split" and isinstance(s.value, tuple) and text != literal_text(s)
    ]


def axis_conditions(written: SlotTexts) -> Iterator[list[str]]:
    """Yield conditions on named axes, the weakest first: none; axes that differ here always differ;
    axes keep the order in which they were found, and a permutation fixes the axes after a named
    one."""
    yield []
    named = [(text, s) for s, text in written.items() if text in ATTRIBUTE_NAMES.get(s.key, ())]
    some = [(text, axes) for text, s in named if (axes := _slot_axes(s))]
    pairs = [(a, b) for a, b in combinations(some, 2) if not set(a[1]) & set(b[1])]
    if pairs:
        yield [_disjoint_condition(a, b) for a, b in pairs]
    kept = [
        f"{p}[{k}:] == range({k}, len({p}))"
        for p, perm in named
        for k, s in named
        if perm.key == "perm" and s.key == "axis" and _keeps_trailing_axes(perm, s)
    ]
    ordered = [_order_condition(a, b) for a, b in pairs]
    if kept or any(ordered):
        yield [
            o or _disjoint_condition(*pair) for o, pair in zip(ordered, pairs, strict=True)
        ] + kept


NamedAxes = tuple[str, tuple[int, ...]]


def _slot_axes(s: AttributeSlot) -> tuple[int, ...]:
    """Return the axes of a slot; empty for other attributes."""
    if s.key == "axis":
        assert isinstance(s.value, int)
        return (s.value,)
    return _integers(s.value) if s.key == "axes" else ()


def _disjoint_condition(a: NamedAxes, b: NamedAxes) -> str:
    """Return the condition that two names are different axes."""
    one, two = sorted((a[0], b[0]), key=_names_several_axes)
    if not _names_several_axes(two):
        return f"{one} != {two}"
    return (
        f"{one} not in {two}"
        if not _names_several_axes(one)
        else f"all(l not in {two} for l in {one})"
    )


def _order_condition(a: NamedAxes, b: NamedAxes) -> str:
    """Return the condition that one name's axes precede another's; empty if they do not."""
    (one, first), (two, second) = sorted((a, b), key=lambda place: place[1])
    if max(first) > min(second):
        return ""
    return (
        f"{f'max({one})' if _names_several_axes(one) else one} < "
        f"{f'min({two})' if _names_several_axes(two) else two}"
    )


def _names_several_axes(name: str) -> bool:
    """True if a name stands for several axes."""
    return name in ATTRIBUTE_NAMES["axes"]


def _keeps_trailing_axes(perm: AttributeSlot, axis: AttributeSlot) -> bool:
    """True if a permutation fixes this axis and all after it."""
    order = _integers(perm.value)
    assert isinstance(axis.value, int)
    return axis.value < len(order) and all(order[i] == i for i in range(axis.value, len(order)))


def right_forms(
    slots: Sequence[AttributeSlot], left: SlotTexts, rank: int, sizes: Sequence[str] = ()
) -> Iterator[SlotTexts]:
    """Yield the forms of the right side's values, by the names of the left side. sizes: formulas
    for the sizes of a split."""
    choices = [
        list(dict.fromkeys([*(sizes if s.key == "split" else ()), *_right_formulas(s, left, rank)]))
        for s in slots
    ]
    for row in product(*choices):
        yield dict(zip(slots, row, strict=True))


def _right_formulas(s: AttributeSlot, left: SlotTexts, rank: int) -> Iterator[str]:
    named = {t: text for t, text in left.items() if text != literal_text(t) and text[0] != "-"}
    if s in named:
        yield named[s]
        return
    if not s.key and EDGED_CONV in left.values():
        yield from _edged_formulas(s, left)
    axes = [(text, t.value) for t, text in named.items() if t.key == "axis"]
    perms = [(text, t.value) for t, text in named.items() if t.key == "perm"]
    if s.key == "axis":
        yield from _axis_formulas(s, axes, perms)
        if isinstance(s.value, int):
            yield str(s.value - rank)
    if s.key == "axes":
        yield from _permuted_axes(_integers(s.value), named, perms)
    if s.key == "perm":
        for text, value in _permutation_formulas(perms):
            if value == s.value:
                yield text
    if s.key != "shape":
        yield literal_text(s)


def _axis_formulas(
    s: AttributeSlot, axes: Sequence[tuple[str, Attr]], perms: Sequence[tuple[str, Attr]]
) -> Iterator[str]:
    """Yield an axis as the image of another under a permutation, or as its neighbour."""
    for k, axis in axes:
        assert isinstance(axis, int)
        for p, perm in perms:
            order = _integers(perm)
            if axis < len(order):
                if order[axis] == s.value:
                    yield f"{p}[{k}]"
                if order.index(axis) == s.value:
                    yield f"index({p}, {k})"
        for shift in (-1, 1):
            if axis + shift == s.value:
                yield f"{k} {'+' if shift > 0 else '-'} 1"


def _permuted_axes(
    value: Sequence[int], named: Mapping[AttributeSlot, str], perms: Sequence[tuple[str, Attr]]
) -> Iterator[str]:
    """Yield axes as images of others under a permutation, or its inverse."""
    some = [
        (text, _integers(t.value)) for t, text in named.items() if text in ATTRIBUTE_NAMES["axes"]
    ]
    for (m, axes), (p, perm) in product(some, perms):
        order = _integers(perm)
        if max(axes, default=0) < len(order):
            if {order[i] for i in axes} == set(value):
                yield f"permute({p}, {m})"
            if {order.index(i) for i in axes} == set(value):
                yield f"permute(inverse({p}), {m})"


def _edged_formulas(s: AttributeSlot, left: SlotTexts) -> Iterator[str]:
    """Yield the attributes of a convolution without its operand's padding, or with it."""
    pad = next((_integers(t.value) for t, text in left.items() if text == PAD_NAME), ())
    before = next(dict(_attribute_pairs(t.value)) for t, text in left.items() if text == EDGED_CONV)
    after = dict(_attribute_pairs(s.value))
    same = {k: v for k, v in before.items() if k != "pads"} == {
        k: v for k, v in after.items() if k != "pads"
    }
    if not pad or not same or "pads" not in before:
        return
    edge = _integers(before["pads"])
    for sign, one in (("-", -1), ("+", 1)):
        moved = tuple(e + one * pad[k] for e, k in zip(edge, SPATIAL_PADS, strict=True))
        if _integers(after["pads"]) == moved:
            terms = (f"{EDGE_NAME}[{n}] {sign} {PAD_NAME}[{k}]" for n, k in enumerate(SPATIAL_PADS))
            yield f"pads=({', '.join(terms)}), dilations=(1, 1), **e"


def _permutation_formulas(
    perms: Sequence[tuple[str, Attr]],
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield formulas of permutations and their values."""
    for p, a in perms:
        one = _integers(a)
        yield f"inverse({p})", tuple(one.index(i) for i in range(len(one)))
        for q, b in perms:
            two = _integers(b)
            if len(one) == len(two):
                yield f"permute({p}, {q})", tuple(one[i] for i in two)


def _integers(value: Attr) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(v for v in value if isinstance(v, int))
