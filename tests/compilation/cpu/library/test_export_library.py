"""Models as shared objects: what C gets from them, and what is refused."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.api import model_files
from superopt.compilation.cpu.library import export_library as export_
from superopt.errors import UsageError
from superopt.kernels.runtime.cpu import BASELINE_FEATURES, Machine, checkable_target, host
from superopt.kernels.runtime.feature_checks import X86_BITS
from superopt.report.compilation.compile_report import ExportReport
from tests.support.compilation.exporting import (
    CASES,
    CC,
    DAMAGED,
    HERE,
    NO_FILE,
    NO_PROCESSOR,
    NO_TENSOR,
    OK,
    OTHER_FILE,
    InC,
    constants,
    floats,
    node,
    only_constants,
)  # fmt: skip
from tests.support.compilation.models import F, model, net, partly_foreign, picture

pytestmark = pytest.mark.skipif(
    CC is None or not HERE, reason="shared objects need Linux on x86-64 and a C compiler"
)


@pytest.mark.one_in(16)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_c_gets_the_same_bits(
    name: str, threads: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name == "float16":
        request.getfixturevalue("float16")
    m, feeds = CASES[name]()
    exe = superopt.compile(m, threads=threads, specialize="eager")
    wanted = exe.run(feeds)
    e = exe.export(tmp_path / "m", shapes={"n": 2} if name == "net" else None)
    assert [(p.name, p.dtype, p.shape) for p in e.outputs] == [
        (k, str(a.dtype), a.shape) for k, a in wanted.items()
    ]
    opened = InC(e)
    assert opened.error == OK
    for _ in range(2):  # borders and memory that is used again hold nothing of an earlier run
        for k, got in opened.run(feeds).items():
            np.testing.assert_array_equal(got, wanted[k], strict=True)
    opened.close()


MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "resnet-18.h"

int main(int count, char **given)
{
    int error = count > 2 ? 0 : 99;
    static char x[RESNET_18_INPUT_0_BYTES], y[RESNET_18_OUTPUT_0_BYTES];
    const void *inputs[RESNET_18_INPUTS] = {x};
    void *outputs[RESNET_18_OUTPUTS] = {y, malloc(resnet_18_outputs[1].bytes)};
    resnet_18_model *model = resnet_18_open(given[1], &error);
    if (model == NULL) {
        printf("%s\\n", resnet_18_error(error));
        return error;
    }
    FILE *from = fopen(given[2], "rb");
    if (fread(x, 1, sizeof x, from) != sizeof x || fclose(from) != 0)
        return 99;
    error = resnet_18_run(model, inputs, outputs);
    resnet_18_close(model);
    for (int n = 0; resnet_18_outputs[n].name != NULL; n++) {
        const resnet_18_tensor *t = &resnet_18_outputs[n];
        printf("%s %d %d %d\\n", t->name, t->type, t->rank, (int)t->shape[t->rank - 1]);
        FILE *to = fopen(t->name, "wb");
        if (fwrite(outputs[n], 1, t->bytes, to) != t->bytes || fclose(to) != 0)
            return 99;
    }
    free(outputs[1]);
    return error;
}
"""


@pytest.mark.one_in(4)
@pytest.mark.parametrize("language", ["c", "c++"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_program_without_python(language: str, threads: int, tmp_path: Path) -> None:
    exe = superopt.compile(net(9), threads=threads, specialize="eager")
    x = picture(2, 9)
    wanted = exe(x=x)
    exe.export(tmp_path / "resnet-18", shapes={"n": 2})
    (tmp_path / "main.c").write_text(MAIN)
    x.tofile(tmp_path / "x")
    assert CC is not None
    if language == "c++" and not shutil.which("c++"):
        pytest.skip("no C++ compiler")
    flags = ["-x", language, "main.c", "-x", "none", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    link = ["-L.", "-lresnet-18", "-Wl,-rpath,$ORIGIN", "-o", "main"]
    subprocess.run([CC, *flags, *link], cwd=tmp_path, check=True)
    done = subprocess.run(["./main", "resnet-18.weights", "x"], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stderr) == (OK, b"")
    assert done.stdout == b"y 1 2 10\nd 1 4 9\n"
    for name, a in wanted.items():
        np.testing.assert_array_equal(np.fromfile(tmp_path / name, a.dtype), a.reshape(-1))
    assert subprocess.run(["./main", "x", "x"], cwd=tmp_path).returncode == OTHER_FILE


def test_nothing_of_a_library_is_seen_but_its_own_names(tmp_path: Path) -> None:
    """All have `run` and `work`, and equal kernels."""
    m, feeds = CASES["net"]()
    exe = superopt.compile(m, threads=2, specialize="eager")
    wanted, e = exe.run(feeds), exe.export(tmp_path / "a", shapes={"n": 2})
    doubled = [node("Add", ["x", "x"], ["y"])]
    other = superopt.compile(model(doubled, {"x": (F, [3])}, ["y"])).export(tmp_path / "b")
    first, second = InC(other), InC(e)  # into one space of names
    np.testing.assert_array_equal(second.run(feeds)["y"], wanted["y"])
    np.testing.assert_array_equal(first.run({"x": floats(3)})["y"], 2 * floats(3))
    (tmp_path / "newer").mkdir()
    newer = InC(superopt.compile(constants()[0]).export(tmp_path / "newer" / "a"))
    np.testing.assert_array_equal(newer.run({"x": floats(2, 3)})["z"], floats(2, 3))
    newer.close()
    lib = ctypes.CDLL(e.files[0][0])
    assert not any(hasattr(lib, name) for name in ("run", "work", "b_run"))
    first.close()
    second.close()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_several_may_be_open_and_run_at_once(threads: int, tmp_path: Path) -> None:
    exe = superopt.compile(net(9), threads=threads, specialize="eager")
    wanted = [exe(x=picture(1, 9) + n) for n in range(3)]
    e = exe.export(tmp_path, shapes={"n": 1})
    assert [Path(f).name for f, _ in e.files] == [
        "libthe model.so", "the model.h", "the model.weights"
    ]  # fmt: skip
    opened = [InC(e) for _ in wanted]
    wrong: list[int] = []

    def call(n: int) -> None:
        for _ in range(20):
            got = opened[n].run({"x": picture(1, 9) + n})
            if not all(np.array_equal(a, wanted[n][k]) for k, a in got.items()):
                wrong.append(n)

    some = [threading.Thread(target=call, args=(n,)) for n in range(len(opened))]
    for t in some:
        t.start()
    for t in some:
        t.join(60)
    assert not wrong
    for o in opened:
        o.close()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    m, _ = constants()
    return superopt.compile(m).export(tmp_path_factory.mktemp("exported") / "c")


def test_pointers_that_are_null(exported: ExportReport) -> None:
    o = InC(exported)
    given, out = [floats(2, 3)], [np.zeros(p.shape, p.dtype) for p in exported.outputs]
    assert o.call([None], [*out]) == NO_TENSOR
    assert o.call([*given], [None, *out[1:]]) == NO_TENSOR
    assert o.call([*given], [*out[:4], None]) == OK  # of what has no elements
    assert o._run(None, None, None) == NO_TENSOR
    assert o._run(o.at, None, None) == NO_TENSOR
    assert [o.words(n) for n in (OK, NO_TENSOR, 8)] == [
        b"nothing is wrong", b"a pointer is NULL that must not be", b"no error of this model"
    ]  # fmt: skip
    o.close()
    o._close(None)


WEIGHTS: dict[str, tuple[Callable[[bytes], bytes], int]] = {
    "same": (lambda data: data, OK),
    "nothing": (lambda data: b"", OTHER_FILE),
    "another": (lambda data: data.replace(b"weights 1 ", b"weights 1 0"), OTHER_FILE),
    "text": (lambda data: b"hello, world\n" * 99, OTHER_FILE),
    "short": (lambda data: data[:-64], DAMAGED),
    "long": (lambda data: data + bytes(64), DAMAGED),
    "bit": (lambda data: data[:80] + bytes([data[80] ^ 16]) + data[81:], DAMAGED),
    "swapped": (lambda data: data[:64] + data[72:80] + data[64:72] + data[80:], DAMAGED),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_other_weights_are_refused(name: str, exported: ExportReport, tmp_path: Path) -> None:
    change, wanted = WEIGHTS[name]
    file = tmp_path / "w"
    file.write_bytes(change(Path(exported.files[2][0]).read_bytes()))
    o = InC(exported, str(file))
    assert (o.error, o.at is not None) == (wanted, wanted == OK)
    o.close()


def test_weights_that_cannot_be_read(exported: ExportReport, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        assert InC(exported, str(place)).error == NO_FILE


def test_weights_of_the_same_model_trained_otherwise_are_refused(tmp_path: Path) -> None:
    a, b = only_constants()[0], only_constants()[0]
    b.graph.initializer[0].raw_data = floats(3, 1).tobytes()
    first = superopt.compile(a).export(tmp_path / "a")
    other = superopt.compile(b).export(tmp_path / "b")
    assert first.files[2][1] == other.files[2][1]
    assert InC(first, other.files[2][0]).error == OTHER_FILE


def test_a_processor_without_what_the_code_needs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = "avx5124fmaps"  # Knights Mill had it
    machine, needs = checkable_target(host())
    monkeypatch.setitem(X86_BITS, rare, (7, 0, 3, 3))
    monkeypatch.setattr(export_, "checkable_target", lambda m: (machine, (*needs, rare)))
    o = InC(superopt.compile(only_constants()[0]).export(tmp_path / "m"))
    assert (o.at, o.error) == (None, NO_PROCESSOR)
    assert rare in o.words(o.error).decode()
    assert rare in (tmp_path / "m.h").read_text()


def test_code_uses_only_checkable_processor_features() -> None:
    told = "+64bit,+sse,+sse2,+avx,+avx2,-avx512f,+f16c,+vaes,+xsave,-gfni,+sse4.1"
    machine, needs = checkable_target(Machine("znver4", told, 32))
    assert needs == ("sse4.1", "avx", "f16c", "avx2")
    assert machine == Machine(
        "znver4",
        "+64bit,+sse,+sse2,+avx,+avx2,+f16c,+sse4.1,-avx512f,-vaes,-xsave,-gfni",
        32,
    )
    here, _ = checkable_target(host())
    assert {f[1:] for f in here.features.split(",") if f[0] == "+"} <= {
        *BASELINE_FEATURES,
        *X86_BITS,
    }


def test_symbolic_sizes_are_named(tmp_path: Path) -> None:
    exe = superopt.compile(net("s"), specialize="eager")
    with pytest.raises(UsageError, match=r"no value for n, s\n.*\n.*--shape n=1"):
        exe.export(tmp_path / "m")
    with pytest.raises(UsageError, match="no value for s"):
        exe.export(tmp_path / "m", shapes={"n": 1})
    with pytest.raises(UsageError, match="no symbolic size k"):
        exe.export(tmp_path / "m", shapes={"n": 1, "s": 9, "k": 2})
    e = exe.export(tmp_path / "m", shapes={"n": 1, "s": 9})
    assert e.inputs[0].shape == (1, 3, 9, 9)
    assert "Compiled for n = 1, s = 9." in (tmp_path / "m.h").read_text()
    x = picture(1, 9)
    o = InC(e)
    np.testing.assert_array_equal(o.run({"x": x})["y"], exe(x=x)["y"])
    o.close()
    exe(x=picture(2, 14))
    with pytest.raises(UsageError, match="no value for n, s"):  # which of the two?
        exe.export(tmp_path / "m")


def test_what_runs_in_onnxruntime_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be exported\n.*NonZero y \(.*\n"):
        superopt.compile(partly_foreign()).export(tmp_path / "m")
    text = model([node("Identity", ["x"], ["y"])], {"x": (TensorProto.STRING, [2])}, ["y"])
    with pytest.raises(UsageError, match="string"):
        superopt.compile(text).export(tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = superopt.compile(only_constants()[0])
    assert CC is not None
    monkeypatch.setenv("CC", f"{shutil.which(CC)} -O1")
    exe.export(tmp_path / "m")
    monkeypatch.setenv("CC", "no-such-compiler -O1")
    with pytest.raises(UsageError, match="there is no no-such-compiler"):
        exe.export(tmp_path / "n")
    monkeypatch.setenv("CC", f"{CC} -include oops.h")
    with pytest.raises(UsageError, match=r"cannot make a library\n(.*\n)*.*oops"):
        exe.export(tmp_path / "n")
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # ziglang
    with pytest.raises(UsageError, match=r"no C compiler\n.*\n.*apt install gcc"):
        exe.export(tmp_path / "n")
    assert {f.name for f in tmp_path.iterdir()} == {"libm.so", "m.h", "m.weights"}


FILES = {
    "resnet18": ("resnet18", "resnet18"),
    "libnet.so": ("net", "net"),
    "a.h": ("a", "a"),
    "a.weights": ("a", "a"),
    "bert-base v1.5": ("bert-base v1.5", "bert_base_v1_5"),
    "a,b 'c' $d": ("a,b 'c' $d", "a_b__c___d"),
    "18": ("18", "model_18"),
    "_x": ("_x", "model_x"),
    "größe": ("größe", "gr__e"),
    "sem": ("sem", "sem_model"),
    "W": ("W", "W_model"),
    "int": ("int", "int"),
    "TYPES": ("TYPES", "TYPES"),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", FILES)
def test_names_of_files_become_names_in_c(name: str, tmp_path: Path) -> None:
    file, ident = FILES[name]
    m, feeds = only_constants()
    e = superopt.compile(m).export(str(tmp_path / name))
    assert e.name == ident
    assert [Path(f).name for f, _ in e.files] == [f"lib{file}.so", f"{file}.h", f"{file}.weights"]
    o = InC(e)
    np.testing.assert_array_equal(o.run(feeds)["y"], floats(3))
    o.close()


def test_other_systems_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = superopt.compile(only_constants()[0])
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(UsageError, match="this system is riscv64-linux"):
        exe.export(tmp_path / "m")


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    exe = superopt.compile(only_constants()[0])
    (tmp_path / "libm.so").mkdir()
    (tmp_path / "file").touch()
    for place in ("m", "no/such/m", "file/m"):
        with pytest.raises(UsageError, match="cannot be written"):
            exe.export(tmp_path / place)
    assert {f.name for f in tmp_path.iterdir()} == {"libm.so", "file"}


def test_a_file_of_a_saved_model_is_exported_too(tmp_path: Path) -> None:
    exe = superopt.compile(net("s"), threads=2, specialize="eager")
    x = picture(1, 9)
    wanted = exe(x=x)
    exe.save(tmp_path / "net.superopt")
    e = model_files.export_model(
        tmp_path / "net.superopt", output=tmp_path / "net", shapes={"n": 1, "s": 9}
    )
    assert (e.name, e.threads) == ("net", 2)
    o = InC(e)
    np.testing.assert_array_equal(o.run({"x": x})["y"], wanted["y"])
    o.close()


def test_what_onnxruntime_does_faster_has_a_kernel_here(tmp_path: Path) -> None:
    sums = helper.make_node("CumSum", ["x", "axis"], ["y"])
    exe = superopt.compile(model([sums], {"x": (F, [900, 3])}, ["y"], {"axis": np.array(0)}))
    assert exe.fallback_nodes({})
    exe.export(tmp_path / "m")
    assert list(tmp_path.glob("libm.so"))
