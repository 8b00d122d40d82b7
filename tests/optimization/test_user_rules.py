"""Rules of the user's that a model's check does not see through are tried on their own."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import superopt
from superopt.api.functions import check_rules
from superopt.cli.main import run
from superopt.errors import CheckFailed, ExitCode, UsageError
from superopt.verifier.prove import Limits

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4, 6] x) => (float[4, 6] y)
{
  a = Ceil(x)
  b = Floor(a)
  y = Ceil(b)
}
"""


def model() -> onnx.ModelProto:
    return parser.parse_model(MODEL)


def test_a_rule_that_is_wrong_for_large_values_only(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rules = tmp_path / "my.rules"
    rules.write_text("grows(x: f): Ceil(Floor(Ceil(x))) => Mul(Ceil(x), 1.000005) ; float=E0\n")
    with pytest.raises(CheckFailed) as caught:
        superopt.optimize(model(), rules=[rules], library=False, cost="roofline", budget=5)
    error = caught.value
    assert error.code == ExitCode.REFUTED
    assert "rule grows " in error.what
    assert "nothing was written" in error.what
    assert "my.rules:1" in error.todo


def test_a_right_rule_is_used(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rules = tmp_path / "my.rules"
    rules.write_text("whole(x: f): Ceil(Floor(Ceil(x))) => Ceil(x) ; float=E0\n")
    found = superopt.optimize(model(), rules=[rules], cost="roofline", budget=5)
    assert [s.rule for s in found.report.steps] == ["whole"]
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    got = ReferenceEvaluator(found.model).run(None, {"x": x})[0]
    assert np.array_equal(got, np.ceil(x))


@pytest.mark.one_in(0)
def test_a_rule_that_cannot_be_tried_is_not_trusted(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """It fits this model, whose check never sees the elements for which it is wrong."""
    rules = tmp_path / "my.rules"
    rules.write_text(
        "sly(x: f[n, m]): Ceil(Floor(Ceil(x))) => Ceil(Clip(x, -5000.0, 5000.0)) where n == 977\n"
    )
    given = parser.parse_model(MODEL.replace("[4, 6]", "[977, 2]"))
    asked = {"rules": [rules], "library": False, "cost": "roofline", "budget": 5}
    with pytest.raises(CheckFailed, match="rule sly cannot be tried"):
        superopt.optimize(given, **asked, tier="C", float_class="E3")
    found = superopt.optimize(given, **asked)
    assert not found.changed
    assert any("rule sly was not used: it is not proved" in n for n in found.report.notes)
    (verdict,) = superopt.api.functions.check_rules(rules)  # type: ignore[attr-defined]
    assert verdict.decision == "untestable"
    rules.write_text("# nothing\n")
    with pytest.raises(UsageError, match="contains no rules"):
        superopt.api.functions.check_rules(rules)  # type: ignore[attr-defined]


@pytest.mark.one_in(0)
def test_a_mutant_that_cannot_be_tried_is_left_out(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """With a note, where a rule of the user's own making would end the run."""
    sly = "sly(x: f[n, m]): Ceil(Floor(Ceil(x))) => Ceil(Clip(x, -5000.0, 5000.0)) where n == 977\n"
    (tmp_path / "my.corrected.rules").write_text(sly)
    (tmp_path / "my.pairs").write_text(sly)
    given = parser.parse_model(MODEL.replace("[4, 6]", "[977, 2]"))
    found = superopt.optimize(
        given, rules=[tmp_path / "my.corrected.rules"], library=False, cost="roofline", budget=5,
        tier="C", float_class="E3",
    )  # fmt: skip
    assert not found.changed
    assert any("rule sly cannot be tried: only 0 of 16" in n for n in found.report.notes)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("sides", "said"),
    [
        ("Relu(x) => IsNaN(x)", "its left side is f32[1], its right side bool[1]"),
        ("Softmax(x, axis=k) => Softmax(x, axis=(k,))", "axis (0,) is not in [-1, 1)"),
        ("Transpose(x, perm=p) => ReduceSum(x, axes=p[0])", "is one number"),
        ("Relu(x) => Concat(x, x, axis=0)", "its left side is f32[1], its right side f32[2]"),
    ],
)
def test_a_rule_whose_sides_do_not_fit_together(sides: str, said: str, tmp_path: Path) -> None:
    rules = tmp_path / "my.rules"
    rules.write_text(f"unlike(x: f): {sides}\n")
    (verdict,) = check_rules(rules)
    assert verdict.decision == "untestable"
    assert verdict.detail.startswith("its sides have different types, as for x: f32[")
    assert said in verdict.detail


def test_a_rule_that_is_only_tried_is_used_on_request(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """No proof knows logarithms of powers; the note says how to use the rule all the same."""
    rules = tmp_path / "my.rules"
    rules.write_text("power(x: f, y: f): Log(Pow(x, y)) => Mul(y, Log(x)) ; float=E2\n")
    given = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4, 6] x, float[4, 6] e) => (float[4, 6] y)
        {
          a = Exp(x)
          b = Pow(a, e)
          y = Log(b)
        }
        """)
    asked = {"rules": [rules], "library": False, "cost": "roofline", "budget": 5}
    found = superopt.optimize(given, **asked)
    assert not found.report.steps
    (note,) = (n for n in found.report.notes if n.startswith("rule power was not used"))
    assert "not proved" in note
    assert note.endswith("--tier C uses rules that are only tested")


def test_a_rule_above_the_float_class_is_not_used(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rules = tmp_path / "my.rules"
    rules.write_text("whole(x: f): Ceil(Floor(Ceil(x))) => Ceil(x) ; float=E1\n")
    asked = {"rules": [rules], "library": False, "cost": "roofline", "budget": 5}
    assert superopt.optimize(model(), **asked, float_class="E1").report.steps
    found = superopt.optimize(model(), **asked, float_class="E0")
    assert not found.report.steps
    note = "rule whole was not used: its float class is E1; --float-class E1 uses it"
    assert note in found.report.notes


@pytest.mark.one_in(0)
def test_a_certificate_of_an_own_rule_is_proved_again(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rules, a, b = (tmp_path / n for n in ("my.rules", "a.onnx", "b.onnx"))
    rules.write_text("whole(x: f): Ceil(Floor(Ceil(x))) => Ceil(x) ; float=E0\n")
    onnx.save(model(), a)
    asked = [
        "--rules",
        str(rules),
        "--no-library",
        "--cost",
        "roofline",
        "--budget",
        "5",
        "--quiet",
    ]
    assert run(["optimize", str(a), "-o", str(b), *asked]) == ExitCode.OK
    check = ["verify", a, b, "--certificate", tmp_path / "b.superopt.json", "--rules", rules]
    done = subprocess.run(  # another process, which has not proved the rule yet
        [sys.executable, "-m", "superopt", *check], capture_output=True, text=True, check=False
    )
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    assert "tiers of the rules applied: A: 1" in done.stdout


def test_only_the_rules_that_were_given(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rules = tmp_path / "my.rules"
    rules.write_text("none(x: f): Neg(Neg(Neg(x))) => Neg(x) ; float=E0\n")
    given = parser.parse_model(MODEL.replace("Ceil", "Relu").replace("Floor", "Relu"))
    with_all = superopt.optimize(given, rules=[rules], cost="roofline", budget=5)
    assert with_all.changed
    alone = superopt.optimize(given, rules=[rules], library=False, cost="roofline", budget=5)
    assert not alone.changed


def test_its_caveat_is_in_the_report(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rules = tmp_path / "my.rules"
    rules.write_text("whole(x: f): Ceil(Floor(Ceil(x))) => Ceil(x) ; float=E0 ; caveat=beware\n")
    found = superopt.optimize(model(), rules=[rules], cost="roofline", budget=5)
    assert "whole: beware" in found.report.notes


@pytest.mark.parametrize(
    "wrong",
    [
        {"budget": float("nan")},
        {"budget": -1.0},
        {"alpha": 0.5},
        {"threads": -1},
        {"seed": -5},
        {"tier": "D"},
        {"float_class": "E4"},
    ],
)
def test_arguments_that_make_no_sense(wrong: dict[str, object]) -> None:
    (name,) = wrong
    with pytest.raises(UsageError, match=f"{name}[: ]"):
        superopt.optimize(model(), **wrong)  # type: ignore[arg-type]


RIGHT = "right(x: f): Neg(Neg(x)) => x ; float=E0\n\n"


def test_a_failing_rule_is_reported_with_file_and_line(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    rules = tmp_path / "my.rules"
    rules.write_text("# of mine\n" + RIGHT + "wrong(x: f):\n    Neg(x)\n    => x\n")
    first, second = check_rules(rules)
    assert (first.decision, first.source) == ("proved", f"{rules}:2")
    assert (second.decision, second.source) == ("refuted", f"{rules}:4")
    assert run(["rules", "check", str(rules)]) == ExitCode.REFUTED
    line, count = (x for x in capsys.readouterr().out.splitlines() if "REFUTED" in x)
    assert f"{rules}:4" in line
    assert count == "2 rules: 1 proved, 1 REFUTED"


def test_what_is_proved_and_what_is_not(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rules = tmp_path / "my.rules"
    rules.write_text(RIGHT + "circle(x: f): Sub(1, Mul(Sin(x), Sin(x))) => Mul(Cos(x), Cos(x))\n")
    first, second = check_rules(rules)
    assert first.decision == "proved"
    assert first.detail.startswith("any rank, ")
    assert second.decision == "passed"  # what a sine has to do with a cosine no proof knows
    assert "not proved: " in second.detail
    assert run(["rules", "check", str(rules)]) == ExitCode.UNDECIDED
    rules.write_text(RIGHT)
    assert run(["rules", "check", str(rules)]) == ExitCode.OK


@pytest.mark.parametrize(
    "wrong",
    ["wrong(x: f): Neg(x => x", "wrong(x: f): Negg(x) => x", "wrong x => x", "wrong(x: f): Neg(x)"],
)
def test_an_unreadable_rule_is_reported_with_file_and_line(
    wrong: str,
    tmp_path,  # type: ignore[no-untyped-def]
    capsys,  # type: ignore[no-untyped-def]
) -> None:
    rules = tmp_path / "my.rules"
    rules.write_text(RIGHT + wrong + "\n")
    assert run(["rules", "check", str(rules), "--quiet"]) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert f"error: {rules}:3: " in err
    assert wrong in err
    assert "Traceback" not in err


def test_what_is_no_text_holds_no_rules(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    rules = tmp_path / "my.rules"
    rules.write_bytes(bytes(range(256)))
    assert run(["rules", "check", str(rules)]) == ExitCode.USAGE
    assert f"error: {rules} is not a file of rules" in capsys.readouterr().err


def test_a_rule_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "own.rules"
    file.write_text("add(x: f, y: f): Add(x, y) => Add(y, x)\n", encoding="utf-8-sig")
    (found,) = check_rules(file)
    assert found.name == "add"


def test_one_file_of_rules_is_given_in_a_list(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"pass \['own.rules'\]"):
        superopt.derive("a.onnx", "b.onnx", rules="own.rules")


def test_a_rule_that_divides_by_what_may_be_zero_is_not_used(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rules = tmp_path / "my.rules"
    rules.write_text("inverse(x: f): Ceil(Floor(x)) => Floor(Div(1, Div(1, x))) ; float=E3\n")
    found = superopt.optimize(model(), rules=[rules], library=False, cost="roofline", budget=5)
    assert not found.report.steps
    (verdict,) = check_rules(rules)
    assert verdict.decision == "proved"  # where both sides have a value
    assert verdict.detail.endswith("`optimize` does not use it: it divides by x, which may be 0")
    assert "rule inverse was not used: it divides by x, which may be 0" in found.report.notes


def test_a_rule_that_is_proved_up_to_a_bound_is_used_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a prover that has no time for all sizes, but for the small ones."""
    monkeypatch.setattr(
        "superopt.optimization.admit_rules.PROOF_LIMITS", Limits(seconds=60, work=1, work_beyond=1)
    )
    rules = tmp_path / "my.rules"
    rules.write_text("small(x: f[n, m]): Mul(Add(x, x), x) => Mul(Mul(x, x), 2) ; float=E2\n")
    given = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4, 6] x) => (float[4, 6] y)
        {
          a = Add(x, x)
          y = Mul(a, x)
        }
        """)
    asked = {"rules": [rules], "library": False, "cost": "roofline", "budget": 5, "alpha": 3.0}
    found = superopt.optimize(given, **asked)
    assert not found.report.steps
    note = "rule small was not used: it is proved up to a bound only; --tier B uses it"
    assert note in found.report.notes
    found = superopt.optimize(given, **asked, tier="B")
    assert not any("small was not used" in n for n in found.report.notes)
