"""Models that are equal by a chain of rules, each of which is proved."""

import onnx
import pytest
from onnx import parser

import superopt
from superopt.report.data.report import Verdict
from superopt.rules.library.load import load_library
from superopt.rules.library.records import tier
from superopt.rules.trial.new_divisors import new_divisors
from superopt.verification import rule_chains
from superopt.verification.rule_chains import proved_rules


def model(body: str, outputs: str = "float[4, 6] y") -> onnx.ModelProto:
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    return parser.parse_model(
        f"{head} g (float[4, 6] x, float[4, 6] z) => ({outputs}) {{ {body} }}"
    )


def verify(a: onnx.ModelProto, b: onnx.ModelProto, method: str = "rules") -> Verdict:
    return superopt.verify(a, b, method=method, limit=3)  # type: ignore[no-any-return]


def test_a_chain_is_reported() -> None:
    a = model("a = Relu(x) b = Relu(a) c = Add(b, z) y = Neg(c)")
    b = model("a = Relu(x) b = Neg(a) y = Sub(b, z)")
    found = verify(a, b)
    assert found.decision == "proved"
    (output,) = found.outputs
    assert output.reason.startswith("by ")
    assert " rewrites: " in output.reason
    assert any("units in the last place" in n for n in found.notes)


@pytest.mark.parametrize("method", ["rules", "auto", "index"])
def test_what_differs_is_not_proved(method: str) -> None:
    found = verify(model("y = Add(x, z)"), model("y = Sub(x, z)"), method)
    assert found.decision in ("differs", "unknown")
    assert [o.decision for o in found.outputs] != ["proved"]


def test_constants_that_were_given_are_not_taken_for_each_other() -> None:
    """They are two units in the last place apart."""
    c, d, k = (f"{n} = Constant<value_float = {v}> ()" for n, v in CONSTANTS)
    a = model(f"{c} {d} {k} a = Mul(x, c) b = Mul(x, d) e = Sub(a, b) y = Mul(e, k)")
    b = model(f"{k} a = Sub(x, x) y = Mul(a, k)")
    assert verify(a, b).decision == "unknown"
    assert verify(a, b, "index").decision == "unknown"


CONSTANTS = (("c", "0.33333334"), ("d", "0.33333331"), ("k", "100000000.0"))


def test_each_output_has_its_own() -> None:
    outputs = "float[4, 6] y, float[4, 6] w"
    a = model("a = Neg(x) y = Neg(a) w = Add(x, z)", outputs)
    b = model("y = Identity(x) w = Mul(x, z)", outputs)
    assert [o.decision for o in verify(a, b).outputs] == ["proved", "unknown"]


def test_only_what_is_proved_and_divides_by_nothing_new_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = {r.name: r for r in load_library()}
    some = {"relu-relu", "neg-neg"}
    monkeypatch.setattr(rule_chains, "tier", lambda r: "C" if r.name in some else tier(r))
    used = {r.name for r in proved_rules.__wrapped__().rules}
    assert len(used) > 1000
    assert all(tier(library[n]) == "A" and not new_divisors(library[n]) for n in used)
    assert any(new_divisors(r) for r in library.values())
    assert some <= {r.name for r in proved_rules().rules}
    assert not some & used
