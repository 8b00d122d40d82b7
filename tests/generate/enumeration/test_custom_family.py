"""Families out of text: what is read, and what is refused, with a way out."""

from pathlib import Path

import pytest

from superopt.api.functions import generate_rules
from superopt.errors import UsageError
from superopt.generate.enumeration.custom_family import custom_family, family_text
from superopt.generate.families.family import OperatorUse, operator_use, result_uses
from superopt.rules.lang.rule import parse_rules
from superopt.rules.trial.try_rule import Passed, try_rule

OPS = "MatMul, Transpose(perm=(1, 0)),Concat(axis=0),Split(axis=0,split=(3,3))"
SHAPES = "x=3x3, y=3x3, 0=zeros:3x3, i=eye:3x3"


def test_what_is_written_is_what_is_enumerated() -> None:
    found = custom_family(OPS, SHAPES)
    assert found.inputs == {"x": (3, 3), "y": (3, 3)}
    assert found.constants == {"0": ("zeros", (3, 3)), "i": ("eye", (3, 3))}
    assert found.uses == (
        operator_use("MatMul", 2),
        operator_use("Transpose", 1, perm=(1, 0)),
        operator_use("Concat", 2, axis=0),
        *result_uses("Split", 2, axis=0, split=(3, 3)),
    )
    assert found.max_elements == 18


@pytest.mark.parametrize(
    ("ops", "shapes", "largest"),
    [
        ("Relu", "x=3x4", 24),
        ("MatMul", "x=9x1,y=1x9", 81),  # more than twice an input's
        ("Tile(repeats=(2,2))", "x=3x4", 48),
    ],
)
def test_the_largest_tensor_is_twice_an_input_or_any_result(
    ops: str, shapes: str, largest: int
) -> None:
    assert custom_family(ops, shapes).max_elements == largest


def test_few_elements_take_more_samples() -> None:
    """Of two elements, all are positive on all of 8 samples too often."""
    assert custom_family("Relu", "x=2").samples > custom_family("Relu", "x=2x4").samples


def test_an_operator_may_need_what_others_make() -> None:
    found = custom_family("Unsqueeze(axes=(0,)),Concat(axis=0),Split(axis=0,num_outputs=2)", "x=3")
    assert OperatorUse("Split", (("axis", 0), ("num_outputs", 2)), 1, 1, True) in found.uses


def test_a_convolution_says_that_it_is_in_one_group() -> None:
    (made,) = custom_family("Conv(pads=(0,0,0,0))", "x=1x2x4x4,w=2x2x3x3").uses
    assert dict(made.attrs)["group"] == 1


def test_what_a_family_is_made_of_is_said() -> None:
    """In the journal, which must not be that of other operators or shapes."""
    assert family_text(custom_family("Relu,Add", "x=2x4,s=,0=zeros:2x4")) == (
        "custom of Relu, Add on x=2x4, s=, 0=zeros:2x4"
    )


@pytest.mark.parametrize(
    ("ops", "complaint"),
    [
        ("matmul", "unknown operator 'matmul'\n.*\ndid you mean MatMul"),
        ("Poem", "unknown operator 'Poem'"),
        ("", "'' is not an operator"),
        ("Add,", "'' is not an operator"),
        ("Add(", "'Add\\(' is not an operator"),
        ("3 + 4", "'3 \\+ 4' is not an operator"),
        ("Add,Add", "Add occurs twice"),
        ("Concat", "Concat needs the attribute axis\n.*\nwrite Concat\\(axis=...\\)"),
        ("Concat(axis=)", "'Concat\\(axis=\\)' is not an operator"),
        ("Concat(axis=k)", "axis=k is not a concrete value"),
        ("Concat(axis=0, axis=1)", "axis occurs twice"),
        ("Concat(axis=-1)", "axis is counted from the end"),
        ("Concat(0)", "attributes need names"),
        ("Add(axis=1)", "Add has no attribute axis\nit has none"),
        (
            "Transpose(perm='ab')",
            "no operands fit\n.*perm ab is not a list: it names all 2 axes",
        ),
        ("Transpose(perm=(0, 0))", "perm \\(0, 0\\) is not a permutation"),
        ("Where", "Where has 3 operands"),
        ("Range", "Range has 0 operands"),
        ("Split(axis=0, split=(2, 2))", "no operands fit\n.*4 != 3"),
        ("Gather", "Gather: no operands fit"),
        ("Equal", "Equal returns bool\\[3, 3\\]"),
        ("Tile(repeats=(99, 99))", "no operands fit"),
        ("Hardmax(axis=1)", "Hardmax axis=1 cannot be enumerated"),
    ],
)
def test_operators_that_cannot_be_enumerated(ops: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        custom_family(ops, "x=3x3,y=3x3")
    assert caught.value.why
    assert caught.value.todo


@pytest.mark.parametrize(
    ("shapes", "complaint"),
    [
        ("", "'' is not the shape of an input"),
        ("x", "'x' is not the shape of an input"),
        ("x y=3", "'x y=3' is not the shape of an input"),
        ("x=3x", "'3x' is not a shape"),
        ("x=-3", "'-3' is not a shape"),
        ("x=0x3", "'x=0x3' has no elements"),
        ("x=1000x1000", "has 1000000 elements"),
        ("x=3x3,x=4x4", "x occurs twice\nas x=3x3 and x=4x4"),
        ("x=3x3,x=eye:3x3", "x occurs twice"),
        ("x=3x3,0=fours:3x3", "unknown constant 'fours'"),
        ("x=3x3,i=eye:3x4", "is not an identity"),
        ("x=3x3,i=dirac:3x3", "is not the kernel"),
        ("x=3x3,0=zeros:3x3,n=zeros:3x3", "n and 0 are the same constant"),
        ("x=3x3,1=ones:1x1,i=eye:1x1", "i and 1 are the same constant"),
        ("0=zeros:3x3", "0 inputs"),
        (",".join(f"x{n}=3x3" for n in range(13)), "13 inputs"),
        ("x=3x4,y=5x6", "MatMul: no operands fit"),
        ("x=3x3,y=5x6", "y, of shape 5x6, fits no operator\n.*3 != 5"),
    ],
)
def test_shapes_that_make_no_sense(shapes: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        custom_family("MatMul", shapes)
    assert caught.value.why
    assert caught.value.todo


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"ops": "Relu"}, "ops without shapes"),
        ({"shapes": "x=3x3"}, "shapes without ops"),
        ({"ops": "Relu", "shapes": "x=3x3", "families": ["matrices"]}, "exclude each other"),
        ({"ops": "Poem", "shapes": "x=3x3"}, "unknown operator 'Poem'"),
    ],
)
def test_nothing_is_begun_that_makes_no_sense(
    asked: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=complaint):
        generate_rules(tmp_path / "out", **asked)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_rules_of_ones_own_operators(tmp_path: Path) -> None:
    made = generate_rules(tmp_path, ops=OPS, shapes="x=3x3,y=3x3", max_ops=2)
    assert [f.family for f in made.families] == ["custom"]
    rules = parse_rules((tmp_path / "custom.rules").read_text())
    assert len(rules) > 3
    for rule in rules:
        assert isinstance(try_rule(rule, seed=99), Passed), str(rule)
    texts = "\n".join(map(str, rules))
    assert "MatMul(MatMul(x, y), z) => MatMul(x, MatMul(y, z))" in texts
    with pytest.raises(UsageError, match="journal of another run"):
        generate_rules(tmp_path, ops=OPS, shapes="x=3x3,y=3x3,i=eye:3x3", max_ops=2)
