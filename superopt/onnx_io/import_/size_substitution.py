"""Replace symbolic sizes so that what operators ask of sizes is known for all values of the new.

An operator may need to know whether a size is a multiple of 4, or at least 3: the shape of its
result depends on it. Where it cannot know, its node is opaque. With n = 4 t, or n = t + 2, t >= 1,
it can, for the sizes of which that is true. `substitute_sizes` imports a model with such sizes,
as they are at an example; a size of 0 becomes the number.

    asked, true at the example    replacement
    n // d, n % d are compared    n = d t + r        r: the remainder at the example
    n + a == b                    n = b - a
    n + a >= b                    n = b - a + t - 1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.te.analysis.size_oracle import use_size_oracle
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL
from superopt.te.expr.node import Apply, Const, Dim, Expr, Size

MAX_ROUNDS = 8  # imports of a model, each with one more replacement


@dataclass(slots=True)
class Questions:
    """Comparisons of sizes that are not known for all sizes (a size oracle): (fn, a, b)."""

    asked: dict[tuple[str, Expr, Expr], None] = field(default_factory=dict)

    def _ask(self, fn: str, a: Dim, b: Dim) -> None:
        self.asked[fn, index.as_index(a), index.as_index(b)] = None

    def are_equal(self, a: Dim, b: Dim) -> bool:
        self._ask("eq", a, b)
        return False

    is_broadcast_equal = are_equal

    def is_at_most(self, a: Dim, b: Dim) -> bool:
        self._ask("le", a, b)
        return False

    def compare(self, fn: str, a: Dim, b: Dim) -> bool | None:
        self._ask(fn, a, b)
        return None


@dataclass(frozen=True, slots=True)
class SizeSubstitution:
    """replacements: of the model's sizes, in new sizes. values: of the new sizes, in the model's.
    conditions: comparisons of the model's sizes that are true where the new sizes are integers.
    zeros: those of the model's sizes that are 0."""

    replacements: Mapping[str, Dim]
    values: Mapping[str, Expr]
    conditions: tuple[Expr, ...] = ()
    zeros: tuple[str, ...] = ()

    def example(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the new sizes at given sizes of the model."""
        return {name: index.evaluate(e, dict(sizes)) for name, e in self.values.items()}

    def replace_size(
        self, name: str, made: Dim, new: Mapping[str, Expr], condition: Expr | None = None
    ) -> SizeSubstitution:
        """Return the substitution with `made` in place of a new size. new: the values of the sizes
        that come with it, and `condition`, in the present ones."""
        here: dict[Expr, Expr] = {Size(k): e for k, e in self.values.items()}
        change: dict[Expr, Expr] = {Size(name): index.as_index(made)}
        values = {k: e for k, e in self.values.items() if k != name}
        values |= {k: index.substitute(e, here) for k, e in new.items()}
        more = () if condition is None else (index.substitute(condition, here),)
        olds = {k: index.as_index(d) for k, d in self.replacements.items()}
        replacements = {k: index.dim(index.substitute(e, change)) for k, e in olds.items()}
        return SizeSubstitution(replacements, values, (*self.conditions, *more), self.zeros)


def substitute_sizes(
    model: Model, sizes: Mapping[str, int]
) -> tuple[Model, SizeSubstitution] | None:
    """Return the model with other sizes, of which more is known, and these; None if that does not
    help. sizes: an example."""
    start: dict[str, Expr] = {name: Size(name) for name, n in sizes.items() if n}
    zeros = tuple(name for name, n in sizes.items() if not n)
    found = SizeSubstitution({**start, **dict.fromkeys(zeros, 0)}, start, (), zeros)
    best: tuple[Model, SizeSubstitution] | None = None
    least = None if zeros else len(model.opaque_reasons)
    for count in range(MAX_ROUNDS):
        questions = Questions()
        with use_size_oracle(questions):
            import_model(model.source, found.replacements)
        if found.values != start or zeros:
            made = import_model(model.source, found.replacements)
            if least is None or len(made.opaque_reasons) < least:
                best, least = (made, found), len(made.opaque_reasons)
            if not made.opaque_reasons:
                break
        more = next(_answers(questions, found, found.example(sizes), count), None)
        if more is None:
            break
        found = more
    return best


def _answers(
    questions: Questions, found: SizeSubstitution, example: Mapping[str, int], count: int
) -> Iterator[SizeSubstitution]:
    """Yield substitutions under which a question has an answer. count: of the rounds before."""
    for fn, a, b in questions.asked:
        if index.symbols(a) | index.symbols(b) <= example.keys():
            made = _answer(fn, a, b, found, example, f"_{count}")
            if made is not None:
                yield made


def _answer(
    fn: str,
    a: Expr,
    b: Expr,
    found: SizeSubstitution,
    example: Mapping[str, int],
    suffix: str,
) -> SizeSubstitution | None:
    x, y = (index.evaluate(e, dict(example)) for e in (a, b))
    holds = {"eq": x == y, "le": x <= y, "lt": x < y}[fn]
    if fn == "eq" and not holds:
        return None
    difference = index.as_index(b - a)  # 0, or at least 0
    if fn == "lt":
        difference = index.as_index(difference - 1)
    if not holds:
        difference = index.as_index(a - b if fn == "lt" else a - b - 1)
    if (divided := _divided_size(difference)) is not None:
        name, divisor = divided
        size, t = Size(name), Size(f"{name}{suffix}")
        rest = example[name] % divisor
        if example[name] < divisor:
            return None
        value = index.floordiv(size, index.as_index(divisor))
        remainder = index.mod(size, index.as_index(divisor))
        is_rest = Apply("eq", (remainder, index.as_index(rest)), BOOL)
        return found.replace_size(name, index.dim(t * divisor + rest), {t.name: value}, is_rest)
    p = index.polynomial(difference)
    if not all(isinstance(atom, Size) for m in p for atom in m):
        return None
    alone = [m[0] for m, c in p.items() if len(m) == 1 and abs(c) == 1]
    for s in sorted(alone, key=str, reverse=True):
        assert isinstance(s, Size)
        c = p[(s,)]
        others = index.as_index(difference - s * c)
        if s.name in index.symbols(others) or (fn != "eq" and c < 0):
            continue
        if fn == "eq":  # s c + others = 0
            value = index.as_index(others * -c)
            is_equal = Apply("eq", (s, value), BOOL)
            return found.replace_size(s.name, index.dim(value), {}, is_equal)
        t = Size(f"{s.name}{suffix}")  # difference = t - 1
        value = index.as_index(difference + 1)
        return found.replace_size(s.name, index.dim(t - 1 - others), {t.name: value})
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
