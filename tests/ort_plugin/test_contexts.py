"""Contexts that are damaged, of other files, or of other processors."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from superopt.compilation.cpu.library import library_code
from superopt.errors import UsageError
from superopt.ort_plugin.build import HEADERS
from tests.support.compilation.exporting import CC
from tests.support.compilation.models import near, net, picture, reference
from tests.support.ort_plugin.sessions import MISSING, REASON, export, open_session, run_session
from tests.support.paths import ROOT
from tests.support.targets.models import attention

pytestmark = pytest.mark.skipif(MISSING, reason=REASON)
CONTEXT = "m.superopt_ctx"


def change_context(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / CONTEXT).read_text()
        assert old in text
        (folder / CONTEXT).write_text(text.replace(old, new))

    return change


def change_node(name: str, value: object) -> Callable[[Path], None]:
    """Return a function that changes an attribute of the EPContext node."""

    def change(folder: Path) -> None:
        m = onnx.load(folder / "m_ctx.onnx")
        (n,) = m.graph.node
        kept = [a for a in n.attribute if a.name != name]
        del n.attribute[:]
        n.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])
        onnx.save(m, folder / "m_ctx.onnx")

    return change


def cut_weights(folder: Path) -> None:
    weights = folder / "m.weights"
    weights.write_bytes(weights.read_bytes()[:-64])


def flip_weights(folder: Path) -> None:
    data = bytearray((folder / "m.weights").read_bytes())
    data[200] ^= 1
    (folder / "m.weights").write_bytes(bytes(data))


# What is done to the folder, and the message of the session.
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no context": (lambda f: (f / CONTEXT).unlink(), "cannot be read: No such file"),
    "no library": (lambda f: (f / "libm.so").unlink(), "libm.so cannot be loaded"),
    "no weights": (lambda f: (f / "m.weights").unlink(), "the weights cannot be read"),
    "short weights": (cut_weights, "the weights are damaged"),
    "other weights": (flip_weights, "the weights are damaged"),
    "empty library": (lambda f: (f / "libm.so").write_bytes(b""), "libm.so cannot be loaded"),
    "other header": (change_context("context 1", "context 2"), "does not begin with"),
    "no end": (change_context("\nend\n", "\n"), "does not begin with"),
    "no variant": (change_context("library\tlibm.so\tm\tm.weights\n", ""), "it has no library"),
    "unknown line": (change_context("library\t", "binary\t"), "it is damaged, or of a newer"),
    "few fields": (change_context("\tm.weights", ""), "it is damaged, or of a newer"),
    "other prefix": (change_context("\tm\t", "\tother\t"), "has no symbol other_interface"),
    "path upwards": (change_context("libm.so", "../libm.so"), "stay in the model's folder"),
    "absolute path": (change_context("libm.so", "/libm.so"), "stay in the model's folder"),
    "bytes outside": (change_context("libm.so", "@0+99"), "and has 0: it is damaged"),
    "context upwards": (change_node("ep_cache_context", "../x"), "stay in the model's folder"),
    "embedded text": (change_node("embed_mode", 1), "does not begin with"),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    export(net(), folder, shapes={"n": 2})
    return folder / "out"


def copy_folder(source: Path, target: Path) -> Path:
    target.mkdir()
    for f in source.iterdir():
        (target / f.name).write_bytes(f.read_bytes())
    return target


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_export_is_refused(name: str, exported: Path, tmp_path: Path) -> None:
    damage, message = DAMAGES[name]
    folder = copy_folder(exported, tmp_path / "copy")
    open_session(folder / "m_ctx.onnx")
    damage(folder)
    with pytest.raises(Exception, match=message):
        open_session(folder / "m_ctx.onnx")


def test_a_node_of_another_export_is_refused(exported: Path, tmp_path: Path) -> None:
    folder = copy_folder(exported, tmp_path / "copy")
    m = onnx.load(folder / "m_ctx.onnx")
    name = m.graph.node[0].output.pop()
    kept = [v for v in m.graph.output if v.name != name]
    del m.graph.output[:]
    m.graph.output.extend(kept)
    onnx.save(m, folder / "m_ctx.onnx")
    with pytest.raises(Exception, match="has 1 outputs, and its library 2"):
        open_session(folder / "m_ctx.onnx")


def build_foreign(folder: Path) -> None:
    """Build a library that no processor can run."""
    assert CC is not None
    header = ROOT / "superopt/ort_plugin" / HEADERS[-1]
    (folder / "foreign.c").write_text(
        f'#include "{header}"\n'
        "static void *no(const char *w, int p, int *e) { (void)w, (void)p; *e = 4; return 0; }\n"
        'static const char *text(int e) { (void)e; return "this processor lacks one of: qpu"; }\n'
        "const superopt_interface foreign_interface = {\n"
        "    .version = SUPEROPT_INTERFACE_VERSION, .open = no, .error = text};\n"
    )
    command = [CC, "-shared", "-fPIC", "foreign.c", "-o", "libforeign.so"]
    subprocess.run(command, cwd=folder, check=True)


def test_the_first_library_that_fits_the_processor_runs(exported: Path, tmp_path: Path) -> None:
    folder = copy_folder(exported, tmp_path / "copy")
    build_foreign(folder)
    line = "library\tlibforeign.so\tforeign\tm.weights\n"
    change_context("library\tlibm.so", f"{line}library\tlibm.so")(folder)
    session = open_session(folder / "m_ctx.onnx")
    near(run_session(session, {"x": picture(2, 9)}), reference(net(), {"x": picture(2, 9)}))
    (folder / CONTEXT).write_text(f"superopt context 1\n{line}end\n")
    with pytest.raises(Exception, match="lacks one of: qpu; export it with --cpu x86-64-v3"):
        open_session(folder / "m_ctx.onnx")


def test_code_for_several_processors(tmp_path: Path) -> None:
    path, report = export(net(), tmp_path, cpus=["native", "x86-64-v2"])
    lines = (path.parent / CONTEXT).read_text().splitlines()
    names = [line.split("\t")[1] for line in lines if "\t" in line]
    assert names == ["libm.native.so", "libm.x86-64-v2.so"]
    assert report.cpus == ("native", "x86-64-v2")
    feeds = {"x": picture(2, 9)}
    for kept in names:
        text = [line for line in lines if "\t" not in line or kept in line]
        (path.parent / CONTEXT).write_text("\n".join([*text, ""]))
        near(run_session(open_session(path), feeds), reference(net(), feeds))


def test_processors_of_other_systems_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown processor 'armv8-a'\nit must be native or one"):
        export(net(), tmp_path, cpus=["native", "armv8-a"])
    assert not [*tmp_path.rglob("*_ctx.onnx")]


def test_sizes_without_code_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_code, "MAX_CLASS_COMPILES", 0)
    m, feeds, _ = attention()
    session = open_session(export(m, tmp_path)[0])
    x = np.tile(feeds["x"], (1, 4, 1))
    run_session(session, {"x": x})
    with pytest.raises(Exception, match=r"length is 1, and must be at least \d+"):
        run_session(session, {"x": x[:, :1]})


@pytest.mark.parametrize("threads", ["two", "0", ""])
def test_an_unknown_option_value_is_refused(
    threads: str, exported: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Exception) as e:  # before 1.28 it is printed, and another one is raised
        open_session(exported / "m_ctx.onnx", {"threads": threads})
    message = f'threads must be "onnxruntime" or "own", got "{threads}"'
    assert message in str(e.value) + capfd.readouterr().out
