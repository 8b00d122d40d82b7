"""Rules that only types seem to make right: they fail where all sizes are alike."""

import pytest

from superopt.rules.lang.rule import parse_rules
from superopt.rules.trial.cramped_instances import cramped_instances
from superopt.rules.trial.try_rule import Refuted, try_rule

WRONG = {
    # y is a scale of channels in both, or of columns: of the kernel's, and of the image's
    "a scale of columns": (
        "conv-mul(x: f, y: f, z: f): Conv(x, Mul(z, y), pads=(1, 1, 1, 1), strides=(1, 1), group=1)"
        " => Conv(Mul(x, y), z, pads=(1, 1, 1, 1), strides=(1, 1), group=1)"
    ),
    # y is a scale of the contracted axis on the left, of the columns on the right
    # true in one group only
    "groups": (
        "trap(x: f, y: f, z: f, w: f): Conv(Concat(x, z, axis=1), Concat(y, w, axis=1), **e)"
        " => Add(Conv(x, y, **e), Conv(z, w, **e))"
    ),
    "groups and outputs": (
        "trap(x: f, y: f, z: f): Concat(Conv(x, y, **e), Conv(x, z, **e), axis=1)"
        " => Conv(x, Concat(y, z, axis=0), **e)"
    ),
    "a scale of a product": "a(x: f, y: f, z: f): MatMul(Mul(x, y), z) => Mul(MatMul(x, z), y)",
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_where_all_sizes_are_alike(name: str) -> None:
    (rule,) = parse_rules(WRONG[name])
    assert isinstance(try_rule(rule, count=20), Refuted)


def test_sizes_are_few_and_instances_differ() -> None:
    (rule,) = parse_rules("a(x: f, y: f, z: f): Mul(Mul(x, y), z) => Mul(x, Mul(y, z))")
    found = list(cramped_instances(rule, 0, 200))
    assert len(found) > 20
    assert len({str(one) for one in found}) == len(found)
    assert {d for one in found for i in one.inputs for d in i.type.shape or ()} <= {1, 2, 3, 4}
    assert [str(one) for one in cramped_instances(rule, 0, 200)] == [str(one) for one in found]
