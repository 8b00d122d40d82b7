"""Draws of the operands and attributes of an operator."""

from collections.abc import Collection
from random import Random

from superopt.ir.op import Attr
from superopt.ops import OPS
from superopt.rules.trial.sample.draw import Draw, PartialShape, Shape, Style
from superopt.rules.trial.sample.fit import fit
from superopt.rules.trial.sample.request import FitRequest

Drawn = tuple[tuple[Shape, ...], dict[str, Attr]]
DEFAULT_STYLE = Style()


def draws(
    op: str,
    *shapes: PartialShape,
    count: int = 200,
    free: Collection[str] | None = None,
    style: Style = DEFAULT_STYLE,
    **known: Attr,
) -> list[Drawn]:
    """The operands and attributes that `count` seeds draw. free: the attributes to choose; all that
    are not known unless given."""
    choose = frozenset(OPS[op].attrs if free is None else free) - known.keys()
    found = []
    for seed in range(count):
        request = FitRequest(OPS[op], shapes, known, choose, Draw(Random(seed), style))
        operands, attrs = fit(request)
        found.append((tuple(map(tuple, operands)), attrs))
    return found


def attribute_values(found: list[Drawn], key: str) -> set[Attr]:
    return {attrs[key] for _, attrs in found}


def operand_ranks(found: list[Drawn], operand: int = 0) -> set[int]:
    return {len(operands[operand]) for operands, _ in found}
