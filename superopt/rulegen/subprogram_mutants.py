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

from superopt.cost.fusion import is_fused_when_compiled
from superopt.cost.graph_cost import GraphCosts, roofline_cost_model
from superopt.generate.engine.journal import Journal
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
from superopt.rulegen.subprograms import OPS_WITH_BIAS
from superopt.rulegen.window_mutants import MIN_EQUAL_SHARE, Line, line_data
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

MAX_OPERATORS = 4  # of a mutant
MAX_PRICE_RATIO = 1.25  # maximum ratio of a mutant's lower bound to its program's
MAX_EXAMINED_MUTANTS = 6  # mutants of a program, the cheapest first
# for one window: see `window_mutants.py`
AXIS_MOVE_OPERATORS = {"move", "move-both-sides", "shape", "cut", "convolve"}


def enumerate_mutants(
    program: Program, journal: Journal, stop: Callable[[], bool], max_operators: int = MAX_OPERATORS
) -> list[Line] | None:
    """Return the entry of each mutant of a program that may be faster, and is equal somewhere; None
    if stopped."""
    try:
        little = small_program(program)
    except InferError:
        return []
    key = f"hits of {max_operators} {little.key}"
    if key not in journal.known:
        found = find_hits(little, max_operators, stop=stop)
        if stop():
            return None
        journal.add(key, json.dumps([[_term_to_json(h.term), h.share] for h in found]))
    some = [Hit(_term_from_json(t), share) for t, share in json.loads(journal.known[key])]
    programs = at_channel_choices(program)
    out = []
    for h in _cheapest_hits(program, some):
        if stop():
            return None
        out += _mutant_lines(h.term, programs)
    return out


def _term_to_json(term: Candidate) -> list[Any]:
    return [term.name, term.operator, [_term_to_json(o) for o in term.operands]]


def _term_from_json(plain: Any) -> Candidate:
    name, operator, operands = plain
    return Candidate(name, operator, tuple(map(_term_from_json, operands)))


def is_term_json(plain: Any) -> bool:
    """True if it is the JSON form of a term."""
    match plain:
        case [str(), int(n), list(operands)]:
            arity = len(OPERATORS[n].weight_operands) if 0 <= n < len(OPERATORS) else 0
            fine = -1 <= n < len(OPERATORS) and len(operands) == arity
            return fine and all(map(is_term_json, operands))
    return False


def _cheapest_hits(p: Program, hits: Sequence[Hit]) -> list[Hit]:
    """Return the hits whose price exceeds the program's by little, cheapest first."""
    costs = GraphCosts({}, roofline_cost_model(1), is_fused_when_compiled)
    program = p.joined_output
    limit = MAX_PRICE_RATIO * costs.graph_cost(graph_with_constant_weights([program]))
    priced: list[tuple[float, int]] = []
    seen = {program}
    for n, h in enumerate(hits):
        if len(convolutions(p)) == 1 and set(_operator_names(h.term)) <= AXIS_MOVE_OPERATORS:
            continue
        made = instantiate(h.term, p)
        if made is None or made.type != program.type or made in seen:
            continue
        seen.add(made)
        price = costs.graph_cost(graph_with_constant_weights([made]))
        if price <= limit:
            priced.append((price, n))
    return [hits[n] for _, n in sorted(priced)[:MAX_EXAMINED_MUTANTS]]


def graph_with_constant_weights(values: Sequence[graph.Value]) -> graph.Graph:
    """Return the graph of some values, with constant weights, as in models."""
    given = graph_inputs(*values)
    known: dict[graph.Value, graph.Value] = {
        i: _placeholder_constant(i.name, static_shape(i))
        for i in given
        if not is_activation_name(i.name)
    }
    whole = replace_all(graph.Graph((), tuple(values)), known)
    return graph.Graph(tuple(i for i in given if i not in known), whole.outputs)


@lru_cache(maxsize=256)
def _placeholder_constant(name: str, shape: tuple[int, ...]) -> graph.Constant:
    """Return a constant with arbitrary values."""
    return graph.constant(
        type=TensorType(F32, shape),
        key=("any", name, shape),
        load=lambda: np.ones(shape, np.float32),
        nbytes=4 * int(np.prod(shape)),
    )


def _mutant_lines(
    term: Candidate, programs: Sequence[tuple[dict[str, int], Program]]
) -> list[Line]:
    """Return the entry of a mutant with each of its corrections; none for one that is equal almost
    nowhere."""
    made = [instantiate(term, p) for _, p in programs]
    wholes = [p.joined_output for _, p in programs]
    both = [(a, b) for a, b in zip(wholes, made, strict=True) if b is not None]
    if len(both) < len(programs) or any(a.type != b.type for a, b in both):
        return [{"dropped": "other mutants at other channels"}]
    try:
        found = [find_regions(*x) for x in both]
    except (TooManyCells, InferError, ValueError):
        return [{"dropped": "too many break points"}]
    if found[0].equal_share < MIN_EQUAL_SHARE:
        return []
    at = [sizes for sizes, _ in programs]
    some = [SizedPair(s, a, b) for s, (a, b) in zip(at, both, strict=True)]
    name = "-".join(_operator_names(term))
    out = []
    for how in (
        CORRECTION_KINDS if found[0].different else CORRECTION_KINDS[:1]
    ):  # the first kind keeps the elements that are equal
        try:
            fixed = [corrected_value(how, s, r) for s, r in zip(some, found, strict=True)]
            sides = [_rule_sides(p, v) for (_, p), v in zip(programs, fixed, strict=True)]
            rule = rule_from_sizes(
                name if how == CORRECTION_KINDS[0] else f"{name}-{how}", at, sides
            )
            out.append(line_data(pair_from_sizes(name, some), rule, found[0]))
        except (NoCorrection, NoFormula, InferError):
            continue
    return out or [{"dropped": "no correction along axes"}]


def _operator_names(term: Candidate) -> list[str]:
    """Return the operators of a term, those of weights before those of activations."""
    if term.operator < 0:
        return []
    own = OPERATORS[term.operator].name.replace(" ", "-")
    return [*(n for o in term.operands for n in _operator_names(o)), own]


def _rule_sides(
    p: Program, mutant: graph.Value
) -> tuple[tuple[graph.Value, ...], tuple[graph.Value, ...]]:
    """Return both sides of a rule: the results of the program, with their biases; and the mutant,
    split into its results."""
    left = p.outputs
    sizes = [static_shape(v)[1] for v in p.outputs] if p.has_bias else []
    biases = [graph.Input(f"b{k}", TensorType(F32, (n,))) for k, n in enumerate(sizes)]
    if biases:
        left = tuple(_add_bias(v, b) for v, b in zip(left, biases, strict=True))
    apart = p.axis != 1 and len(biases) > 1
    if biases and not apart:
        one = biases[0] if len(biases) == 1 else graph.node(OPS["Concat"], biases, axis=0)
        mutant = _add_bias(mutant, one)
    if len(left) == 1:
        return left, (mutant,)
    split = tuple(static_shape(v)[p.axis] for v in p.outputs)
    each = graph.results(graph.node(OPS["Split"], [mutant], axis=p.axis, split=split))
    if apart:
        each = tuple(_add_bias(v, b) for v, b in zip(each, biases, strict=True))
    return left, each


def _add_bias(v: graph.Value, b: graph.Value) -> graph.Value:
    n = graph.producer(v)
    if n is not None and n.op.name in OPS_WITH_BIAS:
        return graph.node(n.op, [*n.inputs, b], **dict(n.attrs))
    around = (1, static_shape(b)[0], *(1 for _ in static_shape(v)[2:]))
    return graph.node(OPS["Add"], [v, graph.node(OPS["Reshape"], [b], shape=around)])
