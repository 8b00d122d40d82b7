"""Conditions of a rule, made true in one attempt at an instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from superopt.ir.op import Attr
from superopt.ops.shared.windows import window_span
from superopt.rules.lang import functions
from superopt.rules.lang.functions import NotKnown, Result, as_tuple
from superopt.rules.lang.interpreter import required_names
from superopt.rules.lang.rule import definition
from superopt.rules.lang.term import Call, Compare, Comprehension, Formula, Logic, Name, Term, walk
from superopt.rules.trial.sample.formula_values import drop_const_conditions
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL
from superopt.te.expr.node import Apply, Const, Expr
from superopt.te.expr.tensor import Dim
from superopt.verifier.instances.attributes import (
    NO_PADDING_WINDOWS_NOTE,
    SMALL_DILATIONS_NOTE,
    Unsupported,
)
from superopt.verifier.instances.choices import Choices
from superopt.verifier.instances.size_orders import bounded_states
from superopt.verifier.instances.sizes import Fork, RejectedChoice, State, equate

COMPARISON_FUNCTIONS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "lt", ">=": "le"}


def flatten_extreme(e: Expr) -> tuple[str, list[Expr]] | None:
    """Return the arguments of nested minima, or maxima."""
    match e:
        case Apply("min" | "max" as fn, args, _):
            out: list[Expr] = []
            for a in args:
                inner = flatten_extreme(a)
                out += inner[1] if inner is not None and inner[0] == fn else [a]
            return fn, out
        case _:
            return None


@dataclass(slots=True)
class Conditions(Choices):
    """The conditions of one attempt. satisfied: conditions made true so far."""

    satisfied: list[Formula] = field(default_factory=list)

    def require_ready_conditions(self) -> None:
        """Apply the conditions whose names are bound: most misfits show early."""
        for f, wanted in self.required_names_by_condition():
            if f not in self.satisfied and all(n in self.names for n in wanted):
                self.satisfied.append(f)
                self.require_condition(f)

    def required_names_by_condition(self) -> list[tuple[Formula, frozenset[str | Term]]]:
        found = self.memo.get("needs")
        if found is None:
            found = self.memo["needs"] = [
                (f, required_names(f))
                for f in self.rule.where
                if not any(isinstance(p, Call) and p.fn == "const" for p in walk(f))
            ]
        assert isinstance(found, list)
        return found

    def require_equal(self, a: object, b: object) -> None:
        """Require that two attribute values are equal."""
        if isinstance(a, tuple) and isinstance(b, tuple):
            if len(a) != len(b):
                raise RejectedChoice
            for x, y in zip(a, b, strict=True):
                self.require_equal(x, y)
            return
        sizes = isinstance(a, (int, Expr)) and isinstance(b, (int, Expr))
        if sizes and (isinstance(a, Expr) or isinstance(b, Expr)):
            if not self.are_equal(a, b):  # type: ignore[arg-type]
                raise RejectedChoice
        elif a != b:
            name = self.unknown_name(a, b)
            if name is not None:
                raise Unsupported(f"cannot decide whether the symbolic number {name} is specified")
            raise RejectedChoice

    def unknown_name(self, *values: object) -> str | None:
        """Return the name of the first unknown number among the values, if any."""
        names = map(self.context.unknowns.name, values)
        return next((name for name in names if name is not None), None)

    def require_comparison(self, a: Result, op: str, b: Result) -> None:
        """Require that a `op` b holds."""
        if op == "==" and not isinstance(a, (str, type(None))):
            self.require_equal(a, b)
            return
        numbers = (int, float, Fraction)
        if isinstance(a, numbers) and isinstance(b, numbers) and self.unknown_name(a, b):
            self.require_order(a, op, b)
            return
        if not isinstance(a, (int, Expr)) or not isinstance(b, (int, Expr)):
            if op == "!=" and isinstance(a, tuple) and any(isinstance(v, Expr) for v in a):
                return  # as below
            try:
                if not functions.compare_results(op, a, b):
                    raise RejectedChoice
            except NotKnown:
                if op != "!=":
                    raise
            return  # a difference that depends on sizes: proved without it
        if op in (">", ">="):
            a, b, op = b, a, "<" if op == ">" else "<="
        x, y = index.as_index(a), index.as_index(b)
        h = index.apply(COMPARISON_FUNCTIONS[op], (x, y), BOOL)
        if isinstance(h, Const):
            if not h.value:
                raise RejectedChoice
        elif h not in self.state.hypotheses:
            if op in ("<", "<="):
                cases = bounded_states(
                    self.state, index.as_index(y - x - 1 if op == "<" else y - x)
                )
                if cases is not None:
                    raise Fork(cases)
            raise Fork([self.state.with_hypothesis(h, "")])

    def require_windows_see_image(self, attrs: Mapping[str, Attr], image: Sequence[Dim]) -> None:
        """Require that every window of a pool overlaps the image: the result of another window is
        undefined. Dilations no larger than the image ensure that no window lies between its
        elements."""
        self.context.scope_notes.add(NO_PADDING_WINDOWS_NOTE)
        kernel, pads, apart = attrs["kernel_shape"], attrs["pads"], attrs["dilations"]
        if isinstance(kernel, tuple) and isinstance(pads, tuple):
            assert isinstance(apart, tuple)
            for d, n in zip(apart, image, strict=True):
                if d != 1:
                    self.context.scope_notes.add(SMALL_DILATIONS_NOTE)
                    self.require_comparison(d, "<=", n)  # type: ignore[arg-type]
            for p, k, d in zip(pads, (*kernel, *kernel), (*apart, *apart), strict=True):
                self.require_comparison(p, "<", window_span(k, d))  # type: ignore[arg-type]

    def require_extreme(self, a: Result, op: str, b: Result, key: str) -> bool:
        """Require min(p, q) == c: one operand equals c, and none is less."""
        parts = flatten_extreme(a) if isinstance(a, Expr) else None
        if parts is None or op != "==" or not isinstance(b, (int, Expr)):
            return False
        if key in self.state.choices:
            return True
        fn, operands = parts
        out: list[State | None] = []
        for n, one in enumerate(operands):
            state: State | None = self.state.with_choice(key, True)
            for other in (*operands[:n], *operands[n + 1 :]):
                pair = (index.as_index(b), other) if fn == "min" else (other, index.as_index(b))
                h = index.apply("le", pair, BOOL)
                state = None if state is None else state.with_hypothesis(h, "")
            out += [] if state is None else equate(state, index.dim(one), b)
        raise Fork(out)

    def require_order(self, a: float | Fraction, op: str, b: float | Fraction) -> None:
        """Require an order of numbers of which at least one is unknown."""
        if op == "!=":
            return  # proved without it
        if op in (">", ">="):
            a, b = b, a
        fact = (float(a), op in ("<", ">"), float(b))
        if fact not in self.state.number_orders:
            raise Fork([self.state.with_order(*fact)])

    def require_condition(self, f: Formula) -> None:
        """Make a condition true."""
        found = definition(f, frozenset(self.names))
        if found is not None and found[0] not in self.contiguous_vectors().values():
            self.names[found[0]] = self.formula_value(found[1])
            return
        match f:
            case Logic("and", parts):
                for g in parts:
                    self.require_condition(g)
                return
            case Logic("or", parts):
                n = self.choose(f"which of {id(f)} {self.item_path}", range(len(parts)))
                assert isinstance(n, int)
                self.require_condition(parts[n])
                return
            case Call("const" | "single_use" | "known" | "all_equal", _):
                return
            case Compare(Name(m), (("==", _),)) if m in self.contiguous_vectors().values():
                return  # any split will do
            case Call("all", (Comprehension(body, own, over, None),)):
                self.require_for_each(body, own, as_tuple(self.formula_value(over)))
                return
            case Compare(first, rest) if all(op in COMPARISON_FUNCTIONS for op, _ in rest):
                sides = [first, *(g for _, g in rest)]
                for n, (a, (op, b)) in enumerate(zip(sides, rest, strict=False)):
                    x, y = self.formula_value(a), self.formula_value(b)
                    if not self.require_extreme(x, op, y, f"extreme {id(f)} {n} {self.item_path}"):
                        self.require_comparison(x, op, y)
                return
            case _:
                pass
        if not self.formula_value(drop_const_conditions(f)):
            raise RejectedChoice

    def require_for_each(
        self, body: Formula, variables: tuple[str, ...], items: tuple[Result, ...]
    ) -> None:
        """Make a condition true for each item."""
        outer = self.item_path
        for n, item in enumerate(items):
            parts = (item,) if len(variables) == 1 else as_tuple(item)
            self.names.update(zip(variables, parts, strict=True))
            self.item_path = f"{outer} {n}"
            self.require_condition(body)
        self.item_path = outer
        for name in variables:
            self.names.pop(name, None)
