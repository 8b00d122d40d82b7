"""Choices in one attempt at an instance: shapes of parameters, constants, sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from superopt.ir.graph import Input
from superopt.rules.functions import NotKnown, Result, number
from superopt.rules.rule import Rule
from superopt.rules.sample.formulas import asked, prepared, value_of
from superopt.rules.syntax import Param
from superopt.rules.term import (
    Binary,
    Call,
    Compare,
    Filled,
    Formula,
    Lit,
    Name,
    Number,
    Of,
    Part,
    Scalar,
    Spread,
    Term,
    Var,
    rebuild,
    show,
    walk,
)
from superopt.te import index as ix
from superopt.te.dtype import BOOL, DTYPES, F32, DType
from superopt.te.expr import Dim, Tensor, cast, compute, const
from superopt.te.node import Expr, Size
from superopt.verifier.attributes import (
    FEW_STRETCHED,
    MOST_PARTS,
    RUNS,
    Unsupported,
    mark,
    marked,
)
from superopt.verifier.cases import either, ones, told
from superopt.verifier.constants import filled
from superopt.verifier.sizes import (
    Fork,
    Misfit,
    State,
    equated,
    taken,
    wider,
)
from superopt.verifier.vectors import FIRST, LENGTH, SECOND, runs, spoken, vector

VALUE = "value of "  # prefix of a parameter's name: the number that it holds

KINDS = {"f": F32, "g": F32, "num": F32, "any": F32, "bool": BOOL, "i": DTYPES["i64"]}
NUMBERS = (F32, DTYPES["i64"])
LOW = 2
AT_ONCE = {3: 2}  # by rank above MAX_UNRESTRICTED_RANK
NOTES: set[str] = set()  # what the instances of a rule leave out


@dataclass(frozen=True, slots=True)
class Ranks:
    """The range of ranks tried for operands of any shape."""

    least: int
    most: int


@dataclass(slots=True)
class Choices:
    """The parameters, constants and sizes of one attempt, determined by its state."""

    rule: Rule
    state: State
    ranks: Ranks
    numbers: Sequence[DType] = NUMBERS
    names: dict[str, Result] = field(default_factory=dict)
    terms: dict[Term, Input] = field(default_factory=dict)
    tensors: dict[Input, Tensor] = field(default_factory=dict)
    inputs: list[Tensor] = field(default_factory=list)
    on_right: bool = False
    memo: dict[object, object] = field(default_factory=dict)  # shared by all attempts
    questions: int = 0  # asked by operators
    at: str = ""  # the items that conditions are about
    open_orders: list[tuple[Dim, Dim]] = field(default_factory=list)  # orders that stayed undecided
    roots: dict[str, Expr] = field(default_factory=dict)  # sizes n, by names of 1 / sqrt(n)

    # --- what operators ask -----------------------------------------------------------------------

    def same(self, a: Dim, b: Dim) -> bool:
        self.questions += 1
        found = [s for s in equated(self.state, a, b, "right" if self.on_right else "") if s]
        if any(s is self.state for s in found):
            return True
        if not found:
            return False
        raise Fork(found)

    def undecided(self, a: Dim, b: Dim) -> bool:
        self.questions += 1
        known = taken(self.state, a, b)
        if known is None:
            self.open_orders.append((a, b))
        return known is True

    def stretched(self, a: Dim, b: Dim) -> bool:
        self.questions += 1
        found = [s for s in equated(self.state, a, b, "right" if self.on_right else "") if s]
        if any(s is self.state for s in found):
            return True
        # if both are 1 they are equal
        single = [s for p, q in ((a, b), (b, a)) for s in ones(wider(self.state, q), p)]
        if self.on_right:
            needs = " or ".join(f"{self.state.said(ix.as_index(d))} == 1" for d in (a, b))
            single = [s and replace(s, derived=(*s.derived, needs)) for s in single]
        if self.state.level > LOW:  # higher ranks have many combinations that add little
            if single and self.state.stretched >= AT_ONCE.get(self.state.level, 1):
                NOTES.add(FEW_STRETCHED)
                single = []
            once_more = self.state.stretched + 1
            single = [replace(s, stretched=once_more) for s in single if s is not None]
        raise Fork([*found, *single])

    def decided(self, fn: str, a: Dim, b: Dim) -> bool | None:
        self.questions += 1
        found = told(self.state, fn, a, b)
        if found is None:
            raise Fork(either(self.state, fn, a, b))
        return found

    def choose(
        self, key: str, values: Sequence[object], levels: Sequence[int] | None = None
    ) -> object:
        """Return one of the values. levels: for each value the rank level at which it is tried."""
        if key not in self.state.choices:
            if len(values) == 1:
                return values[0]
            some = levels or [0] * len(values)
            raise Fork([self.state.chosen(key, v, n) for v, n in zip(values, some, strict=True)])
        return self.state.choices[key]

    def fresh(self, name: str) -> Dim:
        """Return the size with this name: a free symbol unless the state fixes it."""
        return ix.dim(self.state.sizes.get(name, Size(name)))

    def tensor(self, r: Result) -> Tensor:
        if isinstance(r, Input) and r in self.tensors:
            return self.tensors[r]
        raise NotKnown(f"{r} is no value")

    def stand_in(self, t: Tensor) -> Input:
        out = Input(t.name, t.type)
        self.tensors[out] = t
        return out

    def formula(self, f: Formula) -> Result:
        f = self.spoken(f)
        if isinstance(f, Name) and f.id in self.names:
            return self.names[f.id]
        match f:
            case Binary("/", Lit(1), Call("sqrt", (g,))):
                n = self.formula(g)
                if isinstance(n, Expr):  # a marker number for 1 / sqrt(n)
                    self.roots[f"1 / sqrt({n})"] = n
                    return mark(f"1 / sqrt({n})")
            case _:
                pass
        if any(marked(self.names.get(n)) for n in prepared(f).names):
            raise Unsupported(f"{show(f)} of any number")
        if not self.on_right and self.asked():  # subterms in formulas
            for p in walk(f):
                if isinstance(p, Of) and p.term not in self.terms:
                    raise NotKnown(f"{p.term} has not been made yet")
        return value_of(f, self.names, self.terms)

    def asked(self) -> frozenset[Term]:
        """Return the subterms that formulas of the rule refer to."""
        found = self.memo.get("asked")
        if found is None:
            every = (*self.rule.lhs, *self.rule.rhs, *self.rule.where)
            found = self.memo["asked"] = frozenset(
                p.term for part in every for p in walk(part) if isinstance(p, Of)
            )
        assert isinstance(found, frozenset)
        return found

    # --- parameters -------------------------------------------------------------------------------

    def parameter(self, name: str) -> None:
        """Give a parameter a shape of symbols."""
        p = next(
            (p for p in self.rule.params if isinstance(p, Param) and p.name == name and not p.run),
            None,
        )
        if p is None or self.on_right:
            raise NotKnown(f"{name} has no value")
        self.input(name, p)

    def input(self, name: str, p: Param) -> Input:
        kind = DTYPES.get(p.kind) or KINDS[p.kind]
        if p.kind == "num":  # one type for all parameters
            one = self.choose("num", self.numbers)
            assert isinstance(one, DType)
            kind = one
        if p.shape is None:
            ranks = range(self.ranks.least, self.ranks.most + 1)
            rank = self.choose(f"rank {name}", ranks, ranks)
            assert isinstance(rank, int)
            shape = tuple(self.fresh(f"{name}{k}") for k in range(rank))
        else:
            shape = tuple(d for f in p.shape for d in self.declared(f, len(p.shape)))
        if name in self.runs():
            t = self.vector(name, kind, shape)
        elif name in self.valued():
            t = self.constant_of(name, kind, shape)
        else:
            t = self.kept(("input", name, kind, shape), lambda: Tensor(name, kind, shape))
            self.inputs.append(t)
        out = self.stand_in(t)
        if not p.run:
            self.names[name] = out
            self.terms[Var(name)] = out
        return out

    def constant_of(self, name: str, kind: DType, shape: tuple[Dim, ...]) -> Tensor:
        """Return a parameter that holds one number everywhere, which formulas use."""
        value: Result = self.stated(name)
        if isinstance(value, (int, float)):
            value = bool(value) if kind == BOOL else value
            element: Expr = const(value, kind)
        elif kind.is_float:
            value = mark(f"value of {name}")
            element = const(value, kind)
        elif kind.is_int:
            value = self.integer(name)
            element = cast(ix.as_index(value), kind)
        elif kind == BOOL:
            value = bool(self.choose(f"truth {name}", (0, 1)))
            element = const(value, kind)
        else:
            raise Unsupported(f"the value of {name}: {kind}")
        self.names[VALUE + name] = value
        return compute(shape, lambda *i: element, name=name)

    def runs(self) -> dict[str, str]:
        """Return the vectors that hold one or two runs of consecutive integers."""
        found = self.memo.get("runs")
        if found is None:
            found = self.memo["runs"] = runs(self.rule)
        assert isinstance(found, dict)
        return found

    def vector(self, name: str, kind: DType, shape: tuple[Dim, ...]) -> Tensor:
        """Return a parameter that holds one or two contiguous runs, which formulas use."""
        if len(shape) != 1 or not kind.is_int:
            raise Unsupported(f"the numbers of {name}")
        begins = [self.integer(f"{name}.{k}") for k in range(2 if self.runs()[name] else 1)]
        place: Dim = 0
        if self.runs()[name]:
            place = self.names[self.runs()[name]] = self.fresh(self.runs()[name])
        self.names.update({FIRST + name: begins[0], SECOND + name: begins[-1]})
        self.names[LENGTH + name] = shape[0]
        second = begins[1] if len(begins) > 1 else None
        return vector(kind, shape[0], begins[0], second, place, name)

    def integer(self, name: str) -> Dim:
        """Return any integer, as a symbol of either sign."""
        sign = self.choose(f"sign {name}", (1, -1))
        size = ix.as_index(self.fresh(f"{name}.value"))
        return ix.dim(size - 1 if sign == 1 else -size)

    def stated(self, name: str) -> int | float | None:
        """Return the number that a condition value(c) == 1 states for a parameter."""
        for f in self.rule.where:
            match f:
                case Compare(Call("value", (Name(n),)), (("==", Lit(v)),)) if n == name:
                    return v if isinstance(v, (int, float)) else None
                case _:
                    pass
        return None

    def valued(self) -> frozenset[str]:
        """Return the parameters whose value formulas use."""
        found = self.memo.get("valued")
        if found is None:
            found = self.memo["valued"] = asked(self.rule).numbers
        assert isinstance(found, frozenset)
        return found

    def spoken(self, f: Formula) -> Formula:
        """Return `f` with names in place of the values of parameters."""
        if not self.valued():
            return f
        key = ("spoken", id(f))
        found = self.memo.get(key)
        if found is None:

            def change(p: Part) -> Part | None:
                match p:
                    case Call("value", (Name(n),)):
                        return Name(VALUE + n)
                    case Call("all_equal", (Name(),)):
                        return Lit(True)
                    case _:
                        return None

            found = self.memo[key] = rebuild(spoken(f, self.runs()), change)
        return found  # type: ignore[return-value]

    def declared(self, f: Formula, others: int) -> list[Dim]:
        match f:
            case Spread(Name(s)):
                if s not in self.names:
                    lengths = range(max(self.ranks.most - others, 0) + 2)
                    levels = [n + others - 1 if n > 1 else 0 for n in lengths]
                    length = self.choose(f"rank {s}", lengths, levels)
                    assert isinstance(length, int)
                    self.names[s] = tuple(self.fresh(f"{s}_{k}") for k in range(length))
                found = self.names[s]
                assert isinstance(found, tuple)
                return [d for d in found if isinstance(d, (int, Expr))]
            case Name(n):
                if n not in self.names:
                    self.names[n] = self.fresh(n)
            case _:
                pass
        d = self.formula(f)
        if not isinstance(d, (int, Expr)):
            raise Misfit
        return [d]

    def run(self, name: str) -> Result:
        if name not in self.names:
            p = next(p for p in self.rule.params if isinstance(p, Param) and p.name == name)
            NOTES.add(RUNS)
            count = self.choose(f"count {name}", range(1, MOST_PARTS + 1))
            assert isinstance(count, int)
            self.names[name] = tuple(self.input(f"{name}.{k}", p) for k in range(count))
        return self.names[name]

    # --- constants --------------------------------------------------------------------------------

    def constant(self, t: Term, kind: DType, where: str = "") -> Tensor:
        """Return the tensor of a constant. position: a name of the operand position."""
        match t:
            case Number(v):
                return self.uniform(v, kind, where)
            case Scalar(Name(n)) if n not in self.names and not self.on_right:
                raise Unsupported(f"the number {n} of a constant")
            case Scalar(f):
                value = self.formula(f)
                if isinstance(value, Expr):
                    return self.sized(value, kind, where)
                return self.uniform(float(number(value)), kind, where)
            case Filled(what, args):
                given = [self.formula(a) for a in args]
                if isinstance(given[-1], DType):
                    kind = given[-1]
                    given = given[:-1]
                return filled(what, given, kind)
            case _:
                raise Misfit

    def uniform(self, v: int | float, kind: DType, where: str) -> Tensor:
        """Return a constant equal to v: a scalar on the right, of any shape on the left."""
        rank: object = 0
        if not self.on_right:
            ranks = range(self.ranks.most + 1)
            rank = self.choose(f"rank {v} {where}", ranks, ranks)
        assert isinstance(rank, int)
        shape = tuple(self.fresh(f"{v}.{where}.{k}") for k in range(rank))
        value = const(v, kind)
        return self.kept(
            ("uniform", v, type(v), kind, shape),
            lambda: compute(shape, lambda *i: value, name=str(v)),
        )

    def sized(self, v: Expr, kind: DType, where: str) -> Tensor:
        """Return a constant equal to a size: a scalar on the right, of any shape on the left."""
        ranks = range(1 if self.on_right else self.ranks.most + 1)
        rank = self.choose(f"rank size {where}", ranks, ranks)
        assert isinstance(rank, int)
        shape = tuple(self.fresh(f"size.{where}.{k}") for k in range(rank))
        return self.kept(
            ("size", v, kind, shape),
            lambda: compute(shape, lambda *i: cast(v, kind), name=str(v)),
        )

    def kept(self, key: object, make: Callable[[], Tensor]) -> Tensor:
        """Return one tensor for all attempts."""
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = make()
        assert isinstance(found, Tensor)
        return found
