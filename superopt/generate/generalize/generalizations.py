"""Generalize an equation between concrete terms to rules: variables for sizes, attributes and
ranks.

The generalizations of an equation are listed from the most general to the equation itself; another
module selects the rule (`superopt.generate.generalize.select_rule`).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product

from superopt.errors import UsageError
from superopt.generate.enumeration.pattern import (
    Pattern,
    PatternCall,
    PatternConstant,
    PatternVariable,
    call_count,
    subterms,
    use_numbers,
    variable_numbers,
)
from superopt.generate.families.family import Family, Shape
from superopt.generate.generalize import attribute_forms
from superopt.generate.generalize.candidates import RewriteCandidate, is_join_of_two
from superopt.rules.lang.rule import Rule, parse_rules

OPERAND_NAMES = "xyzwabcdefgh"
MOVEMENT_OPS = frozenset(
    ["Concat", "Split", "Transpose", "Reshape", "Slice", "Pad", "Squeeze", "Unsqueeze"]
)
SUMMING_OPS = frozenset(["MatMul", "Conv", "ReduceSum", "ReduceMean", "AveragePool", "Softmax"])
ADDITION_OPS = frozenset(["Add", "Sub"])
PRODUCT_OPS = frozenset(["MatMul", "Conv", "Mul", "Div"])


def rules_at_own_sizes(c: RewriteCandidate, family: Family) -> list[Rule]:
    """Return a candidate as rules for its own sizes and attributes, in each direction in which all
    variables are bound."""
    found: list[Rule] = []
    backward = RewriteCandidate((c.right,), c.left[0], c.shapes)
    for one in (c, backward) if len(c.left) == 1 else ():
        used = sorted({n for p in (*one.left, one.right) for n in variable_numbers(p)})
        kinds = {n: f"f[{', '.join(map(str, c.shapes[n]))}]" for n in used}
        left, right = _distinct_slots(one.left, family), _distinct_slots((one.right,), family)
        own = {s: attribute_forms.literal_text(s) for s in (*left, *right)}
        text = _rule_text(one, family, kinds, own, own, None)
        with suppress(UsageError):
            found += parse_rules(f"{text} ; float=E3 ; origin=generated")
    return found


def possible_float_classes(c: RewriteCandidate, family: Family) -> list[str]:
    """Return the possible float classes of a rule, the lowest first. E0 without reductions, whose
    order depends on the runtime; E1 if no sum is multiplied."""
    ops = {family.uses[u].name for p in (*c.left, c.right) for u in use_numbers(p)}
    found = [] if ops & SUMMING_OPS else ["E0"]
    if not any(_multiplies_sums(p, family) for p in (*c.left, c.right)):
        found.append("E1")
    return [*found, "E2", "E3"]


def _multiplies_sums(p: Pattern, family: Family) -> bool:
    if not isinstance(p, PatternCall):
        return False
    below = {family.uses[u].name for o in p.operands for u in use_numbers(o)}
    if family.uses[p.use].name in PRODUCT_OPS and below & (SUMMING_OPS | ADDITION_OPS):
        return True
    return any(_multiplies_sums(o, family) for o in p.operands)


def generalizations(
    c: RewriteCandidate, family: Family, refuted_kinds: Container[int] = ()
) -> Iterator[tuple[int, str]]:
    """Yield texts of rules, the most general first, each with the number of its operand kinds.
    refuted_kinds: numbers to skip, which may grow meanwhile.
    """
    rank = max(map(len, c.shapes), default=2)
    joins = _variable_joins(c, family)
    every = list(attribute_forms.left_forms(_distinct_slots(c.left, family), rank, joins))
    ways = list(_operand_kinds(c, family))
    # literal attributes generalize less than ranks of operands
    for some in (
        [w for w in every if not attribute_forms.has_fixed_attributes(w)],
        list(filter(attribute_forms.has_fixed_attributes, every)),
    ):
        for (n, kinds), mine in product(enumerate(ways), some):
            if n not in refuted_kinds:
                yield from ((n, text) for text in _rule_texts(c, family, kinds, mine, joins))


def literal_generalizations(c: RewriteCandidate, family: Family, number: int = -1) -> Iterator[str]:
    """Yield the generalizations with these operand kinds (default: the least general ones) and with
    literal attributes; all others imply them."""
    rank = max(map(len, c.shapes), default=2)
    joins = _variable_joins(c, family)
    kinds = list(_operand_kinds(c, family))[number]
    for mine in attribute_forms.left_forms(_distinct_slots(c.left, family), rank, joins):
        if attribute_forms.is_all_literal(mine):
            yield from _rule_texts(c, family, kinds, mine, joins)


def _rule_texts(
    c: RewriteCandidate,
    family: Family,
    kinds: Mapping[int, str],
    left_texts: attribute_forms.SlotTexts,
    joins: Sequence[attribute_forms.Join],
) -> Iterator[str]:
    """Yield the generalizations with these operand kinds and left attributes."""
    rank = max(map(len, c.shapes), default=2)
    # how the sizes of two parts may be written: those of two joined variables
    sizes = [f"({', '.join(f'size({n}, {j.axis - rank})' for n in j.names)})" for j in joins]
    grows = sum(map(call_count, c.left)) < call_count(c.right)
    for theirs in attribute_forms.right_forms(
        _distinct_slots((c.right,), family), left_texts, rank, sizes
    ):
        if grows and attribute_forms.has_arbitrary_value(theirs, left_texts):
            continue
        for axis, apart in product(
            list(_axis_forms(c, left_texts, rank)), attribute_forms.axis_conditions(left_texts)
        ):
            yield _rule_text(c, family, kinds, left_texts, theirs, axis, apart)


def _rule_text(
    c: RewriteCandidate,
    family: Family,
    kinds: Mapping[int, str],
    left_texts: attribute_forms.SlotTexts,
    right_texts: attribute_forms.SlotTexts,
    axis: str | None,
    extra_conditions: Sequence[str] = (),
) -> str:
    """Return the text of a rule with its variables' kinds, its attributes on either side, and
    conditions on axes."""
    roots = [_pattern_text(p, family, left_texts) for p in c.left]
    made = _pattern_text(
        c.right, family, right_texts, roots[0] if isinstance(c.right, PatternConstant) else ""
    )
    if axis is not None:
        own = ", ".join(f"size({r}, {axis})" for r in roots)
        made = f"Split({made}, axis={axis}, split=({own}))"
    params = ", ".join(f"{OPERAND_NAMES[n]}: {kind}" for n, kind in sorted(kinds.items()))
    side = roots[0] if len(roots) == 1 else f"({', '.join(roots)})"
    where = ", ".join([*attribute_forms.name_conditions(left_texts), *extra_conditions])
    name = rule_title(c, family)
    return f"{name}({params}): {side} => {made}{where and f' where {where}'}"


def _variable_joins(c: RewriteCandidate, family: Family) -> list[attribute_forms.Join]:
    """Return the joins of two variables on the left."""
    found: list[attribute_forms.Join] = []
    for p in (q for root in c.left for q in subterms(root)):
        if is_join_of_two(p, family):
            axis = dict(family.uses[p.use].attrs)["axis"]
            one, two = (o.number for o in p.operands if isinstance(o, PatternVariable))
            assert isinstance(axis, int)
            sizes = c.shapes[one][axis], c.shapes[two][axis]
            found.append(
                attribute_forms.Join(axis, (OPERAND_NAMES[one], OPERAND_NAMES[two]), sizes)
            )
    return found


def _axis_forms(
    c: RewriteCandidate, left: attribute_forms.SlotTexts, rank: int
) -> Iterator[str | None]:
    """Yield the forms of the axis of the parts."""
    if c.axis is None:
        yield None
        return
    yield str(c.axis - rank)
    yield str(c.axis)


def rule_title(c: RewriteCandidate, family: Family) -> str:
    """Return a rule's name: the operators of its left side, and of its right side."""
    names = [family.uses[u].name.lower() for p in c.left for u in use_numbers(p)]
    right = [family.uses[u].name.lower() for u in use_numbers(c.right)]
    return "-".join(names) + "--" + ("-".join(right) or "same")


def _distinct_slots(
    roots: Sequence[Pattern], family: Family
) -> list[attribute_forms.AttributeSlot]:
    every = (family.uses[u] for p in roots for u in use_numbers(p))
    return list(
        dict.fromkeys(s for u in every for s in attribute_forms.attribute_slots(u.name, u.attrs))
    )


def constant_text(kind: str, shape: Shape, like: str, axis: int = -1) -> str:
    """Return a constant as text: on the left, its shape follows from its neighbours; on the right
    it has the shape of `like`. axis: of the first variable, whose size an identity has."""
    if kind in ("dirac", "means"):
        kernel = ", ".join(map(str, shape[2:]))
        return f"{kind}((size(x, 1), size(x, 1), {kernel}))"
    if kind == "eye":
        return f"eye(size({like or 'x'}, {axis}))"
    return f"{kind}(shape({like}))" if like else {"zeros": "0", "ones": "1", "twos": "2"}[kind]


def _pattern_text(
    p: Pattern,
    family: Family,
    written: Mapping[attribute_forms.AttributeSlot, str],
    like: str = "",
    axis: int = -1,
) -> str:
    match p:
        case PatternVariable(n):
            return OPERAND_NAMES[n]
        case PatternConstant(name):
            return constant_text(*family.constants[name], like, axis)
        case PatternCall(u, operands):
            use = family.uses[u]
            before = use.name == "MatMul"  # an identity before a matrix has its number of rows
            given = [
                _pattern_text(o, family, written, axis=-2 if before and n == 0 else -1)
                for n, o in enumerate(operands)
            ]
            for s in attribute_forms.attribute_slots(use.name, use.attrs):
                text = written[s]
                given += [f"{s.key}={text}"] if s.key else [text] if text else []
            text = f"{use.name}({', '.join(given)})"
            return f"{text}[{use.result}]" if use.has_many_results else text


def _operand_kinds(c: RewriteCandidate, family: Family) -> Iterator[dict[int, str]]:
    """Yield the kinds of the variables, the most general first: any shape; scalars, vectors, and
    shapes with 1s as they were found, the last also with leading axes; batched matrices; equal
    shapes where they were equal; the found ranks, then with equal sizes where they were equal."""
    used = sorted({n for p in (*c.left, c.right) for n in variable_numbers(p)})
    ops = {family.uses[u].name for p in (*c.left, c.right) for u in use_numbers(p)}
    element = "any" if ops <= MOVEMENT_OPS else "f"
    shapes = {n: c.shapes[n] for n in used}

    def exact(n: int, who: int | str) -> str:
        dims = ("1" if one else f"d{who}_{k}" for k, one in enumerate(_unit_axes(shapes[n])))
        return f"{element}[{', '.join(dims)}]"

    def sized(n: int) -> str:
        ones = zip(shapes[n], _unit_axes(shapes[n]), strict=True)
        return f"{element}[{', '.join('1' if one else f'd{d}' for d, one in ones)}]"

    def behind(n: int) -> str:
        """Return the found shape with any leading axes."""
        return exact(n, n).replace("[", f"[*s{n}, ", 1)

    def same(n: int) -> int:
        return next(m for m in used if shapes[m] == shapes[n])

    whole = dict.fromkeys(used, element)
    scalars = {n: f"{element}[]" for n, s in shapes.items() if not s}
    small = {n: exact(n, n) for n, s in shapes.items() if any(_unit_axes(s))}
    vectors = {n: exact(n, n) for n, s in shapes.items() if len(s) == 1}
    wide = {n: behind(n) for n in small if len(shapes[n]) > 1}
    batched = {n: f"{element}[*s{n}, n{n}, m{n}]" for n, s in shapes.items() if len(s) == 2}
    alike = {n: f"{element}[*s{same(n)}]" for n in used} if len(used) > 1 else whole
    seen: list[dict[int, str]] = []
    for kinds in (
        whole,
        whole | scalars,
        whole | scalars | vectors,
        whole | scalars | small | wide,
        whole | scalars | small,
        whole | batched | scalars | small | wide,
        whole | batched | scalars | small,
        alike | scalars | small,
        {n: exact(n, n) for n in used},
        {n: exact(n, same(n)) for n in used},
        {n: sized(n) for n in used},
    ):
        if kinds not in seen:
            seen.append(kinds)
            yield kinds


def _unit_axes(shape: Shape) -> list[bool]:
    """Return the axes with one element by design: all of a vector's but one, and all but the first
    of any other shape, which may be a batch of one."""
    thin = len(shape) > 1 and sum(d > 1 for d in shape) <= 1
    return [d == 1 and (thin or k > 0) for k, d in enumerate(shape)]
