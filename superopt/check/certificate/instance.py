"""A rule whose names all stand for something: its left side, its conditions, its right side.

Nothing is matched and nothing is searched for. Both sides are built from what the names stand for;
the caller asks whether the left one is what the graph has. Only how a node is written is tried in
a few ways, those that mean the same: operands of a commutative operator in either order, operands
of a Concat one inside the other or flat, floats with 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from superopt.ir.graph import Node, Value, item, node, producer, results
from superopt.ir.op import Attr, Op
from superopt.rules.condition import Scope, compiled, truth
from superopt.rules.facts import as_attr, rounded, uniform
from superopt.rules.fills import ARRAYS, is_array
from superopt.rules.functions import NotKnown, Result, equal, number, sequence
from superopt.rules.make import NARY, attribute, filled, make, scalar
from superopt.rules.rule import Rule
from superopt.rules.syntax import CLASSES, LETTERS, Param
from superopt.rules.term import (
    Absent,
    All,
    App,
    Each,
    Filled,
    Formula,
    Lit,
    Map,
    Name,
    Number,
    Part,
    Pick,
    Run,
    Scalar,
    Seq,
    Term,
    Var,
    rebuild,
    show,
    walk,
)
from superopt.te.dtype import BOOL, DTYPES, I64, DType

Literal = Number | Scalar | Filled
Local = Mapping[str, Result]  # the variables of comprehensions


@dataclass(slots=True)
class Instance:
    """`rule` where each name stands for `given[name]`.

    constants: what the numbers and fills of the left side are, in order. there: is a node one of
    the graph's? unread: is a value read by nothing but these nodes? matched: the terms of the left
    side, once built.
    """

    rule: Rule
    given: Mapping[str, Result]
    constants: Sequence[Value]
    there: Callable[[Node], bool]
    unread: Callable[[Value, set[Node | None]], bool]
    matched: dict[Term, Value] = field(default_factory=dict)
    _taken: int = 0

    def formula(self, f: Formula, local: Local | None = None) -> Result:
        """The value of `f`. NotKnown where it has none."""
        if isinstance(f, Lit):
            return f.value
        env = {**self.given, **(local or {})}
        cells: list[Result] = [*env.values(), *self.matched.values()]
        terms = {t: len(env) + k for k, t in enumerate(self.matched)}
        scope = Scope({n: k for k, n in enumerate(env)}, terms, [None] * len(cells))
        own = {producer(v) for v in self.matched.values()}
        run = compiled(f, scope, lambda _, v: self.unread(v, own))  # type: ignore[arg-type]
        return run([*cells, *[None] * (len(scope.used) - len(cells))])

    def read(self, condition: Formula) -> str:
        """A condition as it reads with the sizes and attributes that the names stand for."""
        operands = {p.name for p in self.rule.params if isinstance(p, Param)}

        def value(p: Part) -> Part | None:
            if not isinstance(p, Name) or p.id in operands or p.id not in self.given:
                return None
            return Lit(self.given[p.id])  # type: ignore[arg-type]

        loops = any(isinstance(p, Each) for p in walk(condition))
        return show(condition if loops else rebuild(condition, value))

    def holds(self, condition: Formula) -> bool:
        """Does a condition hold? What is not known does not."""
        try:
            return truth(self.formula(condition))
        except NotKnown:
            return False

    def typed(self, p: Param) -> bool:
        """Are the values of parameter `p` of its element type and shape?"""
        alike = [q.name for q in self.rule.params if isinstance(q, Param) and q.kind == p.kind]
        if p.kind in LETTERS and len({v.type.dtype for n in alike for v in self.run(n)}) > 1:
            return False
        allowed = LETTERS.get(p.kind) or CLASSES.get(p.kind, "")
        for v in self.run(p.name):
            d = v.type.dtype
            if p.kind != "any" and d != DTYPES.get(p.kind) and (d is None or d.kind not in allowed):
                return False
            if p.shape is not None and not equal(v.type.shape, self.formula(Seq(p.shape))):
                return False
        return True

    def run(self, name: str) -> tuple[Value, ...]:
        """The value, or the run of values, of a parameter."""
        v = self.given[name]
        return v if isinstance(v, tuple) else (v,)  # type: ignore[return-value]

    def left(self) -> list[Value]:
        """The values that the left side gives. NotKnown where a constant is not what it says."""
        single = len(self.rule.lhs) == 1
        out: list[Value] = []
        for t in self.rule.lhs:
            one = t if not isinstance(t, App) else All(t) if single else Pick(t, 0)
            out += self.built(one, None, {}, left=True)  # type: ignore[arg-type]
        if self._taken != len(self.constants):
            raise NotKnown(f"its left side has {self._taken} constants, not {len(self.constants)}")
        return out

    def right(self, dtype: DType | None) -> list[Value]:
        """The values of the right side; numbers without operands beside them are of `dtype`."""
        single = len(self.rule.rhs) == 1
        terms = [All(t) if single and isinstance(t, App) else t for t in self.rule.rhs]
        out = [v for t in terms for v in self.built(t, dtype, {})]
        if None in out:
            raise NotKnown("a result of its right side is absent")
        return out  # type: ignore[return-value]

    def built(
        self, t: Term, dtype: DType | None, local: Local, left: bool = False
    ) -> Sequence[Value | None]:
        """The values that the term adds to a list of operands or results."""
        match t:
            case Var(name):
                return (local[name] if name in local else self.given[name],)  # type: ignore
            case Run(name):
                return self.run(name)
            case Absent():
                return (None,)
            case App():
                (only,) = results(self.node(t, dtype, local, left))
                return (only,)
            case Pick(app, k):
                n = self.node(app, dtype, local, left)
                if k >= len(n.types):
                    raise NotKnown(f"{app.op.name} has no result {k}")
                if left:
                    self.matched[t] = item(n, k)
                return (item(n, k),)
            case All(app):
                return results(self.node(app, dtype, local, left))
            case Map(body, own, over):
                return list(self._mapped(body, own, over, dtype, local))
            case _ if left:
                return (self._constant(t),)
        assert dtype is not None
        match t:
            case Number(v):
                return (scalar(v, dtype),)
            case Scalar(f):
                return (scalar(number(self.formula(f, local)), dtype),)
            case Filled(kind, args):
                return (filled(kind, [self.formula(a, local) for a in args], dtype),)

    def _mapped(
        self, body: Term, own: Sequence[str], over: Formula | App, dtype: DType | None, local: Local
    ) -> Iterator[Value | None]:
        if isinstance(over, App):
            items: Sequence[Result] = self.built(All(over), dtype, local)
        else:
            items = sequence(self.formula(over, local))
        for one in items:
            parts = (one,) if len(own) == 1 else sequence(one)
            yield from self.built(body, dtype, {**local, **dict(zip(own, parts, strict=True))})

    def _constant(self, t: Literal) -> Value:
        """The next constant of the left side, which is what `t` says."""
        if self._taken >= len(self.constants):
            raise NotKnown(f"no constant is given for {show(t)}")
        v = self.constants[self._taken]
        self._taken += 1
        match t:
            case Filled(kind, args):
                extent = self.formula(args[0])
                shape = (extent, extent) if kind == "eye" else extent
                content = self.formula(args[1]) if kind == "full" else int(kind != "zeros")
                fits = is_array(kind, v) if kind in ARRAYS else _is(v, content)
                fits = fits and equal(v.type.shape, shape)
            case Number(wanted):
                fits = _is(v, wanted)
            case Scalar(f):
                fits = _is(v, self.formula(f))
        if not fits:
            raise NotKnown(f"the constant given for {show(t)} is another")
        return v

    def node(self, t: App, default: DType | None, local: Local, left: bool) -> Node:
        """The operator of `t` applied; numbers take the type of elements of what is beside them."""
        if left and t in self.matched:
            return self.matched[t]  # type: ignore[return-value]
        late = () if left else (Number, Scalar, Filled)
        some = [None if isinstance(o, late) else self.built(o, default, local, left)
                for o in t.operands]  # fmt: skip
        kinds = [v.type.dtype for one in some for v in one or () if v is not None]
        beside = next((k for k in kinds if k != BOOL), kinds[0] if kinds else default)
        values: list[Value | None] = []
        for o, one in zip(t.operands, some, strict=True):
            index = t.op.name.startswith("Gather") and len(values) == 1
            values += self.built(o, I64 if index else beside, local) if one is None else one
        attrs: dict[str, Attr] = {} if t.rest is None else dict(self.given[t.rest])  # type: ignore
        attrs |= {k: attribute(self.formula(f, local)) for k, f in t.attrs}
        if not left:
            return make(t.op, values, attrs)
        self.matched[t] = found = self._written(t.op, values, attrs)
        return found

    def _written(self, op: Op, values: list[Value | None], attrs: dict[str, Attr]) -> Node:
        """The operator applied, as the graph writes it."""
        swaps = "commutative" in op.laws and len(values) == 2
        first: Node | None = None
        for flat in (False, True) if op.name in NARY else (False,):
            for given in (values, values[::-1]) if swaps else (values,):
                for said in (attrs, {k: _stored(v) for k, v in attrs.items()}):
                    n = make(op, given, said) if flat else node(op, given, **said)
                    if self.there(n):
                        return n
                    first = first or n
        assert first is not None
        return first


def _is(v: Value, wanted: Result) -> bool:
    """Is `v` a constant all of whose elements are this number?"""
    found, dtype = uniform(v), v.type.dtype
    return found is not None and dtype is not None and found == rounded(number(wanted), dtype)


def _stored(a: Attr) -> Attr:
    """An attribute with its floats as ONNX stores them."""
    if isinstance(a, tuple):
        return tuple(map(_stored, a))
    return as_attr(a) if isinstance(a, float) else a
