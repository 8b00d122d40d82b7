"""The steps of matching: each checks what is bound, binds more, and calls the next step.

A step is compiled once per rule into a closure that calls its successor once for every alternative,
so that a left side is a flat chain without dictionaries or generators. Slots are written before
they are read on every path through the chain: nothing is undone. `Step.explain` tells why a step
did not continue; only explanations call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from superopt.ir.graph import Item, Node, Value, node, producer, result
from superopt.ir.op import InferError, Op
from superopt.rules.lang.functions import show_result
from superopt.rules.match.graph_context import GraphContext

# A slot holds a value, a size, an attribute, an element type, or a tuple of these.
Cells = list[Any]
Continuation = Callable[[Cells], None]
Test = Callable[[Value | None], bool]

# The first slots are the matcher's own: the graph, the list of matches, the nodes to be near, and,
# if the root is a part of an operator's operands, that part: (node, first, last + 1).
CONTEXT_SLOT, FOUND_SLOT, NEAR_SLOT, PART_SLOT = 0, 1, 2, 3
RESERVED_SLOTS = 4
MAX_CUT_EVERYWHERE = 16  # operands up to which an n-ary operator is cut everywhere


@dataclass(frozen=True, slots=True)
class Step:
    """`make` returns the step in front of a continuation; `explain` tells why it did not
    continue."""

    make: Callable[[Continuation], Continuation]
    explain: Callable[[Cells], str]


@dataclass(frozen=True, slots=True)
class Operand:
    """The slot of an operand, and its immediate test: an operator, or a predicate."""

    slot: int
    text: str
    op: Op | None = None
    test: Test | None = None

    def accepts(self, v: Value | None) -> bool:
        if self.op is not None:
            return type(v) is Node and v.op is self.op
        return self.test is None or self.test(v)


def is_present(v: Value | None) -> bool:
    return v is not None


def show_source(v: Value | None) -> str:
    n = None if v is None else producer(v)
    return "absent" if v is None else f"from {n.op.title}" if n is not None else show_result(v)


# --- operands -------------------------------------------------------------------------------------


def operands_step(slot: int, given: Sequence[Operand], swap: bool) -> Step:
    """Match exactly these operands; with `swap` also in the other order."""
    count = len(given)
    make = _match_one if count == 1 else _match_two if count == 2 else _match_several

    def why(env: Cells) -> str:
        n = env[slot]
        if len(n.inputs) != count:
            return f"{n.op.name} has {len(n.inputs)} operands, the rule needs {count}"
        for number, (o, v) in enumerate(zip(given, n.inputs, strict=True)):
            if not o.accepts(v):
                order = " (in either order)" if swap else ""
                found = show_source(v)
                return f"operand {number} of {n.op.name} is {found}, the rule needs {o.text}{order}"
        return "no order of its operands fits"

    return Step(lambda go: make(slot, given, swap, go), why)


def _match_one(slot: int, given: Sequence[Operand], swap: bool, go: Continuation) -> Continuation:
    (a,) = given
    at, op, accepts = a.slot, a.op, a.accepts

    def run(env: Cells) -> None:
        inputs = env[slot].inputs
        if len(inputs) != 1:
            return
        (v,) = inputs
        if op is not None:
            if type(v) is not Node or v.op is not op:
                return
        elif not accepts(v):
            return
        env[at] = v
        go(env)

    return run


def _match_two(slot: int, given: Sequence[Operand], swap: bool, go: Continuation) -> Continuation:
    a, b = given
    left, right, op, other = a.slot, b.slot, a.op, b.op
    first, second = a.accepts, b.accepts

    def run(env: Cells) -> None:
        inputs = env[slot].inputs
        if len(inputs) != 2:
            return
        v, w = inputs
        if (type(v) is Node and v.op is op if op is not None else first(v)) and (
            type(w) is Node and w.op is other if other is not None else second(w)
        ):
            env[left] = v
            env[right] = w
            go(env)
        if swap and v is not w and first(w) and second(v):
            env[left] = w
            env[right] = v
            go(env)

    return run


def _match_several(
    slot: int, given: Sequence[Operand], swap: bool, go: Continuation
) -> Continuation:
    count = len(given)

    def run(env: Cells) -> None:
        inputs = env[slot].inputs
        if len(inputs) != count:
            return
        for o, v in zip(given, inputs, strict=True):
            if not o.accepts(v):
                return
            env[o.slot] = v
        go(env)

    return run


def nary_step(
    slot: int, given: Sequence[Operand], swap: bool, allow_parts: bool, only: bool
) -> Step:
    """Match the operands of an n-ary operator: these, or more, cut into as many runs.

    A run of several operands is the operator applied to them. `allow_parts` (at the root): also
    match a part of the operands. `only`: `given` are other operators, so longer runs never fit.
    """
    exact = operands_step(slot, given, swap)
    count = len(given)

    def make(go: Continuation) -> Continuation:
        plain = exact.make(go)

        def place(env: Cells, values: Sequence[Value | None]) -> None:
            for o, v in zip(given, values, strict=True):
                if not o.accepts(v):
                    return
                env[o.slot] = v
            go(env)

        def run(env: Cells) -> None:
            n = env[slot]
            inputs = n.inputs
            if len(inputs) <= count or count < 2:
                plain(env)
                return
            ctx = env[CONTEXT_SLOT]
            for values in () if only else _cut_operands(ctx, n, given, swap):
                place(env, values)
            for start in _part_starts(n, count) if allow_parts else ():
                part = n.inputs[start : start + count]
                for values in (part, part[::-1]) if swap else (part,):
                    if all(o.accepts(v) for o, v in zip(given, values, strict=True)):
                        whole = join_operands(ctx, n, start, start + count)
                        if whole is not None:
                            env[slot], env[PART_SLOT] = whole, (n, start, start + count)
                            place(env, values)
                            env[slot], env[PART_SLOT] = n, None

        return run

    def why(env: Cells) -> str:
        n = env[slot]
        if len(n.inputs) <= count:
            return exact.explain(env)
        wanted = " and ".join(o.text for o in given)
        return f"none of its {len(n.inputs)} operands in a row are {wanted}"

    return Step(make, why)


def _part_starts(n: Node, count: int) -> range:
    """Return where a part of `count` operands may start: in a Sum, computed from the left, only at
    the first."""
    return range(1 if n.op.name == "Sum" else len(n.inputs) - count + 1)


def _cut_operands(
    ctx: GraphContext, n: Node, given: Sequence[Operand], swap: bool
) -> Iterator[list[Value | None]]:
    """Yield the operands of `n` cut into as many runs as are given, each run joined to a value."""
    for ends in _cuts(n.op.name, len(n.inputs), len(given)):
        runs = list(zip((0, *ends), (*ends, len(n.inputs)), strict=True))
        for order in (runs, runs[::-1]) if swap else (runs,):
            if any(
                j - i > 1 and o.op is not None and o.op is not n.op
                for (i, j), o in zip(order, given, strict=True)
            ):
                continue
            values = [join_operands(ctx, n, i, j) for i, j in order]
            if all(v is not None for v in values):
                yield values


def _cuts(name: str, n: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield the cuts of n operands into `count` runs: a Sum only in order of computation, from the
    left."""
    if name == "Sum":
        yield tuple(range(n - count + 1, n))
    elif n <= MAX_CUT_EVERYWHERE:
        yield from combinations(range(1, n), count - 1)
    elif count == 2:
        yield from ((1,), (n // 2,), (n - 1,))


def join_operands(ctx: GraphContext, n: Node, i: int, j: int) -> Value | None:
    """Return operands i to j of `n` as one value: `n`'s operator applied to them, None if it cannot
    be."""
    if j - i == 1:
        return n.inputs[i]
    key = (n, i, j)
    if key not in ctx.joined_parts:
        try:
            ctx.joined_parts[key] = node(n.op, n.inputs[i:j], **dict(n.attrs))
        except InferError:
            ctx.joined_parts[key] = None
    return ctx.joined_parts[key]


def operand_run_step(
    slot: int, before: Sequence[Operand], target: int, after: Sequence[Operand]
) -> Step:
    """Match some operands, a run of any length, and some more."""
    head, tail = len(before), len(after)

    def fits(n: Node) -> bool:
        inputs = n.inputs
        end = len(inputs) - tail
        return (
            end >= head
            and all(o.accepts(v) for o, v in zip(before, inputs, strict=False))
            and all(o.accepts(v) for o, v in zip(after, inputs[end:], strict=True))
            and None not in inputs[head:end]
        )

    def make(go: Continuation) -> Continuation:
        def run(env: Cells) -> None:
            n = env[slot]
            if not fits(n):
                return
            inputs = n.inputs
            end = len(inputs) - tail
            for o, v in zip(before, inputs, strict=False):
                env[o.slot] = v
            for o, v in zip(after, inputs[end:], strict=True):
                env[o.slot] = v
            env[target] = inputs[head:end]
            go(env)

        return run

    def why(env: Cells) -> str:
        inputs = env[slot].inputs
        if len(inputs) < head + tail:
            return f"there are {len(inputs)} operands, the rule needs {head + tail} or more"
        ends = [*zip(before, inputs, strict=False)]
        ends += zip(after, inputs[len(inputs) - tail :], strict=True)
        for o, v in ends:
            if not o.accepts(v):
                return f"an operand is {show_source(v)}, the rule needs {o.text}"
        return "an operand is absent"

    return Step(make, why)


def all_results_step(slot: int, target: int, op: Op, allow_parts: bool) -> Step:
    """Match operands that are all results of one node, in order. `allow_parts`: or a part of
    them."""

    def source(inputs: Sequence[Value | None], i: int) -> Node | None:
        v = inputs[i]
        n = v.node if type(v) is Item else v
        if type(n) is not Node or n.op is not op or v is not result(n, 0):
            return None
        count = len(n.types)
        same = inputs[i : i + count]
        if len(same) != count or any(w is not result(n, k) for k, w in enumerate(same)):
            return None
        return n

    def make(go: Continuation) -> Continuation:
        def run(env: Cells) -> None:
            n = env[slot]
            inputs = n.inputs
            for i in range(len(inputs) if allow_parts else 1):
                found = source(inputs, i)
                if found is None:
                    continue
                env[target] = found
                if len(found.types) == len(inputs):
                    go(env)
                elif allow_parts and len(found.types) > 1:
                    whole = join_operands(env[CONTEXT_SLOT], n, i, i + len(found.types))
                    if whole is not None:
                        env[slot], env[PART_SLOT] = whole, (n, i, i + len(found.types))
                        go(env)
                        env[slot], env[PART_SLOT] = n, None

        return run

    return Step(make, lambda env: f"the operands are not all the results of one {op.name}")
