"""The file that keeps what was found of a model's windows, damaged; and windows of odd sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest

from superopt.compilation.node_timing import COMPILED_TIMERS
from superopt.generate.engine.journal import Journal
from superopt.onnx_io.read.source import read_model
from superopt.report.text.rules_text import mutation_text
from superopt.rulegen import model_mutants
from superopt.rulegen.model_journal import open_journal
from tests.support.compilation.forms import weights
from tests.support.compilation.models import F, model
from tests.support.partial.windows import found, kept, net

RUN = "this run"
LINE = {
    "pair": "a(x: f[1, c]): Neg(x) => x",
    "corrected": "a(x: f[1, c]): Neg(Neg(x)) => x",
    "share": 0.5,
    "equal": ["[0, :]"],
    "different": [],
}
GOOD = {
    '["Conv", []]': [LINE, {"dropped": "no correction along axes"}],
    '3 ["Conv", []]': LINE,
    '4 ["Conv", []]': None,
    LINE["corrected"]: {"corrected": LINE["corrected"], "proof": "all"},
}


def written(path: Path, content: Mapping[object, object]) -> Path:
    journal = Journal.open(path, RUN)
    for key, value in content.items():
        journal.add(str(key), value if isinstance(value, str) else json.dumps(value))
    journal.close()
    return path


def known(path: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    journal, notes = open_journal(path, RUN)
    journal.close()
    return journal.known, notes


def test_what_is_whole_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "windows.jsonl", GOOD)
    found, notes = known(path)
    assert [json.loads(v) for v in found.values()] == [*GOOD.values()]
    assert not notes


@pytest.mark.parametrize("content", [b"nonsense\n", b"\x00\xff", b'{"format": 4, "run": "b"}\n'])
def test_what_is_no_journal_is_said_once_and_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "windows.jsonl"
    path.write_bytes(content)
    found, (note,) = known(path)
    assert not found
    assert note.endswith("it was renamed to windows.jsonl.corrupt-1, and a new one was started")
    assert (tmp_path / "windows.jsonl.corrupt-1").read_bytes().startswith(content)
    assert known(path) == ({}, ())


def test_lines_that_are_damaged_are_found_again(tmp_path: Path) -> None:
    path = written(tmp_path / "windows.jsonl", GOOD)
    head, first, *lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(head + first.replace(b"Neg", b"Abs") + b"".join(lines))
    found, (note,) = known(path)
    assert len(found) == len(GOOD) - 1
    assert "1 line cannot be read; it was renamed" in note
    assert known(path) == (found, ())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ('["Conv"]', {"dropped": "a list is wanted"}),
        ('["Conv"]', [7]),
        ('["Conv"]', [{**LINE, "share": "all"}]),
        ('["Conv"]', [{**LINE, "corrected": "nonsense"}]),
        ('["Conv"]', [{**LINE, "corrected": "a(x: f): Neg(Neg(x)) => x"}]),
        ('["Conv"]', [{**LINE, "pair": "a(x: f[q]): Neg(Neg(x)) => x"}]),
        ('["Conv"]', [{**LINE, "pair": ""}]),
        ('3 ["Conv"]', [LINE]),
        ("a rule", LINE),
        ("a rule", None),
        ("a rule", "{"),
        ("a rule", "[" * 100_000),
    ],
)
def test_what_is_of_another_form_is_found_again(tmp_path: Path, key: str, value: object) -> None:
    path = written(tmp_path / "windows.jsonl", {**GOOD, key: value})
    found, (note,) = known(path)
    assert len(found) == len(GOOD)
    assert "1 line cannot be read" in note


def told(path: Path, **asked: object) -> tuple[str, ...]:
    return found(path, **asked)[1]


def test_a_damaged_file_beside_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_mutants, "mutate_window", lambda window, journal, stop: [])
    path = tmp_path / "net.onnx"
    conv = onnx.helper.make_node("Conv", ["x", "w"], ["y"])
    onnx.save(model([conv], {"x": (F, [1, 4, 4, 4])}, ["y"], weights(w=(4, 4, 3, 3))), path)
    (whole,) = told(path)
    (file,) = tmp_path.glob(f"mutants/*/{model_mutants.JOURNAL_FILE}")
    file.write_text("nonsense")
    note, same = told(path)
    assert "a new one was started" in note
    assert same == whole
    assert told(path) == (whole,)


@pytest.mark.ci
@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ends=(", "ends=(1 + "),  # false
        ("float=E2", "float=E0"),
        pytest.param("float=E1", "float=E0", marks=pytest.mark.slow),
    ],
)
def test_a_rule_that_is_not_what_was_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    """Its sum is right; it is not used as it is, and ends nothing."""
    monkeypatch.setattr(model_mutants, "_faster_mutants", kept)
    path = tmp_path / "net.onnx"
    onnx.save(net(), path)
    rules, (whole,) = found(path)
    (file,) = tmp_path.glob(f"mutants/*/{model_mutants.JOURNAL_FILE}")
    head, *lines = file.read_text().splitlines()
    journal = Journal.open(file, json.loads(head)["run"])
    proofs = {k: v for k, v in journal.known.items() if '"proof"' in v}
    some = {k: v.replace(old, new) for k, v in proofs.items() if old in v}
    for key, value in some.items():
        journal.add(key, value)
    journal.close()
    assert len(lines) == len(set(lines))
    same, (note,) = found(path)
    assert same == rules
    if not some:
        assert note == whole
        return
    assert f"{file} disagreed with the proof" in note
    assert note.startswith(whole)
    assert found(path) == (rules, (whole,))


@pytest.mark.one_in(0)
def test_generate_says_what_of_a_journal_was_not_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a line of its own, once; what is written is what was proved."""
    monkeypatch.setattr(model_mutants, "_faster_mutants", kept)
    path, out = tmp_path / "net.onnx", tmp_path / "out"
    onnx.save(net(), path)

    def generated() -> tuple[str, str]:
        made = model_mutants.generate_model_mutants(
            read_model(path), out, tmp_path / "costs.db", lambda event: None, COMPILED_TIMERS
        )
        return mutation_text(made), (out / "net.corrected.rules").read_text()

    whole, rules = generated()
    file = out / model_mutants.JOURNAL_FILE
    assert "otherwise" not in whole
    journal = Journal.open(file, json.loads(file.read_text().partition("\n")[0])["run"])
    proofs = {k: v for k, v in journal.known.items() if '"proof"' in v}
    for key, value in [*proofs.items()][:2]:
        journal.add(key, value.replace("float=E2", "float=E0"))
    journal.close()
    said, same = generated()
    assert same == rules
    assert said.count(f"  2 rules of {file} disagreed with the proof\n") == 1
    assert "otherwise" not in generated()[0]


@pytest.mark.parametrize(
    ("sizes", "shapes", "said"),
    [
        ([0, 4, 4, 4], {}, "of 0 of 0 subprograms"),
        (
            [2, 4, "n", 4],
            {"n": 4},
            "of 0 of 0 subprograms; not of 1 window with dynamic spatial sizes or channels"
            " (--shape only sets the sizes for timing), or not of float32",
        ),
    ],
)
def test_windows_that_have_no_mutants(
    tmp_path: Path, sizes: list[int | str], shapes: dict[str, int], said: str
) -> None:
    path = tmp_path / "net.onnx"
    conv = onnx.helper.make_node("Conv", ["x", "w"], ["y"])
    onnx.save(model([conv], {"x": (F, sizes)}, ["y"], weights(w=(4, 4, 3, 3))), path)
    (note,) = told(path, shapes=shapes)
    assert note == f"0 rules of the model's own mutants, {said}"


@pytest.mark.parametrize("count", [1, 2])
def test_a_kernel_larger_than_the_image_has_no_mutants(tmp_path: Path, count: int) -> None:
    """onnxruntime takes such a convolution; it is opaque to us."""
    path = tmp_path / "net.onnx"
    wide = {"dilations": [3, 3], "strides": [1, 3], "pads": [0, 0, 1, 0]}
    nodes = [onnx.helper.make_node("Conv", ["x", f"w{n}"], [f"y{n}"], **wide) for n in range(count)]
    some = weights(**{f"w{n}": (4, 4, 1, 2) for n in range(count)})
    onnx.save(model(nodes, {"x": (F, [3, 4, 8, 3])}, [f"y{n}" for n in range(count)], some), path)
    assert found(path)[0] == []
