"""Instances of a rule with few sizes, at which shapes that should differ are often equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random

from superopt.ir.graph import Input
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import AllResults, App, Pick, Var, walk
from superopt.rules.trial.instances import Instance, instance_key, instance_of_builder
from superopt.rules.trial.sample.draw import Draw, Style
from superopt.rules.trial.sample.left_side import LeftSideBuilder
from superopt.te.expr.tensor import TensorType

CRAMPED_SIZE = 3  # the only size besides 1
ONES_SHARES = (0.15, 0.4)  # shares of sizes of 1
ODD_RANK_SHARE = 0.3  # share of operands of image operators with another rank
ROLE_SIZES = (1, 2, 2, 3, 4)  # sizes that divide and multiply each other
SAME_SHAPE_SHARE = 0.8  # share of parameters with the shape of others in their role
BROADCAST_SHARE = 0.25  # share of these that are broadcast along an axis
BIAS_ROLE = ("Conv", 2)  # drawn to fit in any case: nothing else fits
SPATIAL_OPS = frozenset(("Conv", "ConvTranspose", "AveragePool", "MaxPool", "BatchNormalization"))


def cramped_instances(rule: Rule, seed: int, tries: int) -> Iterator[Instance]:
    """Yield instances whose types hide few errors. It ends when half of the tries yield nothing
    new.

    In turns: all sizes are equal, or 1, and parameters of any shape have any rank, so that a bias
    is as long as the image is wide, and an image no larger than its kernel; and parameters that are
    the same operand of the same operator share one shape of few sizes, so that groups divide
    evenly.
    """
    rng = Random(f"cramped {rule.name} {seed}")
    roles = _operand_roles(rule)
    ops = {t.op.name for side in rule.lhs for t in walk(side) if isinstance(t, App)}
    image = 4 if ops & SPATIAL_OPS else None
    seen: set[object] = set()
    last = 0
    for number in range(tries):
        if number > last + tries // 2:
            return
        maker = LeftSideBuilder(rule, Draw(Random(rng.random()), Style(equal_sizes=True)))
        shape = _equal_sizes(rng, image) if number % 2 else _role_shapes(rng, image, roles)
        for p in rule.params:
            if (
                isinstance(p, Param)
                and p.shape is None
                and not p.is_run
                and roles.get(p.name) != BIAS_ROLE
            ):
                given = Input(p.name, TensorType(maker.element_type(p.kind), shape(p.name)))
                maker.names[p.name] = given
                maker.inputs.append(given)
        made = instance_of_builder(rule, maker)
        if made is not None and (key := instance_key(made)) not in seen:
            seen.add(key)
            last = number
            yield made


def _equal_sizes(rng: Random, rank: int | None) -> Callable[[str], tuple[int, ...]]:
    ones = ONES_SHARES[rng.randrange(len(ONES_SHARES))]

    def shape(name: str) -> tuple[int, ...]:
        length = rng.randint(0, 4) if rank is None or rng.random() < ODD_RANK_SHARE else rank
        return tuple(1 if rng.random() < ones else CRAMPED_SIZE for _ in range(length))

    return shape


def _role_shapes(
    rng: Random, image: int | None, roles: Mapping[str, object]
) -> Callable[[str], tuple[int, ...]]:
    rank = image or rng.randint(1, 4)

    def drawn() -> tuple[int, ...]:
        return tuple(ROLE_SIZES[rng.randrange(len(ROLE_SIZES))] for _ in range(rank))

    known: dict[object, tuple[int, ...]] = {}

    def shape(name: str) -> tuple[int, ...]:
        if rng.random() > SAME_SHAPE_SHARE:
            return drawn()
        made = known.setdefault(roles.get(name), drawn())
        if rng.random() < BROADCAST_SHARE:
            at = rng.randrange(rank)
            made = (*made[:at], 1, *made[at + 1 :])
        return made

    return shape


def _operand_roles(rule: Rule) -> dict[str, object]:
    """Return for each parameter the operator and operand index that it serves: x and y in
    Conv(Concat(x, y), w) are both images."""
    found: dict[str, object] = {}
    pending: list[tuple[object, object]] = [(side, None) for side in rule.lhs]
    while pending:
        t, role = pending.pop()
        match t:
            case Var(name):
                found.setdefault(name, role)
            case App(op, operands):
                for n, o in enumerate(operands):
                    apart = op.name in SPATIAL_OPS or op.name in ("MatMul", "Gemm")
                    pending.append((o, (op.name, n) if apart else role))
            case Pick(app, _) | AllResults(app):
                pending.append((app, role))
    return found
