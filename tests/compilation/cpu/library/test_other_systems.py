"""Exported code of other systems, run by emulators: the results are those of this system's code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import superopt
from superopt.errors import UsageError
from superopt.kernels.runtime.systems import SYSTEMS, find_system, host_system
from tests.support.compilation.exporting import CASES
from tests.support.targets.emulators import HAS_ZIG, missing, run_library
from tests.support.targets.models import MODELS, product

# Systems with the processors that they are exported for, and those that the emulator is.
TARGETS = {
    "aarch64-linux armv8-a": "cortex-a57",
    "aarch64-linux neoverse-n1": "neoverse-n1",
    "aarch64-linux neoverse-v1": "max,sve-default-vector-length=32",
    "x86_64-linux x86-64-v2": "",
    "x86_64-windows x86-64-v3": "",
    "wasm simd128": "",
}
WHOLE = ("aarch64-linux armv8-a", "wasm simd128")  # that run all models in each run
TOLERANCE = 2e-5  # relative to the root mean square; sums are in another order


def check(target: str, exe: superopt.Executable, feeds: Mapping[str, np.ndarray],
          sizes: Mapping[str, int], folder: Path) -> None:  # fmt: skip
    system, cpu = target.split()
    if why := missing(system):
        pytest.skip(why)
    wanted = exe.run(feeds)
    types = {name: a.dtype for name, a in wanted.items()}
    e = exe.export(folder / "m", target=system, cpu=cpu, shapes=sizes)
    got = run_library(system, e, feeds, folder, types, TARGETS[target])
    assert not isinstance(got, str), got
    assert got.keys() == wanted.keys()
    for name, a in wanted.items():
        assert got[name].shape == a.shape
        if a.dtype.kind in "biu" or a.size == 0:
            np.testing.assert_array_equal(got[name], a)
        else:
            near = a.astype(np.float64)
            rms = float(np.sqrt(np.mean(near * near)))
            np.testing.assert_allclose(got[name].astype(np.float64), near, 0, TOLERANCE * rms)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", WHOLE)
def test_models(target: str, name: str, tmp_path: Path) -> None:
    """At all sizes, where these are symbolic."""
    m, feeds, _ = MODELS[name]()
    check(target, superopt.compile(m, threads=2), feeds, {}, tmp_path)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", [t for t in TARGETS if t not in WHOLE])
def test_models_on_more_processors(target: str, name: str, tmp_path: Path) -> None:
    """At sizes that are given."""
    m, feeds, sizes = MODELS[name]()
    check(target, superopt.compile(m, threads=2), feeds, sizes, tmp_path)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("net", "default")])
@pytest.mark.parametrize("target", ["aarch64-linux armv8-a", "x86_64-windows x86-64-v3",
                                    "wasm simd128"])  # fmt: skip
def test_types_and_interfaces(target: str, name: str, tmp_path: Path) -> None:
    m, feeds = CASES[name]()
    check(target, superopt.compile(m), feeds, {}, tmp_path)


@pytest.mark.skipif(bool(missing("aarch64-linux")), reason=missing("aarch64-linux"))
@pytest.mark.parametrize(("cpu", "emulated", "lacks"), [
    ("neoverse-n1", "cortex-a57", "dotprod"),
    ("neoverse-v1", "neoverse-n1", "sve of 256 bits"),
    ("neoverse-v1", "max,sve-default-vector-length=64", "sve of 256 bits"),
])  # fmt: skip
def test_processors_that_lack_features(cpu: str, emulated: str, lacks: str, tmp_path: Path) -> None:
    m, feeds, sizes = product()
    e = superopt.compile(m).export(tmp_path / "m", cpu=cpu, shapes=sizes)
    got = run_library("aarch64-linux", e, feeds, tmp_path, {"y": np.dtype("f4")}, emulated)
    assert isinstance(got, str)
    assert "this processor lacks one of" in got
    assert lacks in got


@pytest.mark.skipif(not HAS_ZIG, reason="no ziglang, which links")
def test_files_and_report(tmp_path: Path) -> None:
    m, _, sizes = product()
    exe = superopt.compile(m, threads=2)
    names = {
        "aarch64-linux": ["libm.so", "m.h", "m.weights"],
        "x86_64-windows": ["m.dll", "m.h", "m.weights"],
        "wasm": ["m.wasm", "m.mjs", "m.d.mts", "m.weights"],
    }
    for system, files in names.items():
        e = exe.export(tmp_path / "m", target=system, shapes=sizes)
        assert [Path(f).name for f, _ in e.files] == files
        assert e.system == SYSTEMS[system].title
        assert "ziglang" in e.linker
        assert e.cpu == next(iter(SYSTEMS[system].cpus))
        assert e.threads == (1 if system == "wasm" else 2)
    magic = {"libm.so": b"\x7fELF", "m.dll": b"MZ", "m.wasm": b"\0asm"}
    assert all((tmp_path / f).read_bytes().startswith(bits) for f, bits in magic.items())
    assert (tmp_path / "libm.so").read_bytes()[18] == 0xB7  # EM_AARCH64


def test_names_of_targets() -> None:
    assert find_system(None, None).name == host_system()
    assert find_system(None, "neoverse-n1").name == "aarch64-linux"
    assert find_system(None, "relaxed-simd").name == "wasm"
    assert find_system("x86_64-windows", "x86-64-v3").name == "x86_64-windows"
    with pytest.raises(UsageError, match=r"unknown target 'arm'\ncode is exported for x86_64-lin"):
        find_system("arm", None)


def test_processors_of_other_systems_are_refused(tmp_path: Path) -> None:
    exe = superopt.compile(product()[0])
    with pytest.raises(UsageError, match=r"unknown processor 'native'\n.*armv8-a, neoverse-n1"):
        exe.export(tmp_path / "m", target="aarch64-linux", cpu="native")
    with pytest.raises(UsageError, match="unknown processor 'armv8-a'"):
        exe.export(tmp_path / "m", target="x86_64-windows", cpu="armv8-a")


def test_no_linker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv("CC", "cc")  # it compiles for this system
    exe = superopt.compile(product()[0])
    with pytest.raises(UsageError, match=r"no linker for Linux on AArch64\n.*\npip install zigl"):
        exe.export(tmp_path / "m", target="aarch64-linux")
    assert not list(tmp_path.iterdir())
