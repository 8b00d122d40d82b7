"""Rules that only types seem to make right: they fail where all sizes are alike."""

from random import Random

import pytest

from superopt.rules.lang.rule import parse_rules
from superopt.rules.trial import cramped_instances as module
from superopt.rules.trial.cramped_instances import CRAMPED_SIZE, ROLE_SIZES, cramped_instances
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


def test_tries_end_when_half_of_them_yield_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    (rule,) = parse_rules("a(x: f32[2, 3]): Relu(Relu(x)) => Relu(x)")
    tried = []
    build = module.instance_of_builder

    def count(*args: object) -> object:
        tried.append(args)
        return build(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "instance_of_builder", count)
    (one,) = cramped_instances(rule, 0, 40)
    assert one.inputs[0].type.shape == (2, 3)
    assert len(tried) == 1 + 40 // 2


def test_sizes_are_equal_or_few_by_turns() -> None:
    (rule,) = parse_rules("a(x: f, y: f): Mul(x, y) => Mul(y, x)")
    found = [[i.type.shape or () for i in one.inputs] for one in cramped_instances(rule, 0, 400)]
    sizes = [{d for shape in shapes for d in shape} for shapes in found]
    assert any(s == {1, CRAMPED_SIZE} for s in sizes)
    assert any(len(s & set(ROLE_SIZES)) > 2 for s in sizes)
    assert {len(shape) for shapes in found for shape in shapes} == {0, 1, 2, 3, 4}


def test_operands_of_a_convolution_are_mostly_images() -> None:
    (rule,) = parse_rules("a(x: f, w: f, b: f): Conv(x, w, b, **e) => Add(Conv(x, w, **e), b)")
    for shape in (module._equal_sizes, lambda rng, rank: module._role_shapes(rng, rank, {})):
        ranks = [len(shape(Random(seed), 4)("x")) for seed in range(100)]
        assert ranks.count(4) > 60
    roles = module._operand_roles(rule)
    assert roles == {"x": ("Conv", 0), "w": ("Conv", 1), "b": ("Conv", 2)}


def test_operands_in_one_role_share_a_shape_or_are_broadcast_to_it() -> None:
    roles = {"x": "image", "y": "image", "z": "kernel"}
    counts = {"equal": 0, "broadcast": 0, "other": 0}
    for seed in range(300):
        shape = module._role_shapes(Random(seed), 3, roles)
        x, y = shape("x"), shape("y")
        widened = all(a == b or 1 in (a, b) for a, b in zip(x, y, strict=True))
        counts["equal" if x == y else "broadcast" if widened else "other"] += 1
        assert {*x, *y} <= set(ROLE_SIZES)
    assert counts["equal"] > counts["broadcast"] > 30
    assert 30 < counts["other"] < 150
