"""Conditions of a rule, made true in one attempt at an instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from superopt.ir.op import Attr
from superopt.ops.window import span
from superopt.rules import functions
from superopt.rules.condition import needs
from superopt.rules.functions import NotKnown, Result, sequence
from superopt.rules.rule import definition
from superopt.rules.sample.formulas import without_const
from superopt.rules.term import Call, Compare, Each, Formula, Logic, Name, Term, walk
from superopt.te import index as ix
from superopt.te.dtype import BOOL
from superopt.te.expr import Dim
from superopt.te.node import Apply, Const, Expr
from superopt.verifier.attributes import NO_BLANKS, SHORT_STEPS, Unsupported, marked
from superopt.verifier.choices import NOTES, Choices
from superopt.verifier.sizes import Fork, Misfit, State, bounded, equated

SIGNS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "lt", ">=": "le"}


def flat(e: Expr) -> tuple[str, list[Expr]] | None:
    """Return the arguments of nested minima, or maxima."""
    match e:
        case Apply("min" | "max" as fn, args, _):
            out: list[Expr] = []
            for a in args:
                inner = flat(a)
                out += inner[1] if inner is not None and inner[0] == fn else [a]
            return fn, out
        case _:
            return None


@dataclass(slots=True)
class Conditions(Choices):
    """The conditions of one attempt. satisfied: conditions made true so far."""

    met: list[Formula] = field(default_factory=list)

    def early(self) -> None:
        """Apply the conditions whose names are bound: most misfits show early."""
        for f, wanted in self.needs():
            if f not in self.met and all(n in self.names for n in wanted):
                self.met.append(f)
                self.condition(f)

    def needs(self) -> list[tuple[Formula, frozenset[str | Term]]]:
        found = self.memo.get("needs")
        if found is None:
            found = self.memo["needs"] = [
                (f, needs(f))
                for f in self.rule.where
                if not any(isinstance(p, Call) and p.fn == "const" for p in walk(f))
            ]
        assert isinstance(found, list)
        return found

    def agree(self, a: object, b: object) -> None:
        """Require that two attribute values are equal."""
        if isinstance(a, tuple) and isinstance(b, tuple):
            if len(a) != len(b):
                raise Misfit
            for x, y in zip(a, b, strict=True):
                self.agree(x, y)
            return
        sizes = isinstance(a, (int, Expr)) and isinstance(b, (int, Expr))
        if sizes and (isinstance(a, Expr) or isinstance(b, Expr)):
            if not self.same(a, b):  # type: ignore[arg-type]
                raise Misfit
        elif a != b:
            if marked(a) or marked(b):
                raise Unsupported(f"is any number, {marked(a) or marked(b)}, one that is given?")
            raise Misfit

    def compared(self, a: Result, op: str, b: Result) -> None:
        """Require that a `op` b holds."""
        if op == "==" and not isinstance(a, (str, type(None))):
            self.agree(a, b)
            return
        numbers = (int, float, Fraction)
        if isinstance(a, numbers) and isinstance(b, numbers) and (marked(a) or marked(b)):
            self.ordered(a, op, b)
            return
        if not isinstance(a, (int, Expr)) or not isinstance(b, (int, Expr)):
            if op == "!=" and isinstance(a, tuple) and any(isinstance(v, Expr) for v in a):
                return  # as below
            try:
                if not functions.compare(op, a, b):
                    raise Misfit
            except NotKnown:
                if op != "!=":
                    raise
            return  # a difference that depends on sizes: proved without it
        if op in (">", ">="):
            a, b, op = b, a, "<" if op == ">" else "<="
        x, y = ix.as_index(a), ix.as_index(b)
        h = ix.apply(SIGNS[op], (x, y), BOOL)
        if isinstance(h, Const):
            if not h.value:
                raise Misfit
        elif h not in self.state.hypotheses:
            if op in ("<", "<="):
                cases = bounded(self.state, ix.as_index(y - x - 1 if op == "<" else y - x))
                if cases is not None:
                    raise Fork(cases)
            raise Fork([self.state.given(h, "")])

    def sees(self, attrs: Mapping[str, Attr], image: Sequence[Dim]) -> None:
        """Require that every window of a pool overlaps the image: the result of another window is
        undefined. Dilations no larger than the image ensure that no window lies between its
        elements."""
        NOTES.add(NO_BLANKS)
        kernel, pads, steps = attrs["kernel_shape"], attrs["pads"], attrs.get("dilations")
        if isinstance(kernel, tuple) and isinstance(pads, tuple):
            apart = steps if isinstance(steps, tuple) else (1,) * len(kernel)
            for d, n in zip(apart, image, strict=True):
                if d != 1:
                    NOTES.add(SHORT_STEPS)
                    self.compared(d, "<=", n)  # type: ignore[arg-type]
            for p, k, d in zip(pads, (*kernel, *kernel), (*apart, *apart), strict=True):
                self.compared(p, "<", span(k, d))  # type: ignore[arg-type]

    def extreme(self, a: Result, op: str, b: Result, key: str) -> bool:
        """Require min(p, q) == c: one operand equals c, and none is less."""
        parts = flat(a) if isinstance(a, Expr) else None
        if parts is None or op != "==" or not isinstance(b, (int, Expr)):
            return False
        if key in self.state.choices:
            return True
        fn, some = parts
        out: list[State | None] = []
        for n, one in enumerate(some):
            state: State | None = self.state.chosen(key, True)
            for other in (*some[:n], *some[n + 1 :]):
                pair = (ix.as_index(b), other) if fn == "min" else (other, ix.as_index(b))
                h = ix.apply("le", pair, BOOL)
                state = None if state is None else state.given(h, "")
            out += [] if state is None else equated(state, ix.dim(one), b)
        raise Fork(out)

    def ordered(self, a: float | Fraction, op: str, b: float | Fraction) -> None:
        """Require an order of numbers of which at least one is unknown."""
        if op == "!=":
            return  # proved without it
        if op in (">", ">="):
            a, b = b, a
        fact = (float(a), op in ("<", ">"), float(b))
        if fact not in self.state.orders:
            raise Fork([self.state.below(*fact)])

    def condition(self, f: Formula) -> None:
        """Make a condition true."""
        found = definition(f, frozenset(self.names))
        if found is not None and found[0] not in self.runs().values():
            self.names[found[0]] = self.formula(found[1])
            return
        match f:
            case Logic("and", some):
                for g in some:
                    self.condition(g)
                return
            case Logic("or", some):
                n = self.choose(f"which of {id(f)} {self.at}", range(len(some)))
                assert isinstance(n, int)
                self.condition(some[n])
                return
            case Call("const" | "single_use" | "known" | "all_equal", _):
                return
            case Compare(Name(m), (("==", _),)) if m in self.runs().values():
                return  # any split will do
            case Call("all", (Each(body, own, over, None),)):
                self.every(body, own, sequence(self.formula(over)))
                return
            case Compare(first, rest) if all(op in SIGNS for op, _ in rest):
                sides = [first, *(g for _, g in rest)]
                for n, (a, (op, b)) in enumerate(zip(sides, rest, strict=False)):
                    x, y = self.formula(a), self.formula(b)
                    if not self.extreme(x, op, y, f"extreme {id(f)} {n} {self.at}"):
                        self.compared(x, op, y)
                return
            case _:
                pass
        if not self.formula(without_const(f)):
            raise Misfit

    def every(self, body: Formula, own: tuple[str, ...], items: tuple[Result, ...]) -> None:
        """Make a condition true for each item."""
        outer = self.at
        for n, item in enumerate(items):
            parts = (item,) if len(own) == 1 else sequence(item)
            self.names.update(zip(own, parts, strict=True))
            self.at = f"{outer} {n}"
            self.condition(body)
        self.at = outer
        for name in own:
            self.names.pop(name, None)
