"""The steps of matching after operands: types, attributes, conditions, further roots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from superopt.ir.graph import Item, Node, Value, result
from superopt.ir.op import Attrs, InferError, Op, Types, canonical_attrs
from superopt.ir.syntax import show_attr
from superopt.rules.lang.functions import NotKnown, show_result
from superopt.rules.lang.interpreter import as_bool
from superopt.rules.lang.value_facts import are_attrs_equal
from superopt.rules.match.operand_steps import CONTEXT_SLOT, Cells, Continuation, Step, show_source
from superopt.te.expr.dtype import DType

# --- values ---------------------------------------------------------------------------------------


def pick_step(value: int, target: int, op: Op, index: int, text: str) -> Step:
    """Match a value that is result `index` of an `op`, and bind its node."""

    def make(go: Continuation) -> Continuation:
        def run(env: Cells) -> None:
            v = env[value]
            n = v.node if type(v) is Item else v
            if type(n) is Node and n.op is op and index < len(n.types) and result(n, index) is v:
                env[target] = n
                go(env)

        return run

    return Step(make, lambda env: f"the value is {show_source(env[value])}, the rule needs {text}")


def same_value_step(slot: int, other: int, text: str) -> Step:
    """Require that two slots hold one object (or equal tuples)."""

    def make(go: Continuation) -> Continuation:
        def run(env: Cells) -> None:
            a, b = env[slot], env[other]
            if a is b or (type(a) is tuple and a == b):
                go(env)

        return run

    return Step(make, lambda env: f"{text} stands for two different values")


def dtype_step(
    slot: int, allowed: frozenset[DType], letter: int | None, bind: bool, text: str
) -> Step:
    """Require the element type of a value (or of each of a tuple); `letter` is the slot of a shared
    one."""

    def fits(env: Cells, v: Value) -> bool:
        d = v.type.dtype
        if d not in allowed:
            return False
        return letter is None or bind or env[letter] is d or bool(env[letter] == d)

    def make(go: Continuation) -> Continuation:
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
        return f"the element type is {kinds_found}, the rule needs {text}{shared}"

    return Step(make, why)


# --- attributes and conditions --------------------------------------------------------------------


def _input_types(n: Node) -> Types:
    return tuple(None if v is None else v.type for v in n.inputs)


def _fixed_attributes_test(op: Op, fixed: Attrs) -> Callable[[Node], bool]:
    """Return a test that a node has the fixed attributes, perhaps in another form."""
    cache: dict[tuple[Attrs, Types], bool] = {}

    def canonically(n: Node) -> bool:
        """True if the fixed attributes have the canonical form of the node's."""
        key = (n.attrs, _input_types(n))
        known = cache.get(key)
        if known is None:
            free = {k: v for k, v in n.attrs if not any(k == f for f, _ in fixed)}
            known = cache[key] = _yields_attributes(op, key[1], free | dict(fixed), n.attrs)
            if len(cache) > 1 << 12:
                cache.clear()
        return known

    def holds(n: Node) -> bool:
        have = dict(n.attrs)
        for k, v in fixed:
            if not are_attrs_equal(have.get(k), v):
                return canonically(n)
        return True

    return holds


def attributes_step(
    slot: int,
    op: Op,
    fixed: Attrs,
    binds: Sequence[tuple[str, int]],
    rest: int | None,
    explicit_keys: frozenset[str],
) -> Step:
    """Require `fixed` attributes (defaults included), and bind others."""
    holds = _fixed_attributes_test(op, fixed)

    def make(go: Continuation) -> Continuation:
        def run(env: Cells) -> None:
            n = env[slot]
            if fixed and not holds(n):
                return
            for k, into in binds:
                env[into] = n.attr(k)
            if rest is not None:
                env[rest] = tuple([pair for pair in n.attrs if pair[0] not in explicit_keys])
            go(env)

        return run

    def why(env: Cells) -> str:
        n = env[slot]
        have = dict(n.attrs)
        unequal = [(k, v) for k, v in fixed if not are_attrs_equal(have.get(k), v)]
        k, v = next(
            (
                (k, v)
                for k, v in unequal
                if not _yields_attributes(op, _input_types(n), have | {k: v}, n.attrs)
            ),
            unequal[0],
        )
        default = "" if k in explicit_keys else ", its default"
        found = f"{op.name} has {k}={show_attr(have[k])}"
        return f"{found}, the rule needs {show_attr(v)}{default}"

    return Step(make, why)


def _yields_attributes(op: Op, types: Types, attrs: dict[str, Any], goal: Attrs) -> bool:
    try:
        return are_attrs_equal(canonical_attrs(op, types, attrs), goal)
    except (InferError, ValueError, TypeError, AssertionError, IndexError, KeyError):
        return False


def attribute_formula_step(
    slot: int, op: Op, key: str, formula: Callable[[Cells], Any], text: str
) -> Step:
    """Require that an attribute equals a formula, in canonical form."""

    def holds(env: Cells) -> bool:
        n = env[slot]
        wanted = formula(env)
        if are_attrs_equal(n.attr(key), wanted):
            return True
        return _yields_attributes(op, _input_types(n), dict(n.attrs) | {key: wanted}, n.attrs)

    def make(go: Continuation) -> Continuation:
        def run(env: Cells) -> None:
            try:
                fits = holds(env)
            except NotKnown:
                return
            if fits:
                go(env)

        return run

    def why(env: Cells) -> str:
        have = f"{op.name} has {key}={show_attr(env[slot].attr(key))}, the rule needs {text}"
        try:
            return f"{have} = {show_result(formula(env))}"
        except NotKnown as e:
            return f"{have}: {e}"

    return Step(make, why)


def other_attributes_step(slot: int, explicit_keys: frozenset[str], rest: int, name: str) -> Step:
    """Require that all other attributes equal those bound before."""

    def make(go: Continuation) -> Continuation:
        def run(env: Cells) -> None:
            if (
                tuple([pair for pair in env[slot].attrs if pair[0] not in explicit_keys])
                == env[rest]
            ):
                go(env)

        return run

    return Step(make, lambda env: f"the other attributes differ from **{name}")


def condition_step(
    condition: Callable[[Cells], Any], text: str, shown: Callable[[Cells], str]
) -> Step:
    """Require a condition. An unknown condition does not hold."""

    def make(go: Continuation) -> Continuation:
        def run(env: Cells) -> None:
            try:
                if not as_bool(condition(env)):
                    return
            except NotKnown:
                return
            go(env)

        return run

    def why(env: Cells) -> str:
        try:
            condition(env)
        except NotKnown as e:
            return f"condition {text} is not known: {e}{shown(env)}"
        return f"condition {text} does not hold{shown(env)}"

    return Step(make, why)


def definition_step(target: int, formula: Callable[[Cells], Any], text: str) -> Step:
    """Bind a name to the value of a formula."""

    def make(go: Continuation) -> Continuation:
        def run(env: Cells) -> None:
            try:
                env[target] = formula(env)
            except NotKnown:
                return
            go(env)

        return run

    def why(env: Cells) -> str:
        try:
            return f"{text} is {show_result(formula(env))}"
        except NotKnown as e:
            return f"{text} is not known: {e}"

    return Step(make, why)


def constant_step(slot: int, test: Callable[[Cells, Value], bool], text: str) -> Step:
    """Require a constant with the number or content of a formula."""

    def make(go: Continuation) -> Continuation:
        def run(env: Cells) -> None:
            try:
                fits = test(env, env[slot])
            except NotKnown:
                return
            if fits:
                go(env)

        return run

    return Step(make, lambda env: f"{show_result(env[slot])} is not {text}")


# --- further roots --------------------------------------------------------------------------------


def users_step(bound: int, path: Sequence[Op], target: int) -> Step:
    """Bind each node at the end of `path`, a path of operators up from a bound value."""

    def make(go: Continuation) -> Continuation:
        *above, last = path

        def run(env: Cells) -> None:
            users = env[CONTEXT_SLOT].users
            level: list[Value] = [env[bound]]
            for op in above:
                level = [u for v in level for u in users.get(v, ()) if u.op is op]
            found = [u for v in level for u in users.get(v, ()) if u.op is last]
            for u in found if len(level) == 1 else dict.fromkeys(found):
                env[target] = u
                go(env)

        return run

    return Step(make, lambda env: f"no other {path[-1].name} reads the same value")


def nearest_step(first_root: int, op: Op, target: int, reach: int) -> Step:
    """Bind the nearest nodes of `op` around the first root: for roots that share nothing."""

    def make(go: Continuation) -> Continuation:
        def run(env: Cells) -> None:
            ctx = env[CONTEXT_SLOT]
            same_op = ctx.by_op.get(op, ())
            at = ctx.insertion_index(env[first_root], op)
            for u in same_op[max(at - reach, 0) : at + reach + 1]:
                env[target] = u
                go(env)

        return run

    return Step(make, lambda env: f"there is no other {op.name} near it")


def distinct_step(
    slot: int, others: Sequence[int], before: Sequence[int], after: Sequence[int]
) -> Step:
    """Require a root distinct from the others; in a symmetric pair, also in a fixed order."""

    def make(go: Continuation) -> Continuation:
        def run(env: Cells) -> None:
            n = env[slot]
            for o in others:
                if env[o] is n:
                    return
            if before or after:
                position = env[CONTEXT_SLOT].position
                for o in before:
                    if position[env[o]] >= position[n]:
                        return
                for o in after:
                    if position[env[o]] <= position[n]:
                        return
            go(env)

        return run

    return Step(make, lambda env: "it is the same node, or the pair is tried in the other order")
