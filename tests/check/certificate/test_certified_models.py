"""Certificates of models with opaque nodes and with rules of the user's own; the command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from superopt.api import functions
from superopt.check.graph_identity import CertificateRefused, check_folded, constant_digest
from superopt.ir import graph
from superopt.onnx_io.read.source import read_model
from superopt.report.data.certificate import FoldedTensor, StatedRule, certificate_json
from tests.support.check.certified import Certified, certified, verdict
from tests.support.ir.graphs import op


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return certified(tmp_path_factory.mktemp("certified"))


# --- rules of the user's --------------------------------------------------------------------------


def test_rules_of_the_users_are_proved_again(tmp_path: Path) -> None:
    """From their file, or from the certificate's own text."""
    rules = tmp_path / "my.rules"
    rules.write_text("my-relu(x: f): Relu(Relu(x)) => Relu(x) ; float=E0\n")
    done = certified(tmp_path, rules=[rules], library=False)
    ask = (done.original, done.optimized)
    assert (
        functions.verify(*ask, certificate=done.certificate, rules=[rules]).decision == "certified"
    )
    without = functions.verify(*ask, certificate=done.certificate)
    assert without.decision == "certified"
    assert (
        without.reason == functions.verify(*ask, certificate=done.certificate, rules=[rules]).reason
    )
    rules.write_text("my-relu(x: f): Relu(Relu(x)) => Relu(x) ; float=E1\n")
    other = functions.verify(*ask, certificate=done.certificate, rules=[rules])
    assert other.decision == "refused"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("my-relu(x: f): Relu(x) => x ; float=E0", "rule my-relu is wrong: x: f32[] = -1"),
        ("my-relu(x: f): Relu(x => x", "rule my-relu, which is not in the library, cannot be read"),
        (
            "her-relu(x: f): Relu(Relu(x)) => Relu(x)",
            "my-relu, which is not in the library, has another name",
        ),
        (
            "my-relu(x: f): Sinh(x) => Mul(Sub(Exp(x), Exp(Neg(x))), 0.5)",
            "rule my-relu, which is not in the library, was not proved (it is not proved:",
        ),
        ("", "my-relu, which is not in the library, has another name in its text: ''"),
    ],
)
def test_a_rule_that_only_the_certificate_knows_is_not_believed(
    text: str, said: str, tmp_path: Path
) -> None:
    rules = tmp_path / "my.rules"
    rules.write_text("my-relu(x: f): Relu(Relu(x)) => Relu(x) ; float=E0\n")
    done = certified(tmp_path, rules=[rules], library=False)
    c = done.read()
    path = tmp_path / "forged.superopt.json"
    path.write_text(certificate_json(replace(c, rules=(replace(c.rules[0], text=text),))))
    found = functions.verify(done.original, done.optimized, certificate=path)
    assert found.decision == "refused"
    assert said in found.reason


def test_the_tier_of_a_rule_of_the_users_is_what_its_proof_says(tmp_path: Path) -> None:
    """Also where a certificate says less: nobody is to be told another tier than there is."""
    rules = tmp_path / "my.rules"
    rules.write_text("own-relu(x: f): Relu(Relu(x)) => Relu(x) ; float=E0\n")
    done = certified(tmp_path, rules=[rules], library=False)
    c = done.read()
    assert [r.tier for r in c.rules] == ["A"]
    for less in ("B", "C", ""):
        path = tmp_path / "forged.superopt.json"
        path.write_text(certificate_json(replace(c, rules=(replace(c.rules[0], tier=less),))))
        found = functions.verify(done.original, done.optimized, certificate=path, rules=[rules])
        assert found.decision == "refused"
        assert found.reason == f"rule own-relu: tier is A, not {less}"


def test_a_wrong_rule_of_the_users_is_refused(made: Certified, tmp_path: Path) -> None:
    """Whatever tier the certificate says that it has."""
    text = "relu-gone(x: f): Relu(x) => x ; float=E0 ; origin=hand"
    rules = tmp_path / "wrong.rules"
    rules.write_text(text + "\n")
    c = made.read()
    first = replace(c.rounds[0][0], rule="relu-gone")
    path = tmp_path / "forged.superopt.json"
    for tier in ("A", "C"):
        stated = (*c.rules, StatedRule("relu-gone", text, tier, "E0"))
        path.write_text(certificate_json(replace(c, rules=stated, rounds=((first,), *c.rounds))))
        found = functions.verify(made.original, made.optimized, certificate=path, rules=[rules])
        assert found.decision == "refused"
        assert found.reason == "rule relu-gone is wrong: x: f32[] = -1; lhs = 0; rhs = -1"


# --- what has no tensor expression ----------------------------------------------------------------

OPAQUE = """
<ir_version: 8, opset_import: ["" : 17]>
opaque (float[4, 6] x) => (float[4, 6] y, float[4, 2] v)
<int64 times = {3}, bool on = {1}, int64[1] k = {2}>
{
  s = Relu(x)
  r = Relu(s)
  a = RandomNormalLike(r)
  b = RandomNormalLike(r)
  c = Sub(a, b)
  z = Loop(times, on, c) <body = inside (int64 i, bool go, float[4, 6] h) => (bool more, float[4, 6] o) {
    more = Identity(go)
    o = Add(h, r)
  }>
  y = Relu(z)
  v, w = TopK<largest = 1>(r, k)
}
"""  # noqa: E501


@pytest.fixture(scope="module")
def opaque(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return certified(tmp_path_factory.mktemp("opaque"), parser.parse_model(OPAQUE))


def _one_random(proto: onnx.ModelProto) -> None:
    (n,) = [n for n in proto.graph.node if n.op_type == "Sub"]
    n.input[1] = n.input[0]


def _body(proto: onnx.ModelProto) -> None:
    (n,) = [n for n in proto.graph.node if n.op_type == "Loop"]
    n.attribute[0].g.node[1].op_type = "Mul"


def _body_operand(proto: onnx.ModelProto) -> None:
    (n,) = [n for n in proto.graph.node if n.op_type == "Loop"]
    inner = n.attribute[0].g
    inner.node[1].input[1] = inner.node[1].input[0]


def _smallest(proto: onnx.ModelProto) -> None:
    (n,) = [n for n in proto.graph.node if n.op_type == "TopK"]
    n.attribute[0].i = 0


def test_opaque_nodes_are_certified(opaque: Certified) -> None:
    ask = (opaque.original, opaque.optimized)
    assert functions.verify(*ask, certificate=opaque.certificate).decision == "certified"


@pytest.mark.parametrize("change", [_one_random, _body, _body_operand, _smallest])
def test_a_changed_opaque_node_is_refused(
    change: Callable[[onnx.ModelProto], None], opaque: Certified, tmp_path: Path
) -> None:
    path = opaque.changed(change, tmp_path)
    forged = replace(opaque.read(), optimized=read_model(path).sha256)
    assert verdict(opaque, forged, tmp_path, b=path).decision == "refused"


def test_what_would_take_all_memory_is_refused() -> None:
    huge = op("Expand", graph.constant(np.ones(1, np.float32)), shape=(1 << 20, 1 << 20))
    v = op("ReduceMax", huge, axes=(0, 1), keepdims=0)
    c = graph.constant(np.ones((), np.float32))
    with pytest.raises(CertificateRefused, match="too large"):
        check_folded(FoldedTensor("v1", "f32[]", constant_digest(c), "rounded"), v, c)


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.one_in(0)
def test_the_command(made: Certified, tmp_path: Path) -> None:
    def run(certificate: Path) -> tuple[int, str]:
        command = [sys.executable, "-m", "superopt", "verify", str(made.original)]
        command += [str(made.optimized), "--certificate", str(certificate), "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    code, said = run(made.certificate)
    assert (code, said[:10]) == (0, "certified:"), said
    forged = tmp_path / "forged.json"
    forged.write_text(certificate_json(replace(made.read(), library="0" * 64)))
    code, said = run(forged)
    assert code == 4
    assert "another rule library" in said
    forged.write_text(made.certificate.read_text()[:-20])
    code, said = run(forged)
    assert code == 2
    assert "is not a superopt certificate" in said


def test_the_checker_loads_neither_search_nor_matcher() -> None:
    code = (
        "import sys, superopt.check.certificate.replay\n"
        "bad = [m for m in sys.modules if m.startswith(('superopt.search', 'superopt.generate',"
        " 'superopt.loading', 'superopt.compilation', 'superopt.verification', 'superopt.rulegen',"
        " 'superopt.optimization', 'superopt.jobs', 'superopt.verifier')) or m in ("
        "'superopt.rules.match.matcher',"
        " 'superopt.rules.match.pattern', 'superopt.rules.match.operand_steps',"
        " 'superopt.rules.match.rewrite', 'superopt.rules.match.rule_index',"
        " 'onnxruntime', 'z3')]\n"
        "print(','.join(bad) or 'none')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "none"
