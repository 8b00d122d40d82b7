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
TOGETHER = frozenset(("Conv", "AveragePool", "MaxPool"))
BUNDLES = ("**e", "**h")
# A convolution with a padded image or kernel: its pads are separate from the other attributes.
PAD, EDGE = "pad", "edge"
EDGED = f"pads={EDGE}, dilations=(1, 1), **e"
NAMES = {
    "axis": "kji",
    "perm": "pqr",
    "split": "gh",
    "shape": "tuv",
    "axes": "mno",
    "starts": ("start", "start2"),
    "ends": ("end", "end2"),
    "steps": ("step", "step2"),
    "pads": (PAD,),
    "epsilon": ("eps", "eps2"),
    "keepdims": ("keep", "keep2"),
}
AXIS = NAMES["axis"][0]
JOINED = f"({AXIS},)"  # axes equal to that of a join
CUT = frozenset(("starts", "ends", "steps"))
# Boolean attributes, for which a name generalizes little: what holds for one value holds for more
# ranks than what holds for both.
TWOFOLD = frozenset(("keepdims",))
# Any value of these is allowed where none is given: a law with an arbitrary value is not useful.
CHOSEN = frozenset(("perm", "shape", "axes"))
# The spatial entries of pads of four axes: before, then after.
ALONG = (2, 3, 6, 7)


@dataclass(frozen=True, slots=True)
class Slot:
    """An attribute of a side (or all attributes of an operator, with an empty key) and its concrete
    value."""

    key: str
    value: Attr


Written = Mapping[Slot, str]


@dataclass(frozen=True, slots=True)
class Join:
    """A Concat of two variables: its axis, their names and their sizes along it."""

    axis: int
    names: tuple[str, str]
    sizes: tuple[int, int]


def slots(op: str, attrs: Sequence[tuple[str, Attr]]) -> list[Slot]:
    """Return the slots of an operator's attributes."""
    if op in TOGETHER:
        return [Slot("", tuple((k, v) for k, v in attrs))]
    return [Slot(k, v) for k, v in attrs]


def literal(s: Slot) -> str:
    """Return the value as text."""
    if s.key:
        return show_attr(s.value)
    return ", ".join(f"{k}={show_attr(v)}" for k, v in _pairs(s.value))


def _pairs(value: Attr) -> list[tuple[str, Attr]]:
    """Return all attributes of an operator from a bundle slot."""
    assert isinstance(value, tuple)
    out: list[tuple[str, Attr]] = []
    for pair in value:
        assert isinstance(pair, tuple)
        key, of = pair
        assert isinstance(key, str)
        out.append((key, of))
    return out


def lefts(found: Sequence[Slot], rank: int, joins: Sequence[Join] = ()) -> Iterator[Written]:
    """Yield the forms of the left side's values, the most general first.

    rank: of the results; axes may be counted from its end. joins: Concats whose parts a slice may
    be.
    """
    counts: dict[str, int] = {}
    choices: list[list[str]] = []
    for s in found:
        n = counts.get(s.key, 0)
        counts[s.key] = n + 1
        names: Sequence[str] = BUNDLES if not s.key else NAMES.get(s.key, ())
        some = [names[n]] if n < len(names) else []
        if not s.key and n == 0 and "group" in dict(_pairs(s.value)) and _padded(found):
            some.insert(0, EDGED)
        if s.key == "axis" and isinstance(s.value, int):
            some.append(str(s.value - rank))
        if s.key == "axes":
            own = list(_axes(s, found, rank))
            if JOINED in own and any(t.key in CUT for t in found):
                # laws of slices along other axes are separate, and take long to prove
                own.remove(JOINED)
                some.insert(0, JOINED)
            some += own
        if s.key in ("starts", "ends"):
            some += _seams(s, joins)
        if not s.key and ("group", 1) in _pairs(s.value):
            some += [f"group=1, {name}" for name in some if name != EDGED]
        # a target of fixed sizes fits one tensor only
        choices.append(some if s.key == "shape" else [*some, literal(s)])
    # by the number of choices that are not the most general one
    every = sorted(
        product(*(range(len(c)) for c in choices)), key=lambda row: (sum(row), tuple(row))
    )
    for row in every:
        written = {s: c[n] for s, c, n in zip(found, choices, row, strict=True)}
        used = set(written.values())
        cut = {text in NAMES[s.key] for s, text in written.items() if s.key in CUT}
        seams = any("size" in text for s, text in written.items() if s.key in CUT)
        if (EDGED in used and PAD not in used) or (JOINED in used and AXIS not in used):
            continue
        if len(cut) < 2 and (JOINED in used or not seams):  # a slice has all its names or none
            yield written


def _axes(s: Slot, found: Sequence[Slot], rank: int) -> Iterator[str]:
    """Yield axes equal to that of a join, or counted from the end."""
    value = _numbers(s.value)
    if len(value) == 1:
        if next((t.value for t in found if t.key == "axis"), None) == value[0]:
            yield JOINED
        yield f"({value[0] - rank},)"


def _seams(s: Slot, joins: Sequence[Join]) -> Iterator[str]:
    """Yield slice bounds at the boundaries of a join's parts."""
    for j in joins:
        first, second = (f"size({name}, {AXIS})" for name in j.names)
        if s.value == (j.sizes[0],):
            yield f"({first},)"
        if s.value == (sum(j.sizes),):
            yield f"({first} + {second},)"


def fixed(written: Written) -> bool:
    """True if an attribute that could have a name is literal. A slice that is a part of a join
    begins at 0."""
    if any(s.key in CUT and "size" in text for s, text in written.items()):
        return False
    open_ = NAMES.keys() - TWOFOLD
    return any(text == literal(s) for s, text in written.items() if s.key in open_ or not s.key)


def plain(written: Written) -> bool:
    """True if everything that may be literal is."""
    return not any(
        text in (*NAMES.get(s.key, ()), JOINED) or "size" in text or EDGE in text or "**" in text
        for s, text in written.items()
        if s.key != "shape"
    )


def arbitrary(right: Written, left: Written) -> bool:
    """True if the right side has an arbitrary value that does not come from the left."""
    return any(
        s.key in CHOSEN and text == literal(s) and left.get(s) != text for s, text in right.items()
    )


def _padded(found: Sequence[Slot]) -> bool:
    return any(s.key == "pads" and len(_numbers(s.value)) == 8 for s in found)


def conditions(written: Written) -> list[str]:
    """Return conditions on the names: a split has a fixed number of parts; an image is padded only
    along its spatial axes, by nonnegative amounts."""
    edges = []
    if EDGED in written.values():
        edges += [f"{PAD}[{n}] == 0" for n in (0, 1, 4, 5)] + [f"min({PAD}) >= 0"]
        edges += [f"{EDGE}[{n}] >= {PAD}[{k}]" for n, k in enumerate(ALONG)]
    return edges + [
        f"len({text}) == {len(s.value)}"
        for s, text in written.items()
        if s.key == "split" and isinstance(s.value, tuple) and text != literal(s)
    ]


def relations(written: Written) -> Iterator[list[str]]:
    """Yield conditions on named axes, the weakest first: none; axes that differ here always differ;
    axes keep the order in which they were found, and a permutation fixes the axes after a named
    one."""
    yield []
    named = [(text, s) for s, text in written.items() if text in NAMES.get(s.key, ())]
    some = [(text, axes) for text, s in named if (axes := _places(s))]
    pairs = [(a, b) for a, b in combinations(some, 2) if not set(a[1]) & set(b[1])]
    if pairs:
        yield [_others(a, b) for a, b in pairs]
    kept = [
        f"{p}[{k}:] == range({k}, len({p}))"
        for p, perm in named
        for k, s in named
        if perm.key == "perm" and s.key == "axis" and _keeps(perm, s)
    ]
    ordered = [_before(a, b) for a, b in pairs]
    if kept or any(ordered):
        yield [o or _others(*pair) for o, pair in zip(ordered, pairs, strict=True)] + kept


Place = tuple[str, tuple[int, ...]]


def _places(s: Slot) -> tuple[int, ...]:
    """Return the axes of a slot; empty for other attributes."""
    if s.key == "axis":
        assert isinstance(s.value, int)
        return (s.value,)
    return _numbers(s.value) if s.key == "axes" else ()


def _others(a: Place, b: Place) -> str:
    """Return the condition that two names are different axes."""
    one, two = sorted((a[0], b[0]), key=_many)
    if not _many(two):
        return f"{one} != {two}"
    return f"{one} not in {two}" if not _many(one) else f"all(l not in {two} for l in {one})"


def _before(a: Place, b: Place) -> str:
    """Return the condition that one name's axes precede another's; empty if they do not."""
    (one, first), (two, second) = sorted((a, b), key=lambda place: place[1])
    if max(first) > min(second):
        return ""
    return f"{f'max({one})' if _many(one) else one} < {f'min({two})' if _many(two) else two}"


def _many(name: str) -> bool:
    """True if a name stands for several axes."""
    return name in NAMES["axes"]


def _keeps(perm: Slot, axis: Slot) -> bool:
    """True if a permutation fixes this axis and all after it."""
    order = _numbers(perm.value)
    assert isinstance(axis.value, int)
    return axis.value < len(order) and all(order[i] == i for i in range(axis.value, len(order)))


def rights(
    found: Sequence[Slot], left: Written, rank: int, sizes: Sequence[str] = ()
) -> Iterator[Written]:
    """Yield the forms of the right side's values, by the names of the left side. sizes: formulas
    for the sizes of a split."""
    choices = [
        list(dict.fromkeys([*(sizes if s.key == "split" else ()), *_formulas(s, left, rank)]))
        for s in found
    ]
    for row in product(*choices):
        yield dict(zip(found, row, strict=True))


def _formulas(s: Slot, left: Written, rank: int) -> Iterator[str]:
    named = {t: text for t, text in left.items() if text != literal(t) and text[0] != "-"}
    if s in named:
        yield named[s]
        return
    if not s.key and EDGED in left.values():
        yield from _edged(s, left)
    axes = [(text, t.value) for t, text in named.items() if t.key == "axis"]
    perms = [(text, t.value) for t, text in named.items() if t.key == "perm"]
    if s.key == "axis":
        for k, axis in axes:
            for p, perm in perms:
                order = _numbers(perm)
                assert isinstance(axis, int)
                if axis < len(order):
                    if order[axis] == s.value:
                        yield f"{p}[{k}]"
                    if order.index(axis) == s.value:
                        yield f"index({p}, {k})"
            for shift in (-1, 1):
                if axis == s.value - shift:  # type: ignore[operator]
                    yield f"{k} {'+' if shift > 0 else '-'} 1"
        if isinstance(s.value, int):
            yield str(s.value - rank)
    if s.key == "axes":
        yield from _permuted(_numbers(s.value), named, perms)
    if s.key == "perm":
        for text, value in _permutations(perms):
            if value == s.value:
                yield text
    if s.key != "shape":
        yield literal(s)


def _permuted(
    value: Sequence[int], named: Mapping[Slot, str], perms: Sequence[tuple[str, Attr]]
) -> Iterator[str]:
    """Yield axes as images of others under a permutation, or its inverse."""
    some = [(text, _numbers(t.value)) for t, text in named.items() if text in NAMES["axes"]]
    for (m, axes), (p, perm) in product(some, perms):
        order = _numbers(perm)
        if max(axes, default=0) < len(order):
            if {order[i] for i in axes} == set(value):
                yield f"permute({p}, {m})"
            if {order.index(i) for i in axes} == set(value):
                yield f"permute(inverse({p}), {m})"


def _edged(s: Slot, left: Written) -> Iterator[str]:
    """Yield the attributes of a convolution without its operand's padding, or with it."""
    pad = next((_numbers(t.value) for t, text in left.items() if text == PAD), ())
    before = next(dict(_pairs(t.value)) for t, text in left.items() if text == EDGED)
    after = dict(_pairs(s.value))
    same = {k: v for k, v in before.items() if k != "pads"} == {
        k: v for k, v in after.items() if k != "pads"
    }
    if not pad or not same or "pads" not in before:
        return
    edge = _numbers(before["pads"])
    for sign, one in (("-", -1), ("+", 1)):
        moved = tuple(e + one * pad[k] for e, k in zip(edge, ALONG, strict=True))
        if _numbers(after["pads"]) == moved:
            terms = (f"{EDGE}[{n}] {sign} {PAD}[{k}]" for n, k in enumerate(ALONG))
            yield f"pads=({', '.join(terms)}), dilations=(1, 1), **e"


def _permutations(perms: Sequence[tuple[str, Attr]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield formulas of permutations and their values."""
    for p, a in perms:
        one = _numbers(a)
        yield f"inverse({p})", tuple(one.index(i) for i in range(len(one)))
        for q, b in perms:
            two = _numbers(b)
            if len(one) == len(two):
                yield f"permute({p}, {q})", tuple(one[i] for i in two)


def _numbers(value: Attr) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(v for v in value if isinstance(v, int))
