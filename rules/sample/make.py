"""One attempt at an instance: the left side of a rule from its leaves up, choosing what is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.ir.graph import Constant, Input, Node, Value, constant, node, results
from superopt.ir.op import Attr, canonical_attrs
from superopt.rules.condition import truth
from superopt.rules.functions import NotKnown, Result, equal
from superopt.rules.rule import Rule, definition
from superopt.rules.sample.ask import ABSENT, Ask
from superopt.rules.sample.draw import Draw, Hole, Misfit, Shape
from superopt.rules.sample.fit import fit
from superopt.rules.sample.formulas import constants_asked, numbers_asked, value_of, without_const
from superopt.rules.sample.right import filled
from superopt.rules.syntax import AttrParam, Param
from superopt.rules.term import (
    Absent,
    All,
    App,
    Call,
    Filled,
    Formula,
    Map,
    Name,
    Number,
    Pick,
    Run,
    Scalar,
    Spread,
    Term,
    Var,
)
from superopt.te.dtype import BOOL, DTYPES, F32, F64, I32, I64, DType, to_numpy
from superopt.te.expr import TensorType

LARGEST = 1 << 13  # elements of an operand
# Numbers for constants that conditions ask for, exact in float32.
NUMBERS = (2.0, 0.5, 0.0, 1.0, -1.5, 3.0, 0.25, 6.0, -0.125)
INTEGERS = (0, 1, 2, 3, 5, -1, -2, 7, 9)

@dataclass(slots=True)
class Maker:
    """What has been chosen so far.

    constants: are parameters with const(x) constants, and not inputs?
    names: the values of parameters, sizes and attribute variables. terms: of subterms. lengths: how
    many axes each `*s` stands for. past: shapes of parameters, which others are likely to have too.
    """

    rule: Rule
    draw: Draw
    constants: bool = False
    inputs: list[Input] = field(default_factory=list)
    names: dict[str, Result] = field(default_factory=dict)
    terms: dict[Term, Value] = field(default_factory=dict)
    many: dict[App, tuple[Value, ...]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    past: list[Shape] = field(default_factory=list)
    kinds: dict[str, DType] = field(default_factory=dict)
    later: list[tuple[Node, str, Formula]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for p in self.rule.params:
            if isinstance(p, AttrParam) and p.kind == Name("nat"):
                self.names[p.name] = self.draw.pick((1, 2, 2, 3))

    def roots(self) -> tuple[Value, ...]:
        """The results of the left side. Raises Misfit, NotKnown or InferError."""
        out: list[Value] = []
        for side in self.rule.lhs:
            match side:
                case App() if len(self.rule.lhs) == 1:
                    out.extend(self.app(side))
                case All(app):
                    out.extend(self.app(app))
                case _:
                    out.append(self.value(side))
        for n, key, f in self.later:
            self.agree(n, key, f)
        return tuple(out)

    def conditions(self) -> None:
        """Check the conditions, and define the names that they define."""
        for condition in self.rule.where:
            found = definition(condition, frozenset(self.names))
            if found is not None:
                self.names[found[0]] = value_of(found[1], self.names, self.terms)
            elif not truth(value_of(without_const(condition), self.names, self.terms)):
                raise Misfit("a condition does not hold")

    def agree(self, n: Node, key: str, f: Formula) -> None:
        """Raise Misfit unless attribute `key` of `n` is what the formula says."""
        wanted = value_of(f, self.names, self.terms)
        types = tuple(None if v is None else v.type for v in n.inputs)
        attrs = dict(n.attrs) | {key: wanted}
        if canonical_attrs(n.op, types, attrs) != n.attrs:  # type: ignore[arg-type]
            raise Misfit(f"{key} is not {wanted}")

    # --- terms ------------------------------------------------------------------------------------

    def value(self, t: Term) -> Value:
        """The one result of a term that is no parameter."""
        match t:
            case App():
                found = self.app(t)
                if len(found) != 1:
                    raise Misfit(f"{t.op.name} has {len(found)} results")
                return found[0]
            case Pick(app, index):
                found = self.app(app)
                if index >= len(found):
                    raise Misfit(f"no result {index}")
                self.terms[t] = found[index]
                return found[index]
            case Var(name):
                found_value = self.names.get(name)
                if not isinstance(found_value, (Input, Constant)):
                    raise Misfit(f"{name} alone")
                return found_value
            case _:
                raise Misfit("no value")

    def app(self, t: App) -> tuple[Value, ...]:
        """The results of an operator, whose free operands and attributes are chosen here."""
        if t in self.many:
            return self.many[t]
        operands = [o for term in t.operands for o in self.operand(term)]
        attrs, free, pending = self.attributes(t)
        done: list[Value | None] = []
        dtype = self.sibling(operands)
        for place in range(len(operands)):
            one = operands[place]
            if isinstance(one, Var) and one.name in self.names:  # a second time, as in Mul(x, x)
                operands[place] = self.value(one)
            elif isinstance(one, (Var, Number, Scalar)):
                holes = tuple(self.hole(o) for o in operands)
                holes = self.remembered(holes, place)
                shapes, found = fit(Ask(t.op, holes, attrs, free, self.draw))
                attrs, free = attrs | found, frozenset()
                operands[place] = self.commit(one, tuple(shapes[place]), dtype)
            elif isinstance(one, Filled):
                args = [value_of(a, self.names, self.terms) for a in one.args]
                operands[place] = filled(one, args, dtype)
            made = operands[place]
            done.append(None if isinstance(made, Absent) else made)  # type: ignore[arg-type]
        if free:
            holes = tuple(self.hole(o) for o in operands)
            attrs = attrs | fit(Ask(t.op, holes, attrs, free, self.draw))[1]
        self.finish_runs(t)
        attrs |= self.settled(t, pending)
        made_node = node(t.op, done, **attrs)
        self.bind_attributes(t, made_node)
        self.later.extend((made_node, key, f) for key, f in pending)
        out = results(made_node)
        self.many[t] = out
        if len(out) == 1:
            self.terms[t] = out[0]
        return out

    def operand(self, t: Term) -> list[Term | Value]:
        """What stands at an operand's place: values, and parameters still to be chosen."""
        match t:
            case Var(name) if name not in self.names:
                return [t]
            case Number() | Scalar() | Absent() | Filled():
                return [t]
            case Run(name):
                return [*self.run(name)]
            case All(app):
                return [*self.app(app)]
            case Map():
                raise Misfit("a comprehension on the left side")
            case _:
                return [self.value(t)]

    def run(self, name: str) -> Sequence[Term | Value]:
        """A run of parameters: `name.0`, `name.1`, ... until they are values."""
        found = self.names.get(name)
        if isinstance(found, tuple):
            return [v for v in found if isinstance(v, (Input, Constant, Node))]
        return [Var(f"{name}.{n}") for n in range(self.draw.pick((1, 2, 2, 3)))]

    def finish_runs(self, t: App) -> None:
        """Give the runs among the operands of `t` their values."""
        for o in t.operands:
            if isinstance(o, Run) and o.name not in self.names:
                own = [n for n in self.names if n.rpartition(".")[0] == o.name]
                self.names[o.name] = tuple(self.names.pop(n) for n in own)

    def settled(self, t: App, pending: Sequence[tuple[str, Formula]]) -> dict[str, Attr]:
        """Attributes that have a value now that the operands are there, or a likely one."""
        found: dict[str, Attr] = {}
        for key, f in pending:
            try:
                found[key] = value_of(f, self.names, self.terms)  # type: ignore[assignment]
            except NotKnown:
                continue
        for key, f in t.attrs:
            if isinstance(f, Name) and f.id not in self.names:
                guess = self.likely(f.id)
                if guess is not None:
                    found[key] = guess  # type: ignore[assignment]
        return found

    def likely(self, name: str) -> Result:
        """One of the values that the rule's parameters suggest: `k: likely((0,), (1,))`."""
        for p in self.rule.params:
            if isinstance(p, AttrParam) and p.name == name and isinstance(p.kind, Call):
                return value_of(self.draw.pick(p.kind.args), self.names, self.terms)
        return None

    def attributes(
        self, t: App
    ) -> tuple[dict[str, Attr], frozenset[str], list[tuple[str, Formula]]]:
        """Attributes that are known, those to choose, those to choose now and compare later."""
        known: dict[str, Attr] = {}
        free: set[str] = set()
        pending: list[tuple[str, Formula]] = []
        for key, f in t.attrs:
            try:
                known[key] = value_of(f, self.names, self.terms)  # type: ignore[assignment]
            except NotKnown:
                free.add(key)
                if not isinstance(f, Name):
                    pending.append((key, f))
        mentioned = {key for key, _ in t.attrs}
        if t.rest is not None:
            bound = self.names.get(t.rest)
            if isinstance(bound, tuple):
                for pair in bound:
                    assert isinstance(pair, tuple)
                    if pair[0] not in mentioned:
                        known[str(pair[0])] = pair[1]  # type: ignore[assignment]
            else:
                free |= set(t.op.attrs) - mentioned
        return known, frozenset(free), pending

    def bind_attributes(self, t: App, n: Node) -> None:
        """Give attribute variables their values, as a match would."""
        mentioned = set()
        for key, f in t.attrs:
            mentioned.add(key)
            if isinstance(f, Name):
                got = n.attr(key)
                if f.id not in self.names:
                    self.names[f.id] = got  # type: ignore[assignment]
                elif not equal(self.names[f.id], got):  # type: ignore[arg-type]
                    raise Misfit(f"{f.id} has two values")
        if t.rest is not None:
            rest = tuple((k, v) for k, v in n.attrs if k not in mentioned)
            if self.names.setdefault(t.rest, rest) != rest:  # type: ignore[arg-type]
                raise Misfit(f"**{t.rest} has two values")

    # --- parameters -------------------------------------------------------------------------------

    def param(self, name: str) -> Param:
        for p in self.rule.params:
            if isinstance(p, Param) and p.name == (name.rpartition(".")[0] or name):
                return p
        raise Misfit(f"{name} is no parameter")

    def kind(self, kind: str) -> DType:
        """The element type that a parameter's kind stands for in this attempt."""
        if kind in DTYPES:
            return DTYPES[kind]
        if kind not in self.kinds:
            some = F64 if self.draw.chance(0.7) else F32
            match kind:
                case "f" | "g":
                    chosen = some
                case "i":
                    chosen = I64 if self.draw.chance(0.7) else I32
                case "bool":
                    chosen = BOOL
                case "num":
                    chosen = I64 if self.draw.chance(0.3) else some
                case _:
                    chosen = self.draw.pick((some, some, some, I64, BOOL))
            self.kinds[kind] = chosen
        return self.kinds[kind]

    def sibling(self, operands: Sequence[Term | Value]) -> DType:
        """The element type of numbers among these operands."""
        for o in operands:
            match o:
                case Var(name):
                    return self.kind(self.param(name).kind)
                case Input() | Constant() | Node():
                    assert o.type.dtype is not None
                    return o.type.dtype
                case _:
                    continue
        return self.kind("f")

    def hole(self, o: Term | Value) -> Hole:
        """What is known of an operand's shape."""
        match o:
            case Absent():
                return ABSENT
            case Filled():
                return None
            case Number() | Scalar():
                return () if self.draw.chance(0.7) else None
            case Var(name):
                shape = self.param(name).shape
                return None if shape is None else self.pattern(shape)
            case _:
                shape_known = o.type.shape  # type: ignore[union-attr]
                assert shape_known is not None
                return tuple(d if isinstance(d, int) else None for d in shape_known)

    def pattern(self, shape: tuple[Formula, ...]) -> Hole:
        """A parameter's declared shape, as far as its names have values."""
        out: list[int | None] = []
        for f in shape:
            if isinstance(f, Spread):
                assert isinstance(f.value, Name)
                name = f.value.id
                bound = self.names.get(name) or self.likely(name)
                if isinstance(bound, tuple):
                    out.extend(d if isinstance(d, int) else None for d in bound)
                else:
                    out.extend([None] * self.length(name, len(shape) - 1))
                continue
            try:
                d = value_of(f, self.names, self.terms)
                out.append(d if isinstance(d, int) else None)
            except NotKnown:
                guess = self.likely(f.id) if isinstance(f, Name) else None
                out.append(guess if isinstance(guess, int) else None)
        return tuple(out)

    def length(self, name: str, others: int) -> int:
        """How many axes `*name` stands for."""
        if name not in self.lengths:
            wanted = self.draw.style.rank
            by_style = max(0, min(wanted - others, 3)) if wanted is not None else -1
            self.lengths[name] = by_style if by_style >= 0 else self.draw.pick((0, 1, 1, 2))
        return self.lengths[name]

    def remembered(self, holes: tuple[Hole, ...], place: int) -> tuple[Hole, ...]:
        """Where nothing at all is known of an operand: often the shape of another parameter.

        So that `Concat(Relu(x), Relu(y))` has a chance: its operands are chosen apart.
        """
        alone = all(h is None or h == () or h is ABSENT for h in holes)
        if holes[place] is not None or not alone or not self.past or self.draw.chance(0.15):
            return holes
        shape: Hole = self.draw.pick(self.past)
        assert shape is not None
        if shape and self.draw.chance(0.45):
            at = self.draw.below(len(shape))
            shape = (*shape[:at], None, *shape[at + 1 :])
        return (*holes[:place], shape, *holes[place + 1 :])

    def commit(self, t: Term, shape: Shape, dtype: DType) -> Value:
        """A new operand of `shape`: an input, or a constant where its number matters."""
        if int(np.prod(shape)) > LARGEST or min(shape, default=1) < 0:
            raise Misfit(f"{shape} is too large")
        match t:
            case Number(number):
                return constant(np.full(shape, number, to_numpy(dtype)))
            case Scalar(f):
                return self.scalar(f, shape, dtype)
            case Var(name):
                p = self.param(name)
                self.bind_shape(p, shape)
                kind = self.kind(p.kind)
                if name in numbers_asked(self.rule):
                    number = self.likely(f"{name}_value")
                    if number is None:
                        number = self.draw.pick(NUMBERS if kind.is_float else INTEGERS)
                    made: Input | Constant = constant(np.full(shape, number, to_numpy(kind)))
                elif self.constants and name in constants_asked(self.rule):
                    content = np.array([self.draw.pick(NUMBERS) for _ in range(int(np.prod(shape)))])
                    made = constant(np.abs(content).reshape(shape).astype(to_numpy(kind)))
                    if shape:
                        self.past.append(shape)
                else:
                    made = Input(name, TensorType(kind, shape))
                    self.inputs.append(made)
                    if shape:
                        self.past.append(shape)
                self.names[name] = made
                self.terms[t] = made
                return made
            case _:
                raise Misfit("no operand")

    def scalar(self, f: Formula, shape: Shape, dtype: DType) -> Value:
        """`lit(n)` on the left: a constant whose number n is."""
        if isinstance(f, Name) and f.id not in self.names:
            self.names[f.id] = self.draw.pick(NUMBERS if dtype.is_float else INTEGERS)
        number = value_of(f, self.names, self.terms)
        return constant(np.full(shape, float(number), to_numpy(dtype)))  # type: ignore[arg-type]

    def bind_shape(self, p: Param, shape: Shape) -> None:
        """Give the names in a declared shape their sizes; Misfit where they have others."""
        if p.shape is None or p.run:
            return
        spreads = [n for n, f in enumerate(p.shape) if isinstance(f, Spread)]
        lead = spreads[0] if spreads else len(p.shape)
        tail = len(p.shape) - lead - 1 if spreads else 0
        if len(shape) < lead + tail or (not spreads and len(shape) != lead):
            raise Misfit(f"rank {len(shape)}")
        pairs: list[tuple[Formula, Result]] = list(zip(p.shape, shape[:lead], strict=False))
        if spreads:
            middle = p.shape[lead]
            assert isinstance(middle, Spread)
            pairs.append((middle.value, shape[lead : len(shape) - tail]))
            pairs += zip(p.shape[lead + 1 :], shape[len(shape) - tail :], strict=True)
        for f, got in pairs:
            if isinstance(f, Name) and f.id not in self.names:
                self.names[f.id] = got
            elif not equal(value_of(f, self.names, self.terms), got):
                raise Misfit(f"{f} is not {got}")
