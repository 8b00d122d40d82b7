"""The steps of matching after operands: types, attributes, conditions, further roots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.ir.graph import Item, Node, Value, item
from superopt.ir.op import Attrs, InferError, Op, Types, canonical_attrs
from superopt.ir.syntax import show_attr
from superopt.rules.condition import truth
from superopt.rules.facts import alike
from superopt.rules.functions import NotKnown, tell
from superopt.rules.steps import CONTEXT, Cells, Cont, Step, kind_of
from superopt.te.dtype import DType
from superopt.te.node import Dim

# --- values ---------------------------------------------------------------------------------------


def picked(value: int, into: int, op: Op, index: int, words: str) -> Step:
    """Match a value that is result `index` of an `op`, and bind its node."""

    def make(go: Cont) -> Cont:
        def run(env: Cells) -> None:
            v = env[value]
            n = v.node if type(v) is Item else v
            if type(n) is Node and n.op is op and index < len(n.types) and item(n, index) is v:
                env[into] = n
                go(env)

        return run

    return Step(make, lambda env: f"the value is {kind_of(env[value])}, the rule wants {words}")


def same(slot: int, other: int, words: str) -> Step:
    """Require that two slots hold one object (or equal tuples)."""

    def make(go: Cont) -> Cont:
        def run(env: Cells) -> None:
            a, b = env[slot], env[other]
            if a is b or (type(a) is tuple and a == b):
                go(env)

        return run

    return Step(make, lambda env: f"{words} stands for two different values")


def typed(slot: int, allowed: frozenset[DType], letter: int | None, bind: bool, words: str) -> Step:
    """Require the element type of a value (or of each of a tuple); `letter` is the slot of a shared
    one."""

    def fits(env: Cells, v: Value) -> bool:
        d = v.type.dtype
        if d not in allowed:
            return False
        return letter is None or bind or env[letter] is d or bool(env[letter] == d)

    def make(go: Cont) -> Cont:
        def run(env: Cells) -> None:
            held = env[slot]
            for v in held if type(held) is tuple else (held,):
                if not fits(env, v):
                    return
            if bind and letter is not None:
                first = held[0] if type(held) is tuple and held else held
                env[letter] = None if first == () else first.type.dtype
            go(env)

        return run

    def why(env: Cells) -> str:
        shown = env[slot] if type(env[slot]) is tuple else (env[slot],)
        kinds_found = ", ".join(str(v.type.dtype) for v in shown)
        shared = f" (here {env[letter]})" if letter is not None and not bind else ""
        return f"the element type is {kinds_found}, the rule wants {words}{shared}"

    return Step(make, why)


@dataclass(frozen=True, slots=True)
class Dims:
    """A shape pattern: for each axis the required size, or a slot to bind or compare."""

    before: tuple[tuple[int | None, Dim | None, bool], ...]  # slot, number, bind
    middle: tuple[int, bool] | None = None  # of `*s`: slot, bind
    after: tuple[tuple[int | None, Dim | None, bool], ...] = ()


def shaped(slot: int, dims: Dims, words: str) -> Step:
    """Require the shape of a value, or of each value of a run, and bind sizes."""
    head, tail = len(dims.before), len(dims.after)
    middle = dims.middle
    places = [(k, *d) for k, d in enumerate(dims.before)]
    places += [(k - tail, *d) for k, d in enumerate(dims.after)]

    def fits(env: Cells, shape: tuple[Dim, ...] | None, again: bool = False) -> bool:
        if shape is None:
            return False
        if len(shape) < head + tail if middle is not None else len(shape) != head:
            return False
        for k, at, number, bind in places:
            d = shape[k]
            if at is None:
                if number is not None and d != number:
                    return False
            elif bind and not again:
                env[at] = d
            elif env[at] != d:
                return False
        if middle is not None:
            at, bind = middle
            run = shape[head : len(shape) - tail]
            if bind and not again:
                env[at] = run
            elif env[at] != run:
                return False
        return True

    def make(go: Cont) -> Cont:
        def run(env: Cells) -> None:
            v = env[slot]
            if type(v) is not tuple:
                if fits(env, v.type.shape):
                    go(env)
            elif all(fits(env, x.type.shape, k > 0) for k, x in enumerate(v)):
                go(env)

        return run

    def why(env: Cells) -> str:
        some = env[slot] if type(env[slot]) is tuple else (env[slot],)
        return f"the type is {', '.join(str(v.type) for v in some)}, the rule wants {words}"

    return Step(make, why)


# --- attributes and conditions --------------------------------------------------------------------


def _types(n: Node) -> Types:
    return tuple(None if v is None else v.type for v in n.inputs)


def said(slot: int, op: Op, fixed: Attrs, binds: Sequence[tuple[str, int]], rest: int | None,
         own: frozenset[str]) -> Step:  # fmt: skip
    """Require `fixed` attributes (defaults included), and bind others."""
    order = sorted(op.attrs)
    cache: dict[tuple[Attrs, Types], bool] = {}

    def canonically(n: Node) -> bool:
        """True if the fixed attributes have the canonical form of the node's."""
        key = (n.attrs, _types(n))
        known = cache.get(key)
        if known is None:
            free = {k: v for k, v in n.attrs if not any(k == f for f, _ in fixed)}
            known = cache[key] = _gives(op, key[1], free | dict(fixed), n.attrs)
            if len(cache) > 1 << 12:
                cache.clear()
        return known

    def holds(n: Node) -> bool:
        have = dict(n.attrs)
        for k, v in fixed:
            if not alike(have.get(k), v):
                return canonically(n)
        return True

    def make(go: Cont) -> Cont:
        places = [(order.index(k), k, into) for k, into in binds]

        def run(env: Cells) -> None:
            n = env[slot]
            attrs = n.attrs
            if fixed and not holds(n):
                return
            for at, k, into in places:
                if at < len(attrs) and attrs[at][0] == k:
                    env[into] = attrs[at][1]
                else:
                    env[into] = n.attr(k)
            if rest is not None:
                env[rest] = tuple([pair for pair in attrs if pair[0] not in own])
            go(env)

        return run

    def why(env: Cells) -> str:
        n = env[slot]
        have = dict(n.attrs)
        for k, v in fixed:
            free = {f: x for f, x in n.attrs if f != k}
            if not alike(have.get(k), v) and not _gives(op, _types(n), free | {k: v}, n.attrs):
                default = "" if k in own else ", its default"
                found = f"{op.name} has {k}={show_attr(have[k])}"
                return f"{found}, the rule wants {show_attr(v)}{default}"
        return f"the attributes of {op.name} do not fit"

    return Step(make, why)


def _gives(op: Op, types: Types, attrs: dict[str, Any], goal: Attrs) -> bool:
    try:
        return alike(canonical_attrs(op, types, attrs), goal)
    except (InferError, ValueError, TypeError, AssertionError, IndexError, KeyError):
        return False


def asked(slot: int, op: Op, key: str, formula: Callable[[Cells], Any], words: str) -> Step:
    """Require that an attribute equals a formula, in canonical form."""

    def holds(env: Cells) -> bool:
        n = env[slot]
        wanted = formula(env)
        if alike(n.attr(key), wanted):
            return True
        return _gives(op, _types(n), dict(n.attrs) | {key: wanted}, n.attrs)

    def make(go: Cont) -> Cont:
        def run(env: Cells) -> None:
            try:
                fits = holds(env)
            except NotKnown:
                return
            if fits:
                go(env)

        return run

    def why(env: Cells) -> str:
        have = f"{op.name} has {key}={show_attr(env[slot].attr(key))}, the rule wants {words}"
        try:
            return f"{have} = {tell(formula(env))}"
        except NotKnown as e:
            return f"{have}: {e}"

    return Step(make, why)


def rest_is(slot: int, own: frozenset[str], rest: int, words: str) -> Step:
    """Require that all other attributes equal those bound before."""

    def make(go: Cont) -> Cont:
        def run(env: Cells) -> None:
            if tuple([pair for pair in env[slot].attrs if pair[0] not in own]) == env[rest]:
                go(env)

        return run

    return Step(make, lambda env: f"the other attributes differ from **{words}")


def when(condition: Callable[[Cells], Any], words: str, shown: Callable[[Cells], str]) -> Step:
    """Require a condition. An unknown condition does not hold."""

    def make(go: Cont) -> Cont:
        def run(env: Cells) -> None:
            try:
                if not truth(condition(env)):
                    return
            except NotKnown:
                return
            go(env)

        return run

    def why(env: Cells) -> str:
        try:
            condition(env)
        except NotKnown as e:
            return f"condition {words} is not known: {e}{shown(env)}"
        return f"condition {words} does not hold{shown(env)}"

    return Step(make, why)


def defined(into: int, formula: Callable[[Cells], Any], words: str) -> Step:
    """Bind a name to the value of a formula."""

    def make(go: Cont) -> Cont:
        def run(env: Cells) -> None:
            try:
                env[into] = formula(env)
            except NotKnown:
                return
            go(env)

        return run

    def why(env: Cells) -> str:
        try:
            return f"{words} is {tell(formula(env))}"
        except NotKnown as e:
            return f"{words} is not known: {e}"

    return Step(make, why)


def constant_is(slot: int, test: Callable[[Cells, Value], bool], words: str) -> Step:
    """Require a constant with the number or content of a formula."""

    def make(go: Cont) -> Cont:
        def run(env: Cells) -> None:
            try:
                fits = test(env, env[slot])
            except NotKnown:
                return
            if fits:
                go(env)

        return run

    return Step(make, lambda env: f"{tell(env[slot])} is not {words}")


# --- further roots --------------------------------------------------------------------------------


def users_of(bound: int, path: Sequence[Op], into: int) -> Step:
    """Bind each node at the end of `path`, a path of operators up from a bound value."""

    def make(go: Cont) -> Cont:
        *above, last = path

        def run(env: Cells) -> None:
            users = env[CONTEXT].users
            level: list[Value] = [env[bound]]
            for op in above:
                level = [u for v in level for u in users.get(v, ()) if u.op is op]
            found = [u for v in level for u in users.get(v, ()) if u.op is last]
            for u in found if len(level) == 1 else dict.fromkeys(found):
                env[into] = u
                go(env)

        return run

    return Step(make, lambda env: f"no other {path[-1].name} reads the same value")


def nearest(first: int, op: Op, into: int, reach: int) -> Step:
    """Bind the nearest nodes of `op` around the first root: for roots that share nothing."""

    def make(go: Cont) -> Cont:
        def run(env: Cells) -> None:
            ctx = env[CONTEXT]
            same_op = ctx.by_op.get(op, ())
            at = ctx.place(env[first], op)
            for u in same_op[max(at - reach, 0) : at + reach + 1]:
                env[into] = u
                go(env)

        return run

    return Step(make, lambda env: f"there is no other {op.name} near it")


def apart(slot: int, others: Sequence[int], before: Sequence[int], after: Sequence[int]) -> Step:
    """Require a root distinct from the others; in a symmetric pair, also in a fixed order."""

    def make(go: Cont) -> Cont:
        def run(env: Cells) -> None:
            n = env[slot]
            for o in others:
                if env[o] is n:
                    return
            if before or after:
                position = env[CONTEXT].position
                for o in before:
                    if position[env[o]] >= position[n]:
                        return
                for o in after:
                    if position[env[o]] <= position[n]:
                        return
            go(env)

        return run

    return Step(make, lambda env: "it is the same node, or the pair is tried in the other order")
