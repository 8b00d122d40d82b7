"""The parameters of a rule in one attempt: element types, shapes, and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.ir.graph import Constant, Input, Node, Value, constant
from superopt.rules.facts import sibling_kind
from superopt.rules.functions import NotKnown, Result, equal, number
from superopt.rules.rule import Rule
from superopt.rules.sample.ask import ABSENT
from superopt.rules.sample.draw import Draw, Hole, Misfit, Shape
from superopt.rules.sample.formulas import asked, value_of
from superopt.rules.syntax import AttrParam, Param
from superopt.rules.term import (
    Absent,
    Call,
    Filled,
    Formula,
    Name,
    Number,
    Scalar,
    Spread,
    Term,
    Var,
)
from superopt.te.dtype import BOOL, DTYPES, F32, F64, I32, I64, DType, to_numpy
from superopt.te.expr import TensorType

LARGEST = 1 << 13  # elements of an operand
OWN = 4  # multiple of the literal size, if that is larger
MOST = 1 << 20  # largest literal size
# Numbers for constants that conditions use, exact in float32.
NUMBERS = (2.0, 0.5, 0.0, 1.0, -1.5, 3.0, 0.25, 6.0, -0.125)
INTEGERS = (0, 1, 2, 3, 5, -1, -2, 7, 9)


@dataclass(slots=True)
class Parameters:
    """The choices so far.

    constants: True if parameters with const(x) become constants, not inputs. names: the values of
    parameters, sizes and attribute variables. terms: of subterms. spread_lengths: how many axes
    each `*s` stands for. past_shapes: shapes of parameters, which others often share.
    """

    rule: Rule
    draw: Draw
    constants: bool = False
    inputs: list[Input] = field(default_factory=list)
    names: dict[str, Result] = field(default_factory=dict)
    terms: dict[Term, Value] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    past: list[Shape] = field(default_factory=list)
    kinds: dict[str, DType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for p in self.rule.params:
            if isinstance(p, AttrParam) and p.kind == Name("nat"):
                self.names[p.name] = self.draw.pick((1, 2, 2, 3))

    def likely(self, name: str) -> Result:
        """Return one of the values that the rule's parameters suggest: `k: likely((0,), (1,))`."""
        for p in self.rule.params:
            if isinstance(p, AttrParam) and p.name == name and isinstance(p.kind, Call):
                return value_of(self.draw.pick(p.kind.args), self.names, self.terms)
        return None

    def param(self, name: str) -> Param:
        for p in self.rule.params:
            if isinstance(p, Param) and p.name == (name.rpartition(".")[0] or name):
                return p
        raise Misfit(f"{name} is no parameter")

    def kind(self, kind: str) -> DType:
        """Return the element type that a parameter's kind stands for in this attempt."""
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
        """Return the element type of numbers among these operands: bools (conditions) come last."""
        return sibling_kind(map(self._kind_of, operands)) or self.kind("f")

    def _kind_of(self, o: Term | Value) -> DType | None:
        match o:
            case Var(name):
                return self.kind(self.param(name).kind)
            case Input() | Constant() | Node():
                return o.type.dtype
            case _:
                return None

    def hole(self, o: Term | Value) -> Hole:
        """Return the partial shape of an operand."""
        match o:
            case Absent():
                return ABSENT
            case Filled():
                return None
            case Number() | Scalar():
                return () if self.draw.chance(0.5) else None
            case Var(name):
                shape = self.param(name).shape
                return None if shape is None else self.pattern(shape)
            case _:
                shape_known = o.type.shape  # type: ignore[union-attr]
                assert shape_known is not None
                return tuple(d if isinstance(d, int) else None for d in shape_known)

    def pattern(self, shape: tuple[Formula, ...]) -> Hole:
        """Return a parameter's declared shape, as far as its names are bound."""
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
        """Return how many axes `*name` stands for."""
        if name not in self.lengths:
            wanted = self.draw.style.rank
            by_style = max(0, min(wanted - others, 3)) if wanted is not None else -1
            self.lengths[name] = by_style if by_style >= 0 else self.draw.pick((0, 1, 1, 2))
        return self.lengths[name]

    def remembered(self, holes: tuple[Hole, ...], place: int) -> tuple[Hole, ...]:
        """If nothing is known of an operand, often use the shape of another parameter.

        Otherwise `Concat(Relu(x), Relu(y))` would rarely fit: its operands are chosen separately.
        """
        alone = all(h is None or h == () or h is ABSENT for h in holes)
        if holes[place] is not None or not alone or not self.past or self.draw.chance(0.15):
            return holes
        shape: Hole = self.draw.pick(self.past)
        assert shape is not None
        if shape and self.draw.chance(0.5):
            at = self.draw.below(len(shape))
            shape = (*shape[:at], 1 if self.draw.chance(0.3) else None, *shape[at + 1 :])
        return (*holes[:place], shape, *holes[place + 1 :])

    def commit(self, t: Term, shape: Shape, dtype: DType) -> Value:
        """Return a new operand of `shape`: an input, or a constant if its number matters."""
        if int(np.prod(shape)) > self.largest(t) or min(shape, default=1) < 0:
            raise Misfit(f"{shape} is too large")
        match t:
            case Number(n):
                try:
                    return constant(np.full(shape, n, to_numpy(dtype)))
                except OverflowError as e:
                    raise Misfit(f"{n} is no {dtype}") from e
            case Scalar(f):
                return self.scalar(f, shape, dtype)
            case Var(name):
                p = self.param(name)
                self.bind_shape(p, shape)
                kind = self.kind(p.kind)
                if name in asked(self.rule).numbers:
                    guess = self.likely(f"{name}_value")
                    if guess is None:
                        guess = self.draw.pick(NUMBERS if kind.is_float else INTEGERS)
                    if isinstance(guess, tuple):
                        content = np.array([number(n) for n in guess])
                        if content.shape != shape:
                            raise Misfit(f"{len(guess)} numbers, not {shape}")
                    else:
                        content = np.full(shape, float(number(guess)))
                    made: Input | Constant = constant(content.astype(to_numpy(kind)))
                elif self.constants and name in asked(self.rule).constants:
                    content = np.array(
                        [self.draw.pick(NUMBERS) for _ in range(int(np.prod(shape)))]
                    )
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

    def largest(self, t: Term) -> int:
        """Return the largest number of elements of an operand: a rule for one large image has no
        small instance, except with few channels."""
        said = self.param(t.name).said if isinstance(t, Var) else 1
        return max(LARGEST, OWN * said) if said <= MOST else LARGEST

    def scalar(self, f: Formula, shape: Shape, dtype: DType) -> Value:
        """Return a constant for `lit(n)` on the left."""
        if isinstance(f, Name) and f.id not in self.names:
            self.names[f.id] = self.draw.pick(NUMBERS if dtype.is_float else INTEGERS)
        n = number(value_of(f, self.names, self.terms))
        return constant(np.full(shape, float(n)).astype(to_numpy(dtype)))

    def bind_shape(self, p: Param, shape: Shape) -> None:
        """Bind the names in a declared shape; raises Misfit if they have other sizes."""
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
