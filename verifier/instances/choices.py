"""Choices in one attempt at an instance: shapes and values of parameters, constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from superopt.ir.graph import Input
from superopt.rules.lang.functions import NotKnown, Result, as_number
from superopt.rules.lang.printer import show
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import (
    Binary,
    Call,
    Compare,
    Fill,
    Formula,
    Lit,
    Name,
    Number,
    Part,
    Scalar,
    Spread,
    Term,
    TermValue,
    Var,
    rebuild,
    walk,
)
from superopt.rules.trial.sample.formula_values import formula_value, parameter_uses, prepare
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, DTYPES, F32, DType
from superopt.te.expr.node import Expr, Size
from superopt.te.expr.tensor import Dim, Tensor, cast, compute, const
from superopt.verifier.instances.attributes import (
    MAX_PARTS,
    RUNS_NOTE,
    Unsupported,
)
from superopt.verifier.instances.constants import fill_tensor
from superopt.verifier.instances.size_questions import SizeQuestions
from superopt.verifier.instances.sizes import Fork, RejectedChoice
from superopt.verifier.instances.vectors import (
    FIRST_PREFIX,
    LENGTH_PREFIX,
    SECOND_PREFIX,
    contiguous_vector,
    contiguous_vectors,
    replace_items,
)

VALUE_PREFIX = "value of "  # prefix of a parameter's name: the number that it holds

KIND_TYPES = {
    "f": F32,
    "g": F32,
    "num": F32,
    "any": F32,
    "bool": BOOL,
    "i": DTYPES["i64"],
    "q": DTYPES["u8"],
}
NUMBER_TYPES = (F32, DTYPES["i64"])


@lru_cache(maxsize=1 << 12)
def _size(name: str) -> Size:
    """Return the symbol, one object for each name: equal symbols compare at once."""
    return Size(name)


@dataclass(frozen=True, slots=True)
class Ranks:
    """The range of ranks tried for operands of any shape."""

    min_rank: int
    max_rank: int


@dataclass(slots=True)
class Choices(SizeQuestions):
    """The parameters and constants of one attempt, determined by its state."""

    rule: Rule
    ranks: Ranks
    number_types: Sequence[DType] = NUMBER_TYPES
    names: dict[str, Result] = field(default_factory=dict)
    terms: dict[Term, Input] = field(default_factory=dict)
    tensors: dict[Input, Tensor] = field(default_factory=dict)
    inputs: list[Tensor] = field(default_factory=list)
    memo: dict[object, object] = field(default_factory=dict)  # shared by all attempts
    results: dict[object, object] = field(default_factory=dict)  # of operators, and constants
    item_path: str = ""  # the items that conditions are about
    size_roots: dict[str, Expr] = field(default_factory=dict)  # sizes n, by names of 1 / sqrt(n)

    def choose(
        self, key: str, values: Sequence[object], levels: Sequence[int] | None = None
    ) -> object:
        """Return one of the values. levels: for each value the rank level at which it is tried."""
        if key not in self.state.choices:
            if len(values) == 1:
                return values[0]
            ranks = levels or [0] * len(values)
            raise Fork(
                [self.state.with_choice(key, v, n) for v, n in zip(values, ranks, strict=True)]
            )
        return self.state.choices[key]

    def fresh_size(self, name: str) -> Dim:
        """Return the size with this name: a free symbol unless the state fixes it."""
        found = self.state.sizes.get(name)
        return _size(name) if found is None else index.dim(found)

    def tensor(self, r: Result) -> Tensor:
        if isinstance(r, Input) and r in self.tensors:
            return self.tensors[r]
        raise NotKnown(f"{r} is not a value")

    def stand_in(self, t: Tensor) -> Input:
        out = Input(t.name, t.type)
        self.tensors[out] = t
        return out

    def formula_value(self, f: Formula) -> Result:
        f = self.with_value_names(f)
        if isinstance(f, Name) and f.id in self.names:
            return self.names[f.id]
        match f:
            case Binary("/", Lit(1), Call("sqrt", (g,))):
                n = self.formula_value(g)
                if isinstance(n, Expr):  # a marker number for 1 / sqrt(n)
                    self.size_roots[f"1 / sqrt({n})"] = n
                    return self.context.unknowns.mark(f"1 / sqrt({n})")
            case _:
                pass
        unknowns = self.context.unknowns
        if unknowns.mark_by_name and any(
            unknowns.name(self.names.get(n)) for n in prepare(f).names
        ):
            raise Unsupported(f"{show(f)} of any number")
        if not self.is_right_side and self.subterms_in_formulas():  # subterms in formulas
            for p in walk(f):
                if isinstance(p, TermValue) and p.term not in self.terms:
                    raise NotKnown(f"{p.term} has not been made yet")
        return formula_value(f, self.names, self.terms)

    def subterms_in_formulas(self) -> frozenset[Term]:
        """Return the subterms that formulas of the rule refer to."""
        found = self.memo.get("asked")
        if found is None:
            every = (*self.rule.lhs, *self.rule.rhs, *self.rule.where)
            found = self.memo["asked"] = frozenset(
                p.term for part in every for p in walk(part) if isinstance(p, TermValue)
            )
        assert isinstance(found, frozenset)
        return found

    # --- parameters -------------------------------------------------------------------------------

    def bind_parameter(self, name: str) -> None:
        """Give a parameter a shape of symbols."""
        p = next(
            (
                p
                for p in self.rule.params
                if isinstance(p, Param) and p.name == name and not p.is_run
            ),
            None,
        )
        if p is None or self.is_right_side:
            raise NotKnown(f"{name} has no value")
        self.make_input(name, p)

    def make_input(self, name: str, p: Param) -> Input:
        kind = DTYPES.get(p.kind) or KIND_TYPES[p.kind]
        if p.kind == "num":  # one type for all parameters
            one = self.choose("num", self.number_types)
            assert isinstance(one, DType)
            kind = one
        if p.shape is None:
            ranks = range(self.ranks.min_rank, self.ranks.max_rank + 1)
            rank = self.choose(f"rank {name}", ranks, ranks)
            assert isinstance(rank, int)
            shape = tuple(self.fresh_size(f"{name}{k}") for k in range(rank))
        else:
            shape = tuple(d for f in p.shape for d in self.declared_dims(f, len(p.shape)))
        if name in self.contiguous_vectors():
            t = self.make_vector(name, kind, shape)
        elif name in self.valued_parameters():
            t = self.make_constant(name, kind, shape)
        else:
            t = self.cached_tensor(("input", name, kind, shape), lambda: Tensor(name, kind, shape))
            self.inputs.append(t)
        out = self.stand_in(t)
        if not p.is_run:
            self.names[name] = out
            self.terms[Var(name)] = out
        return out

    def make_constant(self, name: str, kind: DType, shape: tuple[Dim, ...]) -> Tensor:
        """Return a parameter that holds one number everywhere, which formulas use."""
        value: Result = self.stated_value(name)
        if isinstance(value, (int, float)):
            value = bool(value) if kind == BOOL else value
            element: Expr = const(value, kind)
        elif kind.is_float:
            value = self.context.unknowns.mark(f"value of {name}")
            element = const(value, kind)
        elif kind.is_int:
            value = self.any_integer(name)
            element = cast(index.as_index(value), kind)
        elif kind == BOOL:
            value = bool(self.choose(f"truth {name}", (0, 1)))
            element = const(value, kind)
        else:
            raise Unsupported(f"the value of {name}: {kind}")
        self.names[VALUE_PREFIX + name] = value
        return compute(shape, lambda *i: element, name=name)

    def contiguous_vectors(self) -> dict[str, str]:
        """Return the vectors that hold one or two runs of consecutive integers."""
        found = self.memo.get("runs")
        if found is None:
            found = self.memo["runs"] = contiguous_vectors(self.rule)
        assert isinstance(found, dict)
        return found

    def make_vector(self, name: str, kind: DType, shape: tuple[Dim, ...]) -> Tensor:
        """Return a parameter that holds one or two contiguous runs, which formulas use."""
        if len(shape) != 1 or not kind.is_int:
            raise Unsupported(f"the numbers of {name}")
        begins = [
            self.any_integer(f"{name}.{k}")
            for k in range(2 if self.contiguous_vectors()[name] else 1)
        ]
        place: Dim = 0
        if self.contiguous_vectors()[name]:
            place = self.names[self.contiguous_vectors()[name]] = self.fresh_size(
                self.contiguous_vectors()[name]
            )
        self.names.update({FIRST_PREFIX + name: begins[0], SECOND_PREFIX + name: begins[-1]})
        self.names[LENGTH_PREFIX + name] = shape[0]
        second = begins[1] if len(begins) > 1 else None
        return contiguous_vector(kind, shape[0], begins[0], second, place, name)

    def any_integer(self, name: str) -> Dim:
        """Return any integer, as a symbol of either sign."""
        sign = self.choose(f"sign {name}", (1, -1))
        size = index.as_index(self.fresh_size(f"{name}.value"))
        return index.dim(size - 1 if sign == 1 else -size)

    def stated_value(self, name: str) -> int | float | None:
        """Return the number that a condition value(c) == 1 states for a parameter."""
        for f in self.rule.where:
            match f:
                case Compare(Call("value", (Name(n),)), (("==", Lit(v)),)) if n == name:
                    return v if isinstance(v, (int, float)) else None
                case _:
                    pass
        return None

    def valued_parameters(self) -> frozenset[str]:
        """Return the parameters whose value formulas use."""
        found = self.memo.get("valued")
        if found is None:
            found = self.memo["valued"] = parameter_uses(self.rule).numbers
        assert isinstance(found, frozenset)
        return found

    def with_value_names(self, f: Formula) -> Formula:
        """Return `f` with names in place of the values of parameters."""
        if not self.valued_parameters():
            return f
        key = ("spoken", id(f))
        found = self.memo.get(key)
        if found is None:

            def change(p: Part) -> Part | None:
                match p:
                    case Call("value", (Name(n),)):
                        return Name(VALUE_PREFIX + n)
                    case Call("all_equal", (Name(),)):
                        return Lit(True)
                    case _:
                        return None

            found = self.memo[key] = rebuild(replace_items(f, self.contiguous_vectors()), change)
        return found  # type: ignore[return-value]

    def declared_dims(self, f: Formula, others: int) -> list[Dim]:
        match f:
            case Spread(Name(s)):
                if s not in self.names:
                    lengths = range(max(self.ranks.max_rank - others, 0) + 2)
                    levels = [n + others - 1 if n > 1 else 0 for n in lengths]
                    length = self.choose(f"rank {s}", lengths, levels)
                    assert isinstance(length, int)
                    self.names[s] = tuple(self.fresh_size(f"{s}_{k}") for k in range(length))
                found = self.names[s]
                assert isinstance(found, tuple)
                return [d for d in found if isinstance(d, (int, Expr))]
            case Name(n):
                if n not in self.names:
                    self.names[n] = self.fresh_size(n)
            case _:
                pass
        d = self.formula_value(f)
        if not isinstance(d, (int, Expr)):
            raise RejectedChoice
        return [d]

    def operand_run(self, name: str) -> Result:
        if name not in self.names:
            p = next(p for p in self.rule.params if isinstance(p, Param) and p.name == name)
            self.context.scope_notes.add(RUNS_NOTE)
            count = self.choose(f"count {name}", range(1, MAX_PARTS + 1))
            assert isinstance(count, int)
            self.names[name] = tuple(self.make_input(f"{name}.{k}", p) for k in range(count))
        return self.names[name]

    # --- constants --------------------------------------------------------------------------------

    def constant(self, t: Term, kind: DType, position: str = "") -> Tensor:
        """Return the tensor of a constant. position: a name of the operand position."""
        match t:
            case Number(v):
                return self.uniform_constant(v, kind, position)
            case Scalar(Name(n)) if n not in self.names and not self.is_right_side:
                raise Unsupported(f"the number {n} of a constant")
            case Scalar(f):
                value = self.formula_value(f)
                if isinstance(value, Expr):
                    return self.size_constant(value, kind, position)
                return self.uniform_constant(float(as_number(value)), kind, position)
            case Fill(name, args):
                given = [self.formula_value(a) for a in args]
                if isinstance(given[-1], DType):
                    kind = given[-1]
                    given = given[:-1]
                return fill_tensor(name, given, kind)
            case _:
                raise RejectedChoice

    def uniform_constant(self, v: int | float, kind: DType, position: str) -> Tensor:
        """Return a constant equal to v: a scalar on the right, of any shape on the left."""
        rank: object = 0
        if not self.is_right_side:
            ranks = range(self.ranks.max_rank + 1)
            rank = self.choose(f"rank {v} {position}", ranks, ranks)
        assert isinstance(rank, int)
        shape = tuple(self.fresh_size(f"{v}.{position}.{k}") for k in range(rank))
        value = const(v, kind)
        return self.cached_tensor(
            ("uniform", v, type(v), kind, shape),
            lambda: compute(shape, lambda *i: value, name=str(v)),
        )

    def size_constant(self, v: Expr, kind: DType, position: str) -> Tensor:
        """Return a constant equal to a size: a scalar on the right, of any shape on the left."""
        ranks = range(1 if self.is_right_side else self.ranks.max_rank + 1)
        rank = self.choose(f"rank size {position}", ranks, ranks)
        assert isinstance(rank, int)
        shape = tuple(self.fresh_size(f"size.{position}.{k}") for k in range(rank))
        return self.cached_tensor(
            ("size", v, kind, shape),
            lambda: compute(shape, lambda *i: cast(v, kind), name=str(v)),
        )

    def cached_tensor(self, key: object, make: Callable[[], Tensor]) -> Tensor:
        """Return one tensor for all attempts."""
        found = self.results.get(key)
        if found is None:
            found = self.results[key] = make()
        assert isinstance(found, Tensor)
        return found
