"""The commands about compiled models, over a fake api."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from superopt.report.compilation.compile_report import CompilationReport, FallbackNode
from tests.support.report.fake_api import COMPILATION, PROFILE, FakeApi

Run = Callable[..., SimpleNamespace]
ON = {"target": "cpu", "precision": "fp32", "vendor": True, "float_class": "E2"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"original")
    return path


def test_compile_says_what_became_of_the_model(
    superopt: Run, model: Path, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    api = FakeApi()
    done = superopt("compile", model, "--threads", 2, "--shape", "n=4", "--dump", tmp_path, api=api)
    assert done.code == 0
    assert api.asked == {
        "threads": 2, "shapes": {"n": 4}, "dump": tmp_path, "output": None, "aot": (), **ON
    }  # fmt: skip
    golden("compilation.txt", done.out)
    found = json.loads(superopt("compile", model, "--json", api=api).out)
    assert found["foreign"] == [{"node": "TopK best", "why": COMPILATION.foreign[0].why}]


def test_compile_saves_machine_code(superopt: Run, model: Path, tmp_path: Path) -> None:
    api, out = FakeApi(), tmp_path / "m.superopt"
    done = superopt("compile", model, "-o", out, "--aot", "native,x86-64-v3", api=api)
    assert done.code == 0
    assert (api.asked["output"], api.asked["aot"]) == (out, ("native", "x86-64-v3"))
    assert "add --output" in superopt("compile", model, "--aot", "native", api=FakeApi()).err


def test_explain_says_what_a_compiled_model_leaves_to_onnxruntime(
    superopt: Run, model: Path, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    done = superopt("explain", model, api=FakeApi())
    assert done.code == 0
    golden("fallen.txt", done.out)
    found = json.loads(superopt("explain", model, "--json", api=FakeApi()).out)
    assert [f["node"] for f in found["foreign"]] == [f.node for f in COMPILATION.foreign]
    report = tmp_path / "report.json"
    report.write_text("{}")
    assert "pass the name of one" in superopt("explain", report, api=FakeApi()).err


def test_explain_has_notes_as_text_and_as_json(superopt: Run, model: Path) -> None:
    class Noting(FakeApi):
        def compile_model(self, model: Path, **asked: object) -> CompilationReport:
            return replace(COMPILATION, notes=("quantization amplifies differences",))

    text = superopt("explain", model, api=Noting()).out
    found = json.loads(superopt("explain", model, "--json", api=Noting()).out)
    assert "note: quantization amplifies differences" in text
    assert found["notes"] == ["quantization amplifies differences"]
    assert (found["model"], found["nodes"]) == (COMPILATION.model, COMPILATION.nodes)


def test_compile_groups_fallbacks_by_cause(superopt: Run, model: Path) -> None:
    nodes = [FallbackNode(f"NonZero n{n}", "NonZero has no tensor expression") for n in range(104)]
    nodes += [FallbackNode(f"X x{n}", f"reason {n}") for n in range(4)]

    class Falling(FakeApi):
        def compile_model(self, model: Path, **asked: object) -> CompilationReport:
            return replace(COMPILATION, foreign=tuple(nodes))

    text = superopt("compile", model, api=Falling()).out
    (line,) = (line for line in text.splitlines() if "in onnxruntime" in line)
    assert line.startswith(
        "  108 nodes in onnxruntime: 104 since NonZero has no tensor expression; "
    )
    assert "2 for other causes" in line
    assert len(text.splitlines()) <= 4
    assert superopt("explain", model, api=Falling()).out.count("NonZero n") == 104


def test_tune_says_what_was_found(
    superopt: Run, model: Path, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    api = FakeApi()
    done = superopt("tune", model, "--budget", "2m", "--store", tmp_path, "--quiet", api=api)
    assert done.code == 0
    kernels = {"store": tmp_path, "float_class": "E2", **ON}
    assert api.asked == {"threads": None, "shapes": {}, "budget": 120.0, **kernels}
    golden("tuned.txt", done.out)
    superopt("tune", model, "--quiet", api=api)
    assert api.asked["budget"] is None  # which is the target's own
    assert "5m, on a GPU 90s" in superopt("tune", "--help", api=api).out


def test_profile_says_how_long_kernels_take(
    superopt: Run, model: Path, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    api = FakeApi()
    picture = tmp_path / "p.svg"
    done = superopt("profile", model, "--shape", "n=4", "--svg", picture, api=api)
    assert done.code == 0
    assert api.asked == {"threads": None, "shapes": {"n": 4}, "inputs": None, "seconds": 2.0, **ON}
    golden("profile.txt", done.out)
    golden("profile.svg", picture.read_text())
    found = json.loads(superopt("profile", model, "--json", api=api).out)
    assert [p["how"] for p in found["parts"]] == [p.how for p in PROFILE.parts]


def test_run_says_what_the_outputs_are(
    superopt: Run, model: Path, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    api = FakeApi()
    x, y = tmp_path / "x.npz", tmp_path / "y.npz"
    x.touch()
    on = {"target": "cuda", "precision": "fp16", "vendor": False, "float_class": "E1"}
    gpu = ("--target", "cuda", "--precision", "fp16", "--no-vendor", "--float-class", "E1")
    done = superopt("run", model, "--inputs", x, "-o", y, *gpu, api=api)
    assert done.code == 0
    assert api.asked == {"inputs": x, "output": y, "threads": None, **on}
    golden("outputs.txt", done.out)


def test_run_writes_over_nothing_that_it_reads(superopt: Run, model: Path, tmp_path: Path) -> None:
    x = tmp_path / "x.npz"
    x.touch()
    for output in (x, model):
        done = superopt("run", model, "--inputs", x, "-o", output, api=FakeApi())
        assert (done.code, "this file is an input" in done.err) == (2, True)


def test_export_says_what_was_written(
    superopt: Run, model: Path, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    api = FakeApi()
    done = superopt(
        "export", model, "-o", tmp_path, "--threads", 2, "--shape", "n=4", "--shape", "s=9",
        api=api,
    )  # fmt: skip
    assert done.code == 0
    sizes = {"n": 4, "s": 9}
    own = {
        "output": tmp_path,
        "threads": 2,
        "shapes": sizes,
        "float_class": "E2",
        "cpu": None,
        "target": None,
    }
    assert api.asked == own
    golden("exported.txt", done.out)
    found = json.loads(superopt("export", model, "-o", tmp_path, "--json", api=api).out)
    assert found["outputs"][1] == {"name": "n", "dtype": "int64", "shape": [], "bytes": 8}


def test_cache_on_disk(superopt: Run) -> None:
    assert superopt("cache", "path").out == "cache\n"
    text = superopt("cache", "list").out.splitlines()
    assert text[1] == "  3.00 MB of at most 4.29 GB"
    assert [line.split(",")[0].split(None, 2)[2] for line in text[2:]] == [
        "object code: 2 files", "packed constants: 1 file",
    ]  # fmt: skip
    assert superopt("cache", "list", "--files").out.splitlines()[-1].endswith("objects/ef.o")
    found = json.loads(superopt("cache", "list", "--json").out)
    assert (found["bytes"], found["limit"], len(found["files"])) == (3_003_000, 4 << 30, 3)
    given = ("cache", "prune", "--max-size", "2GiB", "--older-than", "30d")
    assert superopt(*given).out == "removed 2 files, 3.00 MB; 2.00 kB remain\n"
    assert json.loads(superopt(*given, "--json").out)["removed_bytes"] == 3_001_000


def test_compile_writes_what_a_search_found_as_a_page(
    superopt: Run, model: Path, tmp_path: Path
) -> None:
    page = tmp_path / "search.html"
    done = superopt("compile", model, "--search", "9s", "--html", page)
    assert done.code == 0
    assert f"wrote {page}" in done.out
    assert "Where the time went" in page.read_text()
    refused = superopt("compile", model, "--html", tmp_path / "other.html")
    assert refused.code == 2
    assert "--html without --search" in refused.err
    assert not (tmp_path / "other.html").exists()
