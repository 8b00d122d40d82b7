"""The commands about rules, over a fake api."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from superopt.errors import ExitCode
from superopt.report.data.report import Derivation, RuleVerdict
from tests.support.report.fake_api import FakeApi

Run = Callable[..., SimpleNamespace]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"original")
    return path


def test_rules_stats(superopt: Run) -> None:
    assert json.loads(superopt("rules", "stats", "--json").out)[0]["rules"] == 3
    shown = superopt("rules", "stats").out.splitlines()
    assert shown[1].split() == ["some.rules", "3", "1", "2", "E0,", "1", "E1", "3", "hand"]


def test_rules_generate(superopt: Run, tmp_path: Path) -> None:
    api = FakeApi()
    done = superopt(
        "rules", "generate", "--out", tmp_path, "--family", "rows", "--jobs", 2, "--json", api=api
    )
    assert done.code == 0
    assert json.loads(done.out)["families"][0]["rules"] == 63
    wanted = {"out": tmp_path, "families": ("rows",), "max_ops": 4, "jobs": 2, "ops": None}
    assert {name: api.asked[name] for name in wanted} == wanted


def test_rules_generate_with_operators_of_ones_own(superopt: Run, tmp_path: Path) -> None:
    api = FakeApi()
    given = ("--ops", "Relu,Concat(axis=0)", "--shapes", "x=2x3,s=", "--ray", "local")
    assert superopt("rules", "generate", "--out", tmp_path, *given, api=api).code == 0
    wanted = {"families": (), "ops": "Relu,Concat(axis=0)", "shapes": "x=2x3,s=", "ray": "local"}
    assert {name: api.asked[name] for name in wanted} == wanted


def test_an_interrupted_generator_says_where_it_goes_on(superopt: Run, tmp_path: Path) -> None:
    done = superopt("rules", "generate", "--out", tmp_path, api=FakeApi(interrupt=1))
    assert done.code == ExitCode.ABORTED
    assert f"run the same command to continue in {tmp_path}" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_mutants_that_are_interrupted_go_on(
    superopt: Run, tmp_path: Path, sent: signal.Signals
) -> None:
    """Nor is anything else done at SIGTERM afterwards than before."""
    before = signal.getsignal(signal.SIGTERM)
    api = FakeApi(interrupt=1, sent=sent)
    done = superopt("rules", "generate", "--partial", "--out", tmp_path, api=api)
    assert done.code == ExitCode.ABORTED
    assert f"run the same command to continue in {tmp_path}" in done.err
    assert signal.getsignal(signal.SIGTERM) is before


def test_rules_derive(superopt: Run, model: Path) -> None:
    done = superopt("rules", "derive", model, model, "--json")
    assert done.code == 0
    step = {"rule": "r", "forward": True, "after": "Relu(x)", "tier": "A", "float_class": "E1"}
    assert json.loads(done.out)["steps"] == [step]
    none = FakeApi(derivation=Derivation(False, "the limit of steps was reached", (), 7, 1.0))
    done = superopt("rules", "derive", model, model, "--limit", "3s", api=none)
    assert done.code == 5
    assert done.out.startswith("not derived")
    assert none.asked["limit"] == 3.0


def test_rules(superopt: Run, tmp_path: Path) -> None:
    assert "1 rule\n" in superopt("rules", "list").out
    assert "tier C: tested" in superopt("rules", "show", "relu-concat").out
    file = tmp_path / "my.rules"
    file.touch()
    proved = RuleVerdict("a", "a: x => x", "proved", "")
    passed = RuleVerdict("b", "b: x => x", "passed", "at 8 shapes")
    refuted = RuleVerdict("c", "c: x => y", "refuted", "x=1, y=2", "my.rules:3")
    for verdicts, code in (
        ((proved,), 0),
        ((proved, passed), 5),
        ((proved, passed, refuted), 4),
    ):
        done = superopt("rules", "check", file, api=FakeApi(rule_verdicts=verdicts))
        assert done.code == code
    assert "my.rules:3" in done.out
    assert done.out.splitlines()[-1] == "3 rules: 1 proved, 1 not refuted, 1 REFUTED"
