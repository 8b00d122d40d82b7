"""The command line over a fake api: arguments, exit codes, what goes to which stream, Ctrl-C."""

import io
import json
import os
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from superopt.cli import terminal
from superopt.errors import CheckFailed, ExitCode, ModelError
from superopt.report.data.codec import from_json, to_json
from superopt.report.data.report import Event, Verdict
from tests.support.report.fake_api import FakeApi
from tests.support.report.sample_report import FASTER, UNCHANGED

Run = Callable[..., SimpleNamespace]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"original")
    return path


def test_optimize_passes_its_arguments_on(superopt: Run, model: Path, tmp_path: Path) -> None:
    api = FakeApi()
    log = tmp_path / "log"
    log.write_text("decided")
    rules = tmp_path / "my.rules"
    rules.touch()
    done = superopt(
        *("optimize", model, "--budget", "2m", "--shape", "batch=8", "--shape", "s=16,t=2"),
        *("--rules", rules, "--seed", 7, "--alpha", 1.1, "--cost", "roofline"),
        *("--replay", log, "--threads", 2, "--store", tmp_path / "store"),
        api=api,
    )
    assert done.code == 0
    wanted = {
        "model": model,
        "budget": 120.0,
        "target": "onnxruntime",
        "rules": (rules,),
        "shapes": {"batch": 8, "s": 16, "t": 2},
        "inputs": None,
        "threads": 2,
        "seed": 7,
        "alpha": 1.1,
        "replay": "decided",
        "store": tmp_path / "store",
        "cost": "roofline",
    }
    assert {name: api.asked[name] for name in wanted} == wanted


def test_optimize_writes_what_it_says(superopt: Run, model: Path, tmp_path: Path) -> None:
    fast, html, log = (tmp_path / name for name in ("fast.onnx", "r.html", "log"))
    fast.write_bytes(b"older")
    done = superopt("optimize", model, "-o", fast, "--html", html, "--decisions", log)
    assert done.code == 0
    assert fast.read_bytes() == b"faster"
    assert "2.13x faster" in html.read_text()
    assert log.read_text() == "decisions\n"
    assert done.out.startswith("nasrnn.onnx: 2.13x faster (2.05 to 2.20)\n")
    assert f"wrote {fast} (6 B)\n" in done.out
    assert re.search(r"^\[ *\d+\.\d s\] search: 100 graphs, best 1\.80 ms$", done.err, re.MULTILINE)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *("fast.onnx", "log", "model.onnx", "r.html")
    ]


def test_optimize_without_output_writes_beside_the_model(superopt: Run, model: Path) -> None:
    done = superopt("optimize", model)
    fast = model.with_name("model.optimized.onnx")
    assert done.err.startswith(f"the result is written to {fast}\n")
    assert fast.read_bytes() == b"faster"
    assert f"wrote {fast}" in done.out
    assert model.read_bytes() != b"faster"


def test_optimize_prints_few_lines_by_default(superopt: Run, model: Path) -> None:
    short = superopt("optimize", model).out.splitlines()
    assert len(short) <= 15
    assert not any(line.startswith("rules that") for line in short)
    whole = superopt("optimize", model, "-v").out
    assert "rules that were applied nowhere" in whole
    assert "measured latency" in whole


def test_a_model_may_be_replaced_by_its_faster_self(superopt: Run, model: Path) -> None:
    assert superopt("optimize", model, "-o", model).code == 0
    assert model.read_bytes() == b"faster"


def test_optimize_json_is_the_report(superopt: Run, model: Path, tmp_path: Path) -> None:
    done = superopt("optimize", model, "-o", tmp_path / "fast.onnx", "--json")
    assert from_json(done.out) == FASTER
    assert "search: 100 graphs" in done.err


def test_quiet_shows_no_progress(superopt: Run, model: Path) -> None:
    assert superopt("optimize", model, "--quiet").err == ""


def test_unchanged(superopt: Run, model: Path, tmp_path: Path) -> None:
    api = FakeApi(report=UNCHANGED)
    copy = tmp_path / "copy.onnx"
    done = superopt("optimize", model, "-o", copy, api=api)
    assert done.code == 0
    assert copy.read_bytes() == model.read_bytes()
    assert f"{copy} is a byte-identical copy of {model}" in done.out
    assert superopt("optimize", model, "--fail-if-unchanged", api=api).code == 1
    assert superopt("optimize", model, "--fail-if-unchanged").code == 0


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["nothing"], "No such command 'nothing'."),
        (["optimize"], "Missing argument 'MODEL'."),
        (["optimize", "nope.onnx"], "Invalid value for 'MODEL'"),
        (["optimize", "model.onnx", "--budget", "soon"], "Invalid value for '--budget'"),
        (["optimize", "model.onnx", "--shape", "b=x"], "Invalid value for '--shape'"),
        (["optimize", "model.onnx", "--threads", "0"], "Invalid value for '--threads'"),
        (["optimize", "model.onnx", "--target", "tpu"], "Invalid value for '--target'"),
        (["optimize", "model.onnx", "--frobnicate"], "No such option"),
        (["optimize", "model.onnx", "-o", "no/f.onnx"], "--output cannot be written to no/f.onnx"),
        (["optimize", "model.onnx", "-o", "."], "--output cannot be written to ."),
        (
            ["optimize", "model.onnx", "-o", "x", "--html", "./x"],
            "--html and --output are the same file",
        ),
        (["bench", "model.onnx", "--vs", "tensorrt"], "Invalid value for '--vs'"),
        (["explain", "model.onnx", "merge-matmuls"], "the search tried nothing at"),
        (["report", "model.onnx"], "this is not a superopt report"),
        (["rules", "show", "relu-concatenate"], "unknown rule 'relu-concatenate'"),
        (["demo", "--model", "resnet"], "unknown demo model 'resnet'"),
        (["cache", "clear"], "the store was not cleared"),
    ],
)
def test_bad_arguments(
    arguments: list[str], what: str, superopt: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    done = superopt(*arguments)
    assert done.code == ExitCode.USAGE
    lines = [line for line in done.err.splitlines() if line.startswith(("error: ", "       "))]
    assert lines[0].startswith(f"error: {what}")
    assert len(lines) <= 3
    assert [p.name for p in model.parent.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (
            ModelError("model.onnx is not a model", "it ends at byte 8 of 100", "export it again"),
            3,
            "error: model.onnx is not a model\n"
            "       it ends at byte 8 of 100\n       export it again\n",
        ),
        (
            CheckFailed("step 3 is wrong", "y is 1.5, not 2", "report it"),
            4,
            "error: step 3 is wrong\n       y is 1.5, not 2\n       report it\n",
        ),
        (
            ModelError("a name of \x1b[2J"),
            3,
            "error: a name of \\x1b[2J\n",
        ),
        (
            FileNotFoundError(2, "No such file or directory", "weights.bin"),
            2,
            "error: cannot access weights.bin\n"
            "       No such file or directory\n       check the path and the disk\n",
        ),
        (
            ZeroDivisionError("division by zero"),
            70,
            "error: superopt has a bug\n       ZeroDivisionError: division by zero\n"
            "       run it again with --debug and report the output\n",
        ),
        (
            KeyboardInterrupt(),
            130,
            "\nerror: aborted\n       interrupted\n       no partial output was written\n",
        ),
    ],
)
def test_errors(
    error: BaseException, code: int, lines: str, superopt: Run, model: Path, tmp_path: Path
) -> None:
    fast, html = tmp_path / "fast.onnx", tmp_path / "r.html"
    arguments = ("optimize", model, "-o", fast, "--html", html, "--quiet")
    done = superopt(*arguments, api=FakeApi(error=error))
    assert (done.code, done.err, done.out) == (code, lines, "")
    assert not fast.exists()
    assert not html.exists()

    debugged = superopt(*arguments, "--debug", api=FakeApi(error=error))
    assert debugged.code == code
    assert "Traceback (most recent call last)" in debugged.err

    machine = superopt(*arguments, "--json", api=FakeApi(error=error))
    assert json.loads(machine.out)["error"]["code"] == code


def test_the_first_interrupt_stops_and_the_second_aborts(
    superopt: Run, model: Path, tmp_path: Path
) -> None:
    fast = tmp_path / "fast.onnx"
    once = FakeApi(interrupt=1)
    done = superopt("optimize", model, "-o", fast, api=once)
    assert done.code == 0
    assert once.stopped
    assert fast.read_bytes() == b"faster"

    fast.unlink()
    assert superopt("optimize", model, "-o", fast, api=FakeApi(interrupt=2)).code == 130
    assert not fast.exists()


def test_verify(superopt: Run, model: Path) -> None:
    for decision, code in (("proved", 0), ("agrees", 5), ("within_steps", 5), ("differs", 4)):
        api = FakeApi(verdict=Verdict(decision, "why", None))  # type: ignore[arg-type]
        done = superopt("verify", model, model, "--json", api=api)
        assert done.code == code
        assert json.loads(done.out)["decision"] == decision
    assert superopt("verify", model, model).out.startswith(
        "equal on every tested input, not proved"
    )


def test_bench(superopt: Run, model: Path) -> None:
    api = FakeApi()
    done = superopt("bench", model, "--vs", "ort, openvino", "--seconds", "1m", api=api)
    assert done.code == 0
    plain = {"target": "cpu", "precision": "fp32", "vendor": True, "float_class": "E2"}
    assert api.asked == {"vs": ("ort", "openvino"), "seconds": 60.0, **plain}
    assert "4.15 ms to 4.30 ms" in done.out
    assert len(json.loads(superopt("bench", model, model, "--json").out)) == 2
    superopt("bench", model, "--target", "cuda", "--precision", "tf32", "--no-vendor", api=api)
    assert api.asked.items() >= {"target": "cuda", "precision": "tf32", "vendor": False}.items()


def test_explain_a_model(superopt: Run, model: Path) -> None:
    assert "2 applied" in superopt("explain", model, "merge-matmul").out
    assert "1 applied" in superopt("explain", model, "h2_i").out
    assert "1 applied" in superopt("explain", model, "/cell/MatMul").out  # a node, by its values
    assert "no rule of the library matches" in superopt("explain", model, "/cell/Tanh").out
    assert "did you mean merge-matmul" in superopt("explain", model, "merge-matmuls").err


def test_explain_and_report_of_a_stored_report(superopt: Run, tmp_path: Path) -> None:
    stored, html = tmp_path / "r.json", tmp_path / "r.html"
    stored.write_text(to_json(FASTER))
    assert "because constant(scale)" in superopt("explain", stored, "bn-fold").out
    assert json.loads(superopt("explain", stored, "bn-fold", "--json").out)["rejected"]
    assert "a report contains no node names" in superopt("explain", stored, "/cell/MatMul").err
    done = superopt("report", stored, "--html", html)
    assert done.code == 0
    assert done.out.startswith("nasrnn.onnx: 2.13x faster")
    assert html.read_text().startswith("<!doctype html>")
    assert from_json(superopt("report", stored, "--json").out) == FASTER
    stored.write_bytes(b"\xff\xfe")
    assert "it is not text" in superopt("report", stored).err


def test_doctor_and_cache(superopt: Run, tmp_path: Path) -> None:
    assert "  missing  openvino" in superopt("doctor").out
    assert superopt("cache", "stats").out.endswith("measured on AMD EPYC 7B13, 2 cores\n")
    assert superopt("cache", "clear", "--yes").out == "removed 41 entries\n"
    exported = superopt("cache", "export", tmp_path / "costs", "--json")
    assert json.loads(exported.out) == {"exported": 41}
    assert superopt("cache", "import", tmp_path / "costs").code == 130


def test_demo(superopt: Run, tmp_path: Path) -> None:
    done = superopt("demo", "--model", "nasrnn", "--output", tmp_path / "demo")
    assert done.code == 0
    assert sorted(p.name for p in (tmp_path / "demo").iterdir()) == [
        *("nasrnn.fast.onnx", "nasrnn.html", "nasrnn.json", "nasrnn.onnx")
    ]
    assert from_json((tmp_path / "demo" / "nasrnn.json").read_text()) == FASTER
    assert [line.split("  ")[1] for line in done.out.splitlines()[1:4]] == [
        *("onnxruntime", "superopt compile", "superopt optimize, in onnxruntime")
    ]
    assert "agrees: equal on 5 inputs" in done.out.splitlines()[4]
    assert done.out.endswith("superopt optimize YOUR_MODEL.onnx --html report.html\n")
    unchanged = FakeApi(report=UNCHANGED)
    same = superopt("demo", "--model", "nasrnn", "--output", tmp_path / "same", api=unchanged)
    assert "unchanged: no rewritten graph was measured to be faster" in same.out
    stopped = superopt("demo", "--output", tmp_path / "two", "--json", api=FakeApi(interrupt=1))
    assert len(json.loads(stopped.out)) == 1  # Ctrl-C in the first model leaves out the second


def test_plain_progress_is_sparse(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.progress() as show:
        for i in range(1000):
            show(Event("search", f"{i} graphs"))
        show(Event("check", "1 of 5"))
    assert [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()] == [
        *("search: 0 graphs", "check: 1 of 5")
    ]


def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    terminal.write_atomically(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) & 0o044 == 0o044 & ~_umask()

    def fail(self: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        terminal.write_atomically(path, "newer")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
