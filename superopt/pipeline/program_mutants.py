"""Mutants of a subprogram of a model, by enumeration: where each is equal, and its corrections.

Mutants are found at small sizes (`superopt.partial.enumerate.enumeration`), and the results serve
all models that contain the subprogram. At a model's own sizes they are priced by a lower bound of
their cost; only those that may be faster are examined further.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from superopt.cost.fusion import compiled_away
from superopt.cost.model import Costs, by_roofline
from superopt.generate.journal import Journal
from superopt.ir import graph
from superopt.ir.op import InferError
from superopt.ir.substitute import replace_all
from superopt.ops import OPS
from superopt.partial.correct.corrections import NoCorrection
from superopt.partial.correct.generalize import graph_inputs, pair_from_sizes, rule_from_sizes
from superopt.partial.correct.partial_rules import CORRECTION_KINDS, corrected_value
from superopt.partial.correct.restrict import static_shape
from superopt.partial.correct.sized_pairs import SizedPair
from superopt.partial.correct.symbolic_boxes import NoFormula
from superopt.partial.enumerate.enumeration import Candidate, Hit, find_hits, instantiate
from superopt.partial.enumerate.operators import OPERATORS, is_activation_name
from superopt.partial.enumerate.program import (
    Program,
    at_channel_choices,
    convolutions,
    small_program,
)
from superopt.partial.regions.cells import TooManyCells
from superopt.partial.regions.find import find_regions
from superopt.pipeline.subprograms import BIASED
from superopt.pipeline.windows import LEAST, Line, said
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

OPERATORS_OF = 4  # of a mutant
DEARER = 1.25  # maximum ratio of a mutant's lower bound to its program's
LOOKED_AT = 6  # mutants of a program, the cheapest first
# for one window: see `window_mutants.py`
MOVED = {"move", "move-both-sides", "shape", "cut", "convolve"}


def enumerated(
    p: Program, journal: Journal, stop: Callable[[], bool], most: int = OPERATORS_OF
) -> list[Line] | None:
    """Return the entry of each mutant of a program that may be faster, and is equal somewhere; None
    if stopped."""
    try:
        little = small_program(p)
    except InferError:
        return []
    key = f"hits of {most} {little.key}"
    if key not in journal.known:
        found = find_hits(little, most, stop=stop)
        if stop():
            return None
        journal.add(key, json.dumps([[_plain(h.term), h.share] for h in found]))
    some = [Hit(_read(t), share) for t, share in json.loads(journal.known[key])]
    programs = at_channel_choices(p)
    out = []
    for h in _cheap(p, some):
        if stop():
            return None
        out += _about(h.term, programs)
    return out


def _plain(t: Candidate) -> list[Any]:
    return [t.name, t.operator, [_plain(o) for o in t.operands]]


def _read(plain: Any) -> Candidate:
    name, operator, operands = plain
    return Candidate(name, operator, tuple(map(_read, operands)))


def is_term(plain: Any) -> bool:
    """True if it is the JSON form of a term."""
    match plain:
        case [str(), int(n), list(operands)]:
            arity = len(OPERATORS[n].weight_operands) if 0 <= n < len(OPERATORS) else 0
            fine = -1 <= n < len(OPERATORS) and len(operands) == arity
            return fine and all(map(is_term, operands))
    return False


def _cheap(p: Program, some: Sequence[Hit]) -> list[Hit]:
    """Return the hits whose price exceeds the program's by little, cheapest first."""
    costs = Costs({}, by_roofline(1), compiled_away)
    program = p.joined_output
    limit = DEARER * costs.of_graph(with_weights([program]))
    priced: list[tuple[float, int]] = []
    seen = {program}
    for n, h in enumerate(some):
        if len(convolutions(p)) == 1 and set(_names(h.term)) <= MOVED:
            continue
        made = instantiate(h.term, p)
        if made is None or made.type != program.type or made in seen:
            continue
        seen.add(made)
        price = costs.of_graph(with_weights([made]))
        if price <= limit:
            priced.append((price, n))
    return [some[n] for _, n in sorted(priced)[:LOOKED_AT]]


def with_weights(values: Sequence[graph.Value]) -> graph.Graph:
    """Return the graph of some values, with constant weights, as in models."""
    given = graph_inputs(*values)
    known: dict[graph.Value, graph.Value] = {
        i: _unknown(i.name, static_shape(i)) for i in given if not is_activation_name(i.name)
    }
    whole = replace_all(graph.Graph((), tuple(values)), known)
    return graph.Graph(tuple(i for i in given if i not in known), whole.outputs)


@lru_cache(maxsize=256)
def _unknown(name: str, shape: tuple[int, ...]) -> graph.Constant:
    """Return a constant with arbitrary values."""
    return graph.constant(
        type=TensorType(F32, shape),
        key=("any", name, shape),
        load=lambda: np.ones(shape, np.float32),
        nbytes=4 * int(np.prod(shape)),
    )


def _about(t: Candidate, programs: Sequence[tuple[dict[str, int], Program]]) -> list[Line]:
    """Return the entry of a mutant with each of its corrections; none for one that is equal almost
    nowhere."""
    made = [instantiate(t, p) for _, p in programs]
    wholes = [p.joined_output for _, p in programs]
    both = [(a, b) for a, b in zip(wholes, made, strict=True) if b is not None]
    if len(both) < len(programs) or any(a.type != b.type for a, b in both):
        return [{"dropped": "other mutants at other channels"}]
    try:
        found = [find_regions(*x) for x in both]
    except (TooManyCells, InferError, ValueError):
        return [{"dropped": "too many break points"}]
    if found[0].equal_share < LEAST:
        return []
    at = [sizes for sizes, _ in programs]
    some = [SizedPair(s, a, b) for s, (a, b) in zip(at, both, strict=True)]
    name = "-".join(_names(t))
    out = []
    for how in (
        CORRECTION_KINDS if found[0].different else CORRECTION_KINDS[:1]
    ):  # the first kind keeps the elements that are equal
        try:
            fixed = [corrected_value(how, s, r) for s, r in zip(some, found, strict=True)]
            sides = [_sides(p, v) for (_, p), v in zip(programs, fixed, strict=True)]
            rule = rule_from_sizes(
                name if how == CORRECTION_KINDS[0] else f"{name}-{how}", at, sides
            )
            out.append(said(pair_from_sizes(name, some), rule, found[0]))
        except (NoCorrection, NoFormula, InferError):
            continue
    return out or [{"dropped": "no correction along axes"}]


def _names(t: Candidate) -> list[str]:
    """Return the operators of a term, those of weights before those of activations."""
    if t.operator < 0:
        return []
    own = OPERATORS[t.operator].name.replace(" ", "-")
    return [*(n for o in t.operands for n in _names(o)), own]


def _sides(
    p: Program, made: graph.Value
) -> tuple[tuple[graph.Value, ...], tuple[graph.Value, ...]]:
    """Return both sides of a rule: the results of the program, with their biases; and the mutant,
    split into its results."""
    left = p.outputs
    sizes = [static_shape(v)[1] for v in p.outputs] if p.has_bias else []
    biases = [graph.Input(f"b{k}", TensorType(F32, (n,))) for k, n in enumerate(sizes)]
    if biases:
        left = tuple(_biased(v, b) for v, b in zip(left, biases, strict=True))
    apart = p.axis != 1 and len(biases) > 1
    if biases and not apart:
        one = biases[0] if len(biases) == 1 else graph.node(OPS["Concat"], biases, axis=0)
        made = _biased(made, one)
    if len(left) == 1:
        return left, (made,)
    split = tuple(static_shape(v)[p.axis] for v in p.outputs)
    each = graph.results(graph.node(OPS["Split"], [made], axis=p.axis, split=split))
    if apart:
        each = tuple(_biased(v, b) for v, b in zip(each, biases, strict=True))
    return left, each


def _biased(v: graph.Value, b: graph.Value) -> graph.Value:
    n = graph.producer(v)
    if n is not None and n.op.name in BIASED:
        return graph.node(n.op, [*n.inputs, b], **dict(n.attrs))
    around = (1, static_shape(b)[0], *(1 for _ in static_shape(v)[2:]))
    return graph.node(OPS["Add"], [v, graph.node(OPS["Reshape"], [b], shape=around)])
