"""A pair of programs at sample sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from superopt.ir import graph
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param, element_types
from superopt.rules.lang.term import Formula, Lit, Name
from superopt.rules.trial.instances import instance_of_names
from superopt.te.expr.dtype import F32, I64, DType
from superopt.te.expr.tensor import TensorType

MAX_SIZE, MIN_SIZE = 24, 8
MAX_ATTEMPTS = 400
SIZE_CHOICES = 4


@dataclass(frozen=True, slots=True)
class SizedPair:
    """A program and its mutant."""

    sizes: Mapping[str, int]
    program: graph.Value
    mutant: graph.Value


def size_names(pair: Rule) -> list[str]:
    """Return the names of the pair's sizes, in order. Raises ValueError for operands of any
    rank."""
    out: list[str] = []
    for p in pair.params:
        if not isinstance(p, Param) or p.is_run or p.shape is None:
            raise ValueError(f"{pair.name}: {p} has no shape of named sizes")
        for d in p.shape:
            match d:
                case Name(name):
                    out.append(name)
                case Lit():
                    pass
                case _:
                    raise ValueError(f"{pair.name}: {p} has no shape of named sizes")
    return list(dict.fromkeys(out))


def pair_at(pair: Rule, sizes: Mapping[str, int]) -> SizedPair | None:
    """Return the pair at these sizes; None if they do not fit, or there are several results."""
    made = sides_at(pair, sizes)
    if made is None or len(made[0]) > 1:
        return None
    return SizedPair(sizes, made[0][0], made[1][0])


def sides_at(
    pair: Rule, sizes: Mapping[str, int]
) -> tuple[tuple[graph.Value, ...], tuple[graph.Value, ...]] | None:
    """Return the results of both sides at these sizes; None if they do not fit."""
    operands = {}
    for p in pair.params:
        assert isinstance(p, Param)
        assert p.shape is not None
        shape = tuple(_size_value(d, sizes) for d in p.shape)
        operands[p.name] = graph.Input(p.name, TensorType(_dtype(p.kind), shape))
    made = instance_of_names(pair, {**operands, **sizes}, 0)
    return None if made is None else (made.lhs, made.rhs)


def _dtype(kind: str) -> DType:
    """Return an element type of parameters of this kind, preferably a float."""
    some = element_types(kind)
    return next((d for d in (F32, I64) if d in some), min(some, key=str))


def _size_value(d: Formula, sizes: Mapping[str, int]) -> int:
    match d:
        case Name(name):
            return sizes[name]
        case Lit(int() as n):
            return n
    raise ValueError(f"no size: {d}")


def sample_sizes(pair: Rule, seed: int = 0, count: int = SIZE_CHOICES) -> list[SizedPair]:
    """Return the pair at several sizes, with distinct sizes in each and no repeated value of a
    size, as far as such sizes fit."""
    rng, names = Random(seed), size_names(pair)
    out: list[SizedPair] = []
    used: dict[str, set[int]] = {n: set() for n in names}
    for attempt in range(MAX_ATTEMPTS):
        free = attempt > MAX_ATTEMPTS // 2  # some have few that fit
        values = rng.sample(range(MIN_SIZE, MAX_SIZE + 1), min(len(names), MAX_SIZE + 1 - MIN_SIZE))
        if len(values) < len(names):
            values = [rng.randint(MIN_SIZE, MAX_SIZE) for _ in names]
        sizes = dict(zip(names, values, strict=True))
        if not free and any(n in used[name] for name, n in sizes.items()):
            continue
        made = pair_at(pair, sizes)
        if made is not None:
            out.append(made)
            for name, n in sizes.items():
                used[name].add(n)
        if len(out) == count:
            break
    return out
