"""Random instances of a rule: concrete shapes, attributes and constants that its left side matches.

Parameters become graph inputs, also those with `const(x)`: what holds for every value holds for
constants. They are constants only if a condition uses the number itself (`value(c) > 0`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from superopt.ir.graph import Constant, Input, Item, Node, Value
from superopt.ir.op import InferError
from superopt.rules.lang.functions import NotKnown, Result
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import free_names
from superopt.rules.trial.sample.draw import Draw, RejectedChoice, Style
from superopt.rules.trial.sample.left_side import BoundLater, LeftSideBuilder
from superopt.rules.trial.sample.right_side import right_side
from superopt.rules.trial.sample.windows import has_padding_only_window
from superopt.te.expr.tensor import TensorType

# Unequal sizes, ranks 1 to 4, axes of size 1; and all sizes equal, where types hide no error: a
# wrong permutation of unequal sizes has another type, and such a match is refused anyway.
STYLES = (
    Style(),
    Style(rank=2),
    Style(equal_sizes=True, rank=4),
    Style(ones_share=0.4),
    Style(rank=3),
    Style(equal_sizes=True, rank=3),
    Style(rank=4, ones_share=0.15),
    Style(rank=1),
    Style(),
    Style(equal_sizes=True),
)
MISFITS = (RejectedChoice, NotKnown, InferError)  # what says that the choices do not fit
MAX_TRIES_PER_STYLE = 300  # attempts in one style


@dataclass(frozen=True, slots=True)
class Instance:
    """One case of a rule: graphs for both sides over the same inputs, of equal types.

    limits: the extent indexed by each input that is used as an index.
    """

    inputs: tuple[Input, ...]
    lhs: tuple[Value, ...]
    rhs: tuple[Value, ...]
    limits: Mapping[Input, int]
    names: Mapping[str, Result]

    def __str__(self) -> str:
        shown = [f"{i.name}: {i.type}" for i in self.inputs]
        for name, v in self.names.items():
            if isinstance(v, Constant):
                shown.append(f"{name} = {v.load().reshape(-1)[0]} {v.type}")
            elif not isinstance(v, (Input, Node)) and not _has_values(v):
                shown.append(f"{name} = {v}")
        return ", ".join(shown)


def _has_values(v: Result) -> bool:
    return isinstance(v, tuple) and any(isinstance(i, (Input, Node)) for i in v)


def instances(
    rule: Rule,
    seed: int,
    *,
    constants: bool = False,
    rounds: int = 10,
    max_tries: int = MAX_TRIES_PER_STYLE,
) -> Iterator[Instance]:
    """Yield distinct instances of `rule`, the styles in turn, until `rounds` of all add nothing.

    `constants`: parameters with const(x) are constants, as the matcher requires. `max_tries`:
    attempts in one style; fewer while other styles still succeed.
    """
    rng = Random(f"{rule.name} {seed}")
    seen: set[object] = set()
    barren, thorough = 0, False
    tries = [max(max_tries // 6, 4)] * len(STYLES)
    while barren < rounds:
        fruitful = False
        for n, style in enumerate(STYLES):
            for _ in range(tries[n]):
                builder = LeftSideBuilder(rule, Draw(Random(rng.random()), style), constants)
                try:
                    made = _build_instance(rule, builder)
                except BoundLater:
                    return  # as in all other attempts
                except MISFITS:
                    continue
                if (key := instance_key(made)) in seen:
                    continue
                seen.add(key)
                fruitful = True
                yield made
                break
            else:
                tries[n] = max(tries[n] // 4, max_tries // 16)
        if not (fruitful or thorough):
            thorough, tries = True, [max_tries] * len(STYLES)
        else:
            barren = 0 if fruitful else barren + 1


def instance_key(i: Instance) -> object:
    """Return what is equal for instances that test the same: types of inputs, sizes, attributes."""
    plain = tuple((n, str(v)) for n, v in i.names.items() if not isinstance(v, (Input, Node)))
    return tuple(str(x.type) for x in i.inputs), tuple(p for p in plain if "<" not in p[1])


def neighbor_instances(rule: Rule, one: Instance, seed: int) -> Iterator[Instance]:
    """Yield instances like `one` with one axis of one parameter set to 1 or longer by one, or with
    a leading axis of 1 added or removed: random draws rarely find an operand that is broadcast."""
    free = open_shapes(rule, one)
    shapes = [{name: near} for name, shape in free.items() for near in _neighbor_shapes(shape)]
    Random(f"{rule.name} {seed}").shuffle(shapes)
    for near in shapes:
        yield from changed_instances(rule, one, near, {})


def resized_instances(rule: Rule, one: Instance) -> Iterator[Instance]:
    """Yield instances like `one` with one of its sizes changed everywhere, and one with a leading
    axis added to all parameters of any shape."""
    free = open_shapes(rule, one)
    own = {
        n for p in rule.params if isinstance(p, Param) for f in p.shape or () for n in free_names(f)
    }
    sizes = {n: v for n, v in one.names.items() if n in own}
    every = [*free.values(), *(v if isinstance(v, tuple) else (v,) for v in sizes.values())]
    known = {d for some in every for d in some or () if type(d) is int}
    for size in sorted(known, reverse=True):
        for other in (size + 1, 1):
            if other != size:
                shapes = {n: replace_size(s, size, other) for n, s in free.items()}
                yield from changed_instances(
                    rule, one, shapes, {n: replace_size(v, size, other) for n, v in sizes.items()}
                )
    if free:
        yield from changed_instances(rule, one, {n: (2, *s) for n, s in free.items()}, {})


def replace_size(r: Result, size: int, other: int) -> Any:
    """Return a size, or sizes, with `size` replaced by `other`."""
    if isinstance(r, tuple):
        return tuple(replace_size(d, size, other) for d in r)
    return other if type(r) is int and r == size else r


def open_shapes(rule: Rule, one: Instance) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters declared with any shape."""
    found = {
        p.name: given.type.shape
        for p in rule.params
        if isinstance(p, Param) and p.shape is None
        if isinstance(given := one.names.get(p.name), Input)
    }
    return {n: tuple(d for d in s if isinstance(d, int)) for n, s in found.items() if s is not None}


def changed_instances(
    rule: Rule, one: Instance, shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, Result]
) -> Iterator[Instance]:
    """Yield the instance with other shapes and sizes, if it exists."""
    maker = LeftSideBuilder(rule, Draw(Random(0), Style()))
    for n, v in one.names.items():
        if not isinstance(v, (Input, Constant, Node, Item)):
            maker.names[n] = sizes.get(n, v)
    for p in rule.params:
        given = one.names.get(p.name)
        if isinstance(p, Param) and isinstance(given, Input) and given.type.dtype is not None:
            maker.kinds[p.kind] = given.type.dtype
    for name, shape in open_shapes(rule, one).items():
        given = one.names[name]
        assert isinstance(given, Input)
        changed = Input(name, TensorType(given.type.dtype, shapes.get(name, shape)))
        maker.names[name] = changed
        maker.inputs.append(changed)
    made = instance_of_builder(rule, maker)
    if made is not None:
        yield made


def _neighbor_shapes(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for k, d in enumerate(shape):
        for size in (1, d + 1):
            if size != d:
                yield (*shape[:k], size, *shape[k + 1 :])
    yield (1, *shape)
    if shape[:1] == (1,):
        yield shape[1:]


def instance_of_names(rule: Rule, names: Mapping[str, Result], seed: int) -> Instance | None:
    """Return the instance with these values of a rule's names: inputs, sizes and attributes.
    Anything without a name, as the shape of a number, is drawn."""
    maker = LeftSideBuilder(rule, Draw(Random(seed), Style()))
    maker.names |= names
    for p in rule.params:
        v = names.get(p.name)
        some = v if isinstance(v, tuple) and isinstance(p, Param) and p.is_run else (v,)
        own = [i for i in some if isinstance(i, Input)]
        maker.inputs += own
        if isinstance(p, Param) and own and own[0].type.dtype is not None:
            maker.kinds[p.kind] = own[0].type.dtype
    return instance_of_builder(rule, maker)


def try_instance(rule: Rule, draw: Draw, constants: bool = False) -> Instance | None:
    """Make one attempt at an instance; None if the choices did not fit together."""
    return instance_of_builder(rule, LeftSideBuilder(rule, draw, constants))


def instance_of_builder(rule: Rule, builder: LeftSideBuilder) -> Instance | None:
    """Return the instance of a builder, None if there is none."""
    try:
        return _build_instance(rule, builder)
    except MISFITS:
        return None


class _SidesDiffer(RejectedChoice):
    """The left side fits, but not the right one."""


def _build_instance(rule: Rule, builder: LeftSideBuilder) -> Instance:
    """Return the instance of a builder; raises RejectedChoice, NotKnown or InferError."""
    lhs = builder.roots()
    builder.check_conditions()
    dtype = lhs[0].type.dtype
    assert dtype is not None
    try:
        rhs = right_side(rule, builder.names, builder.terms, dtype)
    except (NotKnown, InferError) as e:
        raise _SidesDiffer(f"its right side has no type: {e}") from None
    if [v.type for v in lhs] != [v.type for v in rhs]:  # such a match is refused
        left, right = (", ".join(str(v.type) for v in side) for side in (lhs, rhs))
        raise _SidesDiffer(f"its left side is {left}, its right side {right}")
    if lhs == rhs:
        raise RejectedChoice("nothing to test")
    inputs = tuple(builder.inputs)
    if (limits := _index_limits(lhs, inputs)) is None:
        raise RejectedChoice("an index out of range, or a window of padding only")
    return Instance(inputs, lhs, rhs, limits, builder.names)


def misfit_reason(rule: Rule, seed: int, tries: int = 400) -> str:
    """Return why the right side never fits where the left one does, by the smallest such attempt;
    "" if there is an instance."""
    rng = Random(f"{rule.name} {seed}")
    said: list[tuple[int, str]] = []
    for n in range(tries):
        maker = LeftSideBuilder(rule, Draw(Random(rng.random()), STYLES[n % len(STYLES)]), False)
        try:
            _build_instance(rule, maker)
        except _SidesDiffer as e:
            shown = ", ".join(f"{i.name}: {i.type}" for i in maker.inputs)
            ranks = sum(len(i.type.shape or ()) for i in maker.inputs)
            said.append((ranks or 99, f"as for {shown}: {e}"))  # scalars last: they have no axes
        except MISFITS:
            continue
        else:
            return ""
    return f"its sides have different types, {min(said)[1]}" if said else ""


def _index_limits(roots: tuple[Value, ...], inputs: tuple[Input, ...]) -> dict[Input, int] | None:
    """Return for each input that becomes an index of a Gather the least extent that it indexes.

    None if a constant index is out of range, or a pool has a window of padding only: the result of
    such a graph is undefined.
    """
    found: dict[Input, int] = {}
    own = set(inputs)
    stack: list[tuple[Value, int | None]] = [(v, None) for v in roots]
    seen: set[tuple[Value, int | None]] = set()
    while stack:
        v, limit = stack.pop()
        if (v, limit) in seen:
            continue
        seen.add((v, limit))
        if isinstance(v, Input):
            if limit is not None and v in own:
                found[v] = min(limit, found.get(v, limit))
            continue
        if isinstance(v, Constant):
            if (
                limit is not None
                and v.nbytes
                and not -limit <= v.load().min() <= v.load().max() < limit
            ):
                return None
            continue
        n = v.node if isinstance(v, Item) else v
        if has_padding_only_window(n):
            return None
        for place, operand in enumerate(n.inputs):
            if operand is None:
                continue
            below = limit
            if n.op.name == "Gather" and place == 1:
                shape = n.inputs[0].type.shape if n.inputs[0] is not None else None
                axis = n.attr("axis")
                assert shape is not None
                assert isinstance(axis, int)
                extent = shape[axis]
                assert isinstance(extent, int)
                below = extent  # an index only selects: the selected data inherits the limit
            stack.append((operand, below))
    return found
