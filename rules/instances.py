"""Random instances of a rule: concrete shapes, attributes and constants that its left side matches.

Parameters become graph inputs, those with `const(x)` too: what holds for every value holds for
constants. Only where a condition asks for the number itself (`value(c) > 0`) they are constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from superopt.ir.graph import Constant, Input, Item, Node, Value
from superopt.ir.op import InferError
from superopt.rules.functions import NotKnown, Result
from superopt.rules.rule import Rule
from superopt.rules.sample.draw import Draw, Misfit, Style
from superopt.rules.sample.make import Maker
from superopt.rules.sample.right import right_side
from superopt.rules.syntax import Param
from superopt.te.expr import TensorType

# Unequal sizes, ranks 1 to 4, axes of one element; and all sizes equal, where types hide nothing:
# a wrong permutation of unequal sizes has another type, and such a match is refused anyway.
STYLES = (
    Style(),
    Style(rank=2),
    Style(equal=True, rank=4),
    Style(ones=0.4),
    Style(rank=3),
    Style(equal=True, rank=3),
    Style(rank=4, ones=0.15),
    Style(rank=1),
    Style(),
    Style(equal=True),
)
PATIENCE = 300  # attempts in one style


@dataclass(frozen=True, slots=True)
class Instance:
    """One case of a rule: graphs for both sides over the same inputs, of equal types.

    limits: for inputs that are used as indices, the extent that they index.
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
            elif not isinstance(v, (Input, Node)) and not _of_values(v):
                shown.append(f"{name} = {v}")
        return ", ".join(shown)


def _of_values(v: Result) -> bool:
    return isinstance(v, tuple) and any(isinstance(i, (Input, Node)) for i in v)


def instances(
    rule: Rule,
    seed: int,
    *,
    constants: bool = False,
    rounds: int = 10,
    patience: int = PATIENCE,
) -> Iterator[Instance]:
    """Different instances of `rule`, the styles in turn, until `rounds` of all bring nothing new.

    `constants`: parameters with const(x) are constants, as the matcher wants them. `patience`:
    attempts in one style.
    """
    rng = Random(f"{rule.name} {seed}")
    seen: set[object] = set()
    barren = 0
    while barren < rounds:
        fruitful = False
        for style in STYLES:
            for _ in range(patience if not barren else patience // 4):
                made = attempt(rule, Draw(Random(rng.random()), style), constants)
                if made is None or (key := _key(made)) in seen:
                    continue
                seen.add(key)
                fruitful = True
                yield made
                break
        barren = 0 if fruitful else barren + 1


def _key(i: Instance) -> object:
    plain = tuple((n, str(v)) for n, v in i.names.items() if not isinstance(v, (Input, Node)))
    return tuple(str(x.type) for x in i.inputs), tuple(p for p in plain if "<" not in p[1])


CRAMPED = 3  # the only size there, but for ones


def cramped(rule: Rule, seed: int, tries: int) -> Iterator[Instance]:
    """Instances in which all sizes are alike and parameters of any shape have any rank.

    There a bias is as long as the image is wide, an image no larger than its kernel, and types hide
    nothing; what is drawn to fit is never so. Most tries fit nothing.
    """
    rng = Random(f"cramped {rule.name} {seed}")
    seen: set[object] = set()
    for _ in range(tries):
        maker = Maker(rule, Draw(Random(rng.random()), Style(equal=True)))
        for p in rule.params:
            if isinstance(p, Param) and p.shape is None and not p.run:
                dims = (1 if rng.random() < 0.15 else CRAMPED for _ in range(rng.randint(0, 4)))
                given = Input(p.name, TensorType(maker.kind(p.kind), tuple(dims)))
                maker.names[p.name] = given
                maker.inputs.append(given)
        made = _made(rule, maker)
        if made is not None and (key := _key(made)) not in seen:
            seen.add(key)
            yield made


def attempt(rule: Rule, draw: Draw, constants: bool = False) -> Instance | None:
    """One try at an instance; None where the choices did not fit together."""
    return _made(rule, Maker(rule, draw, constants))


def _made(rule: Rule, maker: Maker) -> Instance | None:
    """The instance that a maker comes to."""
    try:
        lhs = maker.roots()
        maker.conditions()
        dtype = lhs[0].type.dtype
        assert dtype is not None
        rhs = right_side(rule, maker.names, maker.terms, dtype)
    except (Misfit, NotKnown, InferError):
        return None
    if len(lhs) != len(rhs) or [v.type for v in lhs] != [v.type for v in rhs]:
        return None  # such a match is refused
    if lhs == rhs:
        return None  # nothing to test
    inputs = tuple(maker.inputs)
    limits = _limits(lhs, inputs)
    return None if limits is None else Instance(inputs, lhs, rhs, limits, maker.names)


def _limits(roots: tuple[Value, ...], inputs: tuple[Input, ...]) -> dict[Input, int] | None:
    """For each input that a Gather's indices are made from, the least extent that it indexes.

    None where a constant index is out of range: such a graph computes nothing.
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
                below = extent  # an index only chooses: what is chosen inherits the limit
            stack.append((operand, below))
    return found
