"""From an equation between concrete terms to a rule: sizes, attributes and ranks as variables.

Readings of an equation are written down from the most general to the equation itself, and the first
that survives a trial on shapes of its own is kept: what a reading claims too much, a trial refutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from superopt.generate.bank import Bank
from superopt.generate.pattern import Equation, Hole, Leaf, Made, Pattern, holes
from superopt.ir.op import Attr
from superopt.ir.syntax import show_attr
from superopt.rules.rule import Rule, parse_rules
from superopt.rules.trial import Passed, try_rule

NAMES = "xyzwabcdefgh"
MOVES = frozenset(
    ("Concat", "Split", "Transpose", "Reshape", "Slice", "Pad", "Squeeze", "Unsqueeze")
)
AXES = frozenset(("axis", "axes"))
TRIALS = 20  # shape assignments on which a rule must hold


@dataclass(frozen=True, slots=True)
class Side:
    """A side of a rule: a root, or several that become several."""

    roots: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """`left` may be replaced by `right`; with several roots, by the parts of the one `right`."""

    left: tuple[Pattern, ...]
    right: tuple[Pattern, ...]
    inputs: tuple[str, ...]


def claims(e: Equation, bank: Bank) -> list[Claim]:
    """The rewrites that an equation allows: in each direction in which the left side binds all;
    and, of a Concat, that its operands are the parts of the other side."""
    found: list[Claim] = []
    for left, right in ((e.left, e.right), (e.right, e.left)):
        if isinstance(left, Made) and set(holes(right)) <= set(holes(left)):
            found.append(Claim((left,), (right,), e.inputs))
    return found


def rules(e: Equation, bank: Bank, seed: int) -> list[Rule]:
    """The most general rules that `e` gives; none where no reading survives its trial."""
    out: list[Rule] = []
    for c in claims(e, bank):
        found = most_general(c, bank, seed)
        if found is not None:
            out.append(found)
    return out


def most_general(c: Claim, bank: Bank, seed: int) -> Rule | None:
    """The first reading of `c` that survives; in its lowest float class."""
    for text in readings(c, bank):
        for float_class in ("E2", "E3"):
            (rule,) = parse_rules(f"{text} ; float={float_class} ; origin=generated")
            if isinstance(try_rule(rule, seed, TRIALS), Passed):
                return lowest(rule, text, seed)
    return None


def lowest(rule: Rule, text: str, seed: int) -> Rule:
    """The rule in the lowest float class in which it survives."""
    if rule.float_class == "E3":
        return rule
    (exact,) = parse_rules(f"{text} ; float=E0 ; origin=generated")
    return exact if isinstance(try_rule(exact, seed, TRIALS), Passed) else rule


def readings(c: Claim, bank: Bank) -> Iterator[str]:
    """Texts of rules, the most general first."""
    name = title(c, bank)
    slots = _slots(c, bank)
    choices = [_choices(s, slots) for s in slots]
    used = sorted({n for p in (*c.left, *c.right) for n in holes(p)})
    for kinds in _kinds(c, bank, used):
        for chosen in product(*choices):
            written = dict(zip(slots, chosen, strict=True))
            if not _bound(written):
                continue
            left = [_text(p, bank, written, "left") for p in c.left]
            right = [_text(p, bank, written, "right") for p in c.right]
            params = ", ".join(f"{NAMES[n]}: {kinds[n]}" for n in used)
            yield f"{name}({params}): {_side(left)} => {_side(right)}"


def title(c: Claim, bank: Bank) -> str:
    """A rule's name: the operators of its left side."""
    names = [bank.uses()[u].op.name.lower() for p in c.left for u in _uses(p)]
    right = [bank.uses()[u].op.name.lower() for p in c.right for u in _uses(p)]
    return "-".join(names) + "--" + ("-".join(right) or "same")


def _uses(p: Pattern) -> Iterator[int]:
    if isinstance(p, Made):
        yield p.use
        for o in p.operands:
            yield from _uses(o)


def _side(terms: Sequence[str]) -> str:
    return terms[0] if len(terms) == 1 else f"({', '.join(terms)})"


# --- attributes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slot:
    """An attribute's value on a side: what may become a variable."""

    side: str
    key: str
    value: Attr


def _slots(c: Claim, bank: Bank) -> list[Slot]:
    found: dict[Slot, None] = {}
    for side, roots in (("left", c.left), ("right", c.right)):
        for p in roots:
            for u in _uses(p):
                for key, value in bank.uses()[u].attrs:
                    found[Slot(side, key, value)] = None
    return list(found)


def _choices(s: Slot, slots: Sequence[Slot]) -> list[str]:
    """How an attribute's value may be written, the most general way first."""
    same = [t for t in slots if t.side == "left" and t.key == s.key]
    number = same.index(s) if s in same else -1
    literal = show_attr(s.value)
    if s.side == "left":
        variable = {"axis": "kj", "perm": "pq", "split": "st"}.get(s.key, "")
        made = [variable[number]] if number < len(variable) else []
        if s.key == "axis" and isinstance(s.value, int):
            made.append(str(s.value - 2))
        return [*made, literal]
    out: list[str] = []
    for n, t in enumerate(same):
        if t.value == s.value and n < 2:
            out.append({"axis": "kj", "perm": "pq", "split": "st"}.get(s.key, "??")[n])
    if s.key == "axis" and isinstance(s.value, int):
        if any(t.side == "left" and t.key == "perm" for t in slots):
            out += [f"index(p, {v})" for v in "kj"[: len(same)]]
            out += [f"p[{v}]" for v in "kj"[: len(same)]]
        out.append(str(s.value - 2))
    return [*out, literal]


def _bound(written: Mapping[Slot, str]) -> bool:
    """Are all variables on the right bound on the left?"""
    left = {t for s, t in written.items() if s.side == "left" and t.isidentifier()}
    for s, t in written.items():
        if s.side == "right":
            names = {n for n in "kjpqst" if n in t.replace("index", "")}
            if not names <= left:
                return False
    return True


def _text(p: Pattern, bank: Bank, written: Mapping[Slot, str], side: str) -> str:
    match p:
        case Hole(n):
            return NAMES[n]
        case Leaf(name):
            return name
        case Made(u, operands):
            use = bank.uses()[u]
            given = [_text(o, bank, written, side) for o in operands]
            given += [f"{k}={written[Slot(side, k, v)]}" for k, v in use.attrs]
            text = f"{use.op.name}({', '.join(given)})"
            return f"{text}[{use.result}]" if use.many else text


# --- operands -------------------------------------------------------------------------------------


def _kinds(c: Claim, bank: Bank, used: Sequence[int]) -> Iterator[dict[int, str]]:
    """Kinds of the holes: any shape; matrices behind batches; the rank at which it was found."""
    ops = {bank.uses()[u].op.name for p in (*c.left, *c.right) for u in _uses(p)}
    element = "any" if ops <= MOVES else "f"
    shapes = {n: bank.family.inputs[c.inputs[n]] for n in used}
    yield dict.fromkeys(used, element)
    scalar = {n: f"{element}[]" for n in used if not shapes[n]}
    if scalar:
        yield {n: scalar.get(n, element) for n in used}
    if any(len(s) == 2 for s in shapes.values()):
        yield {n: scalar.get(n, f"{element}[*s{n}, n{n}, m{n}]") for n in used}
    yield {n: f"{element}[{', '.join(f'd{n}_{k}' for k in range(len(shapes[n])))}]" for n in used}
