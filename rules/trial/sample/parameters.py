"""The parameters of a rule in one attempt: element types, shapes, and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import numpy as np

from superopt.ir.graph import Constant, Input, Node, Value, constant
from superopt.rules.lang.functions import NotKnown, Result, are_equal, as_number
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import AttrParam, Param
from superopt.rules.lang.term import (
    Absent,
    Call,
    Fill,
    Formula,
    Name,
    Number,
    Scalar,
    Spread,
    Term,
    Var,
)
from superopt.rules.lang.value_facts import sibling_dtype
from superopt.rules.trial.sample.draw import Draw, PartialShape, RejectedChoice, Shape
from superopt.rules.trial.sample.formula_values import formula_value, parameter_uses
from superopt.rules.trial.sample.request import ABSENT
from superopt.te.expr.dtype import BOOL, DTYPES, F32, F64, I8, I32, I64, U8, DType, to_numpy
from superopt.te.expr.tensor import TensorType

MAX_ELEMENTS = 1 << 13  # elements of an operand
LITERAL_SIZE_FACTOR = 4  # multiple of the literal size, if that is larger
MAX_LITERAL_ELEMENTS = 1 << 20  # largest literal size
# Numbers for constants that conditions use, exact in float32.
FLOAT_VALUES = (2.0, 0.5, 0.0, 1.0, -1.5, 3.0, 0.25, 6.0, -0.125)
INTEGER_VALUES = (0, 1, 2, 3, 5, -1, -2, 7, 9)


@lru_cache(maxsize=1 << 8)
def _params_by_name(rule: Rule) -> dict[str, Param]:
    return {p.name: p for p in rule.params if isinstance(p, Param)}


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
    spread_lengths: dict[str, int] = field(default_factory=dict)
    past_shapes: list[Shape] = field(default_factory=list)
    kinds: dict[str, DType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for p in self.rule.params:
            if isinstance(p, AttrParam) and p.kind == Name("nat"):
                self.names[p.name] = self.draw.pick((1, 2, 2, 3))

    def likely_value(self, name: str) -> Result:
        """Return one of the values that the rule's parameters suggest: `k: likely((0,), (1,))`."""
        for p in self.rule.params:
            if isinstance(p, AttrParam) and p.name == name and isinstance(p.kind, Call):
                return formula_value(self.draw.pick(p.kind.args), self.names, self.terms)
        return None

    def find_param(self, name: str) -> Param:
        found = _params_by_name(self.rule).get(name.rpartition(".")[0] or name)
        if found is None:
            raise RejectedChoice(f"{name} is not a parameter")
        return found

    def element_type(self, kind: str) -> DType:
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
                case "q":
                    chosen = U8 if self.draw.chance(0.5) else I8
                case "bool":
                    chosen = BOOL
                case "num":
                    chosen = I64 if self.draw.chance(0.3) else some
                case _:
                    chosen = self.draw.pick((some, some, some, I64, BOOL))
            self.kinds[kind] = chosen
        return self.kinds[kind]

    def sibling_dtype(self, operands: Sequence[Term | Value]) -> DType:
        """Return the element type of numbers among these operands: bools (conditions) come last."""
        return sibling_dtype(map(self._kind_of, operands)) or self.element_type("f")

    def _kind_of(self, o: Term | Value) -> DType | None:
        match o:
            case Var(name):
                return self.element_type(self.find_param(name).kind)
            case Input() | Constant() | Node():
                return o.type.dtype
            case _:
                return None

    def partial_shape(self, o: Term | Value) -> PartialShape:
        """Return the partial shape of an operand."""
        match o:
            case Absent():
                return ABSENT
            case Fill():
                return None
            case Number() | Scalar():
                return () if self.draw.chance(0.5) else None
            case Var(name):
                shape = self.find_param(name).shape
                return None if shape is None else self.declared_shape(shape)
            case _:
                shape_known = o.type.shape  # type: ignore[union-attr]
                assert shape_known is not None
                return tuple(d if isinstance(d, int) else None for d in shape_known)

    def declared_shape(self, shape: tuple[Formula, ...]) -> PartialShape:
        """Return a parameter's declared shape, as far as its names are bound."""
        out: list[int | None] = []
        for f in shape:
            if isinstance(f, Spread):
                assert isinstance(f.value, Name)
                name = f.value.id
                bound = self.names.get(name) or self.likely_value(name)
                if isinstance(bound, tuple):
                    out.extend(d if isinstance(d, int) else None for d in bound)
                else:
                    out.extend([None] * self.spread_length(name, len(shape) - 1))
                continue
            try:
                d = formula_value(f, self.names, self.terms)
                out.append(d if isinstance(d, int) else None)
            except NotKnown:
                guess = self.likely_value(f.id) if isinstance(f, Name) else None
                out.append(guess if isinstance(guess, int) else None)
        return tuple(out)

    def spread_length(self, name: str, others: int) -> int:
        """Return how many axes `*name` stands for."""
        if name not in self.spread_lengths:
            wanted = self.draw.style.rank
            by_style = max(0, min(wanted - others, 3)) if wanted is not None else -1
            self.spread_lengths[name] = by_style if by_style >= 0 else self.draw.pick((0, 1, 1, 2))
        return self.spread_lengths[name]

    def reuse_past_shape(
        self, shapes: tuple[PartialShape, ...], place: int
    ) -> tuple[PartialShape, ...]:
        """If nothing is known of an operand, often use the shape of another parameter.

        Otherwise `Concat(Relu(x), Relu(y))` would rarely fit: its operands are chosen separately.
        """
        alone = all(h is None or h == () or h is ABSENT for h in shapes)
        if shapes[place] is not None or not alone or not self.past_shapes or self.draw.chance(0.15):
            return shapes
        shape: PartialShape = self.draw.pick(self.past_shapes)
        assert shape is not None
        if shape and self.draw.chance(0.5):
            at = self.draw.integer_below(len(shape))
            shape = (*shape[:at], 1 if self.draw.chance(0.3) else None, *shape[at + 1 :])
        return (*shapes[:place], shape, *shapes[place + 1 :])

    def make_operand(self, t: Term, shape: Shape, dtype: DType) -> Value:
        """Return a new operand of `shape`: an input, or a constant if its number matters."""
        if prod(shape) > self.max_elements(t) or min(shape, default=1) < 0:
            raise RejectedChoice(f"{shape} is too large")
        match t:
            case Number(n):
                try:
                    return constant(np.full(shape, n, to_numpy(dtype)))
                except OverflowError as e:
                    raise RejectedChoice(f"{n} is no {dtype}") from e
            case Scalar(f):
                return self.make_scalar(f, shape, dtype)
            case Var(name):
                p = self.find_param(name)
                self.bind_shape(p, shape)
                kind = self.element_type(p.kind)
                if name in parameter_uses(self.rule).numbers:
                    guess = self.likely_value(f"{name}_value")
                    if guess is None:
                        guess = self.draw.pick(FLOAT_VALUES if kind.is_float else INTEGER_VALUES)
                    if isinstance(guess, tuple):
                        content = np.array([as_number(n) for n in guess])
                        if content.shape != shape:
                            raise RejectedChoice(f"{len(guess)} numbers, not {shape}")
                    else:
                        content = np.full(shape, float(as_number(guess)))
                    made: Input | Constant = constant(content.astype(to_numpy(kind)))
                elif self.constants and name in parameter_uses(self.rule).constants:
                    content = np.array([self.draw.pick(FLOAT_VALUES) for _ in range(prod(shape))])
                    made = constant(np.abs(content).reshape(shape).astype(to_numpy(kind)))
                    if shape:
                        self.past_shapes.append(shape)
                else:
                    made = Input(name, TensorType(kind, shape))
                    self.inputs.append(made)
                    if shape:
                        self.past_shapes.append(shape)
                self.names[name] = made
                self.terms[t] = made
                return made
            case _:
                raise RejectedChoice("no operand")

    def max_elements(self, t: Term) -> int:
        """Return the largest number of elements of an operand: a rule for one large image has no
        small instance, except with few channels."""
        said = self.find_param(t.name).literal_elements if isinstance(t, Var) else 1
        return (
            max(MAX_ELEMENTS, LITERAL_SIZE_FACTOR * said)
            if said <= MAX_LITERAL_ELEMENTS
            else MAX_ELEMENTS
        )

    def make_scalar(self, f: Formula, shape: Shape, dtype: DType) -> Value:
        """Return a constant for `lit(n)` on the left."""
        if isinstance(f, Name) and f.id not in self.names:
            self.names[f.id] = self.draw.pick(FLOAT_VALUES if dtype.is_float else INTEGER_VALUES)
        n = as_number(formula_value(f, self.names, self.terms))
        return constant(np.full(shape, float(n)).astype(to_numpy(dtype)))

    def bind_shape(self, p: Param, shape: Shape) -> None:
        """Bind the names in a declared shape; raises RejectedChoice if they have other sizes."""
        if p.shape is None or p.is_run:
            return
        spreads = [n for n, f in enumerate(p.shape) if isinstance(f, Spread)]
        lead = spreads[0] if spreads else len(p.shape)
        tail = len(p.shape) - lead - 1 if spreads else 0
        if len(shape) < lead + tail or (not spreads and len(shape) != lead):
            raise RejectedChoice(f"rank {len(shape)}")
        pairs: list[tuple[Formula, Result]] = list(zip(p.shape, shape[:lead], strict=False))
        if spreads:
            middle = p.shape[lead]
            assert isinstance(middle, Spread)
            pairs.append((middle.value, shape[lead : len(shape) - tail]))
            pairs += zip(p.shape[lead + 1 :], shape[len(shape) - tail :], strict=True)
        for f, got in pairs:
            if isinstance(f, Name) and f.id not in self.names:
                self.names[f.id] = got
            elif not are_equal(formula_value(f, self.names, self.terms), got):
                raise RejectedChoice(f"{f} is not {got}")
