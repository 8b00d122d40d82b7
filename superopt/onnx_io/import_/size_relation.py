"""A model with its sizes related, so that what operators ask of sizes is known.

An operator compares sizes to check its operands and to simplify its attributes: an attention mask
of length `total` is added to scores of length past + sequence, a table of positions is cut at
min(past + sequence, 1024), an axis is split into equal parts. A relation gives each size as an
expression of new sizes, such that these comparisons are decided as at an example; a size of 0
becomes the number, for which tensor expressions have no symbol.

`relate_by_guards` takes the answers at the example, each of which is a guard, and replaces a size
that must be equal to an expression. `relate_by_replacement` replaces sizes until the answers are
known for all values of the new sizes:

    compared, at the example      replacement
    n == e                        n = e
    n // d, n % d with others     n = d t + r        r: the remainder at the example
    n + a >= b                    n = b - a + t - 1
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from superopt.errors import ModelError
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.te.analysis.size_oracle import use_size_oracle
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL
from superopt.te.expr.node import Apply, Const, Dim, Expr, Size

MAX_REPLACED_SIZES = 16  # a limit for imports of a model
MAX_ROUNDS = 8  # imports of a model, each with one more replacement

Guards = dict[Expr, bool]  # comparisons of sizes, and whether they hold
Comparison = tuple[str, Expr, Expr]  # "eq", "le" or "lt", and what is compared


@dataclass(frozen=True, slots=True)
class SizeRelation:
    """replacements: of the model's sizes, in new sizes. values: of the new sizes, in the model's.
    guards: of the model's sizes, under which the relation holds for positive new sizes."""

    replacements: Mapping[str, Dim]
    values: Mapping[str, Expr]
    guards: Mapping[Expr, bool] = field(default_factory=dict)

    @classmethod
    def of_sizes(cls, sizes: Mapping[str, int], fixed: Collection[str] = ()) -> SizeRelation:
        """Return the relation in which sizes of 0, and those in `fixed`, are numbers."""
        known = {name: n for name, n in sizes.items() if n == 0 or name in fixed}
        others: dict[str, Expr] = {name: Size(name) for name in sizes if name not in known}
        guards = {_equality(Size(name), index.as_index(n)): True for name, n in known.items()}
        return cls({**others, **known}, others, guards)

    @property
    def is_identity(self) -> bool:
        """True if all sizes are the model's, with no guard."""
        return not self.guards and all(Size(name) == e for name, e in self.values.items())

    def example(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the new sizes at given sizes of the model."""
        return {name: index.evaluate(e, dict(sizes)) for name, e in self.values.items()}

    def model_sizes(self, new: Mapping[str, int]) -> dict[str, int]:
        """Return the model's sizes at given new sizes."""
        return {name: index.evaluate(d, dict(new)) for name, d in self.replacements.items()}

    def assumed_guards(self) -> Guards:
        """Return the guards that do not follow from the replacements, in new sizes."""
        new: dict[Expr, Expr] = {Size(k): index.as_index(d) for k, d in self.replacements.items()}
        found = {index.substitute(g, new): holds for g, holds in self.guards.items()}
        return {g: holds for g, holds in found.items() if not isinstance(g, Const)}

    def with_guards(self, guards: Mapping[Expr, bool]) -> SizeRelation:
        """Return the relation with more guards, in new sizes."""
        here: dict[Expr, Expr] = {Size(k): e for k, e in self.values.items()}
        more = {index.substitute(g, here): holds for g, holds in guards.items()}
        return replace(self, guards={**self.guards, **more})

    def replace_size(
        self, name: str, made: Dim, new: Mapping[str, Expr], guard: Expr | None = None
    ) -> SizeRelation:
        """Return the relation with `made` in place of a new size. new: the values of the sizes that
        come with it, and `guard`, in the present ones."""
        guarded = self if guard is None else self.with_guards({guard: True})
        here: dict[Expr, Expr] = {Size(k): e for k, e in self.values.items()}
        change: dict[Expr, Expr] = {Size(name): index.as_index(made)}
        values = {k: e for k, e in self.values.items() if k != name}
        values |= {k: index.substitute(e, here) for k, e in new.items()}
        olds = {k: index.as_index(d) for k, d in self.replacements.items()}
        replacements = {k: index.dim(index.substitute(e, change)) for k, e in olds.items()}
        return replace(guarded, replacements=replacements, values=values)

    def equate(self, name: str, value: Expr) -> SizeRelation:
        """Return the relation in which a new size has a value, in the others."""
        return self.replace_size(name, index.dim(value), {}, _equality(Size(name), value))


RelatedModel = tuple[Model, SizeRelation]


def _equality(a: Expr, b: Expr) -> Expr:
    return Apply("eq", (a, b), BOOL)


def _symbols(a: Expr, b: Expr) -> frozenset[str]:
    return index.symbols(a) | index.symbols(b)


def _holds(comparison: Comparison, sizes: Mapping[str, int]) -> bool:
    fn, a, b = comparison
    x, y = (index.evaluate(e, dict(sizes)) for e in (a, b))
    return {"lt": x < y, "le": x <= y, "eq": x == y}[fn]


def _solve_equality(a: Expr, b: Expr) -> tuple[str, Expr] | None:
    """Return a size and what it equals where a == b; None if neither side is a size, and none has
    the factor 1 or -1."""
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Size) and x.name not in index.symbols(y):
            return x.name, y
    found = next(_isolate_sizes(index.as_index(b - a)), None)
    if found is None:
        return None
    s, factor, others = found
    return s.name, index.as_index(others * -factor)


def _isolate_sizes(e: Expr) -> Iterator[tuple[Size, int, Expr]]:
    """Yield sizes that occur in a sum of products of sizes once, with a factor of 1 or -1, and the
    other terms."""
    p = index.polynomial(e)
    if not all(isinstance(atom, Size) for m in p for atom in m):
        return
    alone = [(m[0], c) for m, c in p.items() if len(m) == 1 and abs(c) == 1]
    for s, c in sorted(alone, key=lambda found: str(found[0]), reverse=True):
        others = index.as_index(e - s * c)
        if isinstance(s, Size) and s.name not in index.symbols(others):
            yield s, c, others


class _EqualSizesError(Exception):
    """An operator needs a size to have a value, in the others."""


@dataclass(frozen=True, slots=True)
class _ExampleOracle:
    """A SizeOracle that answers by example sizes. equates: sizes that are compared are equal.
    guards: the answers."""

    sizes: Mapping[str, int]
    equates: bool = False
    guards: Guards = field(default_factory=dict)

    def are_equal(self, a: Dim, b: Dim) -> bool:
        if not self.compare("eq", a, b) and not self.equates:
            return False
        x, y = index.as_index(a), index.as_index(b)
        if (found := _solve_equality(x, y)) is None:
            raise ValueError(f"{x} == {y} is not solved for a size")
        raise _EqualSizesError(*found)

    is_broadcast_equal = are_equal

    def is_at_most(self, a: Dim, b: Dim) -> bool:
        return self.compare("le", a, b)

    def compare(self, fn: str, a: Dim, b: Dim) -> bool:
        x, y = index.as_index(a), index.as_index(b)
        if not _symbols(x, y) <= self.sizes.keys():
            raise ValueError(f"{x} or {y} is known only at run time")
        holds = self.guards[Apply(fn, (x, y), BOOL)] = _holds((fn, x, y), self.sizes)
        return holds


def relate_by_guards(
    model: Model, sizes: Mapping[str, int], fixed: Collection[str] = ()
) -> RelatedModel | None:
    """Return the model for sizes at which comparisons have the same answers as at these; None if
    there are no guards, or an operator cannot be decided. fixed: sizes that stay as they are."""
    return _relate(model, sizes, SizeRelation.of_sizes(sizes, fixed), equates=False)


def consistent_sizes(model: Model, sizes: Mapping[str, int]) -> dict[str, int] | None:
    """Return sizes like these, at which those that operators compare are equal; None if there are
    none."""
    found = _relate(model, sizes, SizeRelation.of_sizes(sizes), equates=True)
    if found is None:
        return None
    _, relation = found
    made = relation.model_sizes({name: sizes[name] for name in relation.values})
    return made if min(made.values()) > 0 else None


def _relate(
    model: Model, sizes: Mapping[str, int], relation: SizeRelation, *, equates: bool
) -> RelatedModel | None:
    for _ in range(MAX_REPLACED_SIZES):
        oracle = _ExampleOracle(relation.example(sizes), equates)
        try:
            made = import_model(model.source, relation.replacements, oracle)
        except _EqualSizesError as e:
            relation = relation.equate(*e.args)
            continue
        except ModelError:
            return None
        relation = relation.with_guards(oracle.guards)
        return (made, relation) if relation.guards else None
    return None


@dataclass(slots=True)
class _UnknownComparisons:
    """A SizeOracle that knows nothing. found: the comparisons that are not known for all sizes."""

    found: dict[Comparison, None] = field(default_factory=dict)

    def compare(self, fn: str, a: Dim, b: Dim) -> bool | None:
        self.found[fn, index.as_index(a), index.as_index(b)] = None
        return None

    def are_equal(self, a: Dim, b: Dim) -> bool:
        return bool(self.compare("eq", a, b))

    is_broadcast_equal = are_equal

    def is_at_most(self, a: Dim, b: Dim) -> bool:
        return bool(self.compare("le", a, b))


def relate_by_replacement(model: Model, sizes: Mapping[str, int]) -> RelatedModel | None:
    """Return the model with other sizes, of which more is known; None if that does not help. sizes:
    an example."""
    relation, has_zeros = SizeRelation.of_sizes(sizes), 0 in sizes.values()
    best: RelatedModel | None = None
    least = None if has_zeros else len(model.opaque_reasons)
    for count in range(MAX_ROUNDS):
        unknown = _UnknownComparisons()
        with use_size_oracle(unknown):
            import_model(model.source, relation.replacements)
        if count or has_zeros:
            made = import_model(model.source, relation.replacements)
            if least is None or len(made.opaque_reasons) < least:
                best, least = (made, relation), len(made.opaque_reasons)
            if not made.opaque_reasons:
                break
        example = relation.example(sizes)
        decidable = (c for c in unknown.found if _symbols(*c[1:]) <= example.keys())
        more = (_decide(c, relation, example, f"_{count}") for c in decidable)
        found = next((x for x in more if x is not None), None)
        if found is None:
            break
        relation = found
    return best


def _decide(
    comparison: Comparison, relation: SizeRelation, example: Mapping[str, int], suffix: str
) -> SizeRelation | None:
    """Return the relation in which a comparison has the answer of the example for all new sizes;
    None if there is none. suffix: of the names of new sizes."""
    fn, a, b = comparison
    holds = _holds(comparison, example)
    if fn == "eq" and not holds:
        return None
    difference = index.as_index(b - a if holds else a - b)  # 0, or at least 0
    if holds == (fn == "lt"):
        difference = index.as_index(difference - 1)
    if (divided := _divided_size(difference)) is not None:
        name, divisor = divided
        size, t = Size(name), Size(f"{name}{suffix}")
        rest = example[name] % divisor
        if example[name] < divisor:
            return None
        value = index.floordiv(size, index.as_index(divisor))
        remainder = index.mod(size, index.as_index(divisor))
        is_rest = _equality(remainder, index.as_index(rest))
        return relation.replace_size(name, index.dim(t * divisor + rest), {t.name: value}, is_rest)
    for s, factor, others in _isolate_sizes(difference):
        if fn == "eq":
            return relation.equate(s.name, index.as_index(others * -factor))
        if factor > 0:
            t = Size(f"{s.name}{suffix}")  # difference = t - 1
            value = index.as_index(difference + 1)
            return relation.replace_size(s.name, index.dim(t - 1 - others), {t.name: value})
    return None


def _divided_size(e: Expr) -> tuple[str, int] | None:
    """Return a size in the numerator of a quotient or remainder, and the divisor."""
    match e:
        case Apply("floordiv" | "mod", (n, Const(d)), _) if d > 1:
            linear = [m[0].name for m in index.polynomial(n) if m and isinstance(m[0], Size)]
            return (linear[0], int(d)) if linear else _divided_size(n)
        case Apply(_, args, _):
            return next(filter(None, map(_divided_size, args)), None)
    return None
