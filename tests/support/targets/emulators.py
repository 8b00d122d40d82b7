"""Run exported libraries of other systems: in QEMU's user mode, Wine, and Node."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from superopt.kernels.runtime.systems import SYSTEMS, host_system
from superopt.report.compilation.compile_report import ExportReport

HERE = Path(__file__).parent
INTERFACE = Path(__file__).parents[3] / "superopt/report/export"
ARM_LIBRARIES = "/usr/aarch64-linux-gnu"  # Debian: libc6-arm64-cross
WINE = "/usr/lib/wine/wine64"
HAS_ZIG = importlib.util.find_spec("ziglang") is not None


def missing(system: str) -> str:
    """Return what is missing for a system's code to run here; empty if it runs."""
    if system == host_system():
        return ""
    if not HAS_ZIG:
        return "no ziglang, which links"
    if system == "aarch64-linux" and not _qemu():
        return "no qemu-aarch64"
    if system == "aarch64-linux" and not Path(ARM_LIBRARIES).exists():
        return f"no {ARM_LIBRARIES}"
    if system == "x86_64-windows" and not Path(WINE).exists():
        return "no Wine"
    if system == "wasm" and not shutil.which("node"):
        return "no node"
    return ""


def _qemu() -> str | None:
    return shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")


@cache
def _runner(system: str) -> str:
    """Return the program that opens and runs a library, built for the system."""
    folder = Path(tempfile.mkdtemp(prefix="superopt-emulators-"))
    out = folder / ("run.exe" if "windows" in system else "run")
    command = [sys.executable, "-m", "ziglang", "cc", "-target", SYSTEMS[system].zig_target]
    command = ["cc"] if system == host_system() else command
    subprocess.run(
        [*command, "-O1", f"-I{INTERFACE}", str(HERE / "run_library.c"), "-o", str(out),
         *([] if "windows" in system else ["-ldl"])],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    return str(out)


def command(system: str, cpu: str = "max") -> list[str]:
    """Return the command that runs a library: it is followed by its path and the inputs."""
    if system == "wasm":
        return ["node", str(HERE / "run_module.mjs")]
    if system == "aarch64-linux":
        emulator = [str(_qemu()), "-L", ARM_LIBRARIES, "-cpu", cpu]
    else:
        emulator = [] if system == host_system() else [WINE]
    return [*emulator, _runner(system)]


def run_library(
    system: str,
    e: ExportReport,
    feeds: Mapping[str, np.ndarray],
    folder: Path,
    types: Mapping[str, np.dtype],
    cpu: str = "max",
) -> dict[str, np.ndarray] | str:
    """Return the outputs of a library; or, if it fails, its message. folder: for files. types: of
    the outputs."""
    given = [np.ascontiguousarray(feeds[p.name]).reshape(feeds[p.name].shape) for p in e.inputs]
    for n, a in enumerate(given):
        (folder / f"in{n}").write_bytes(a.tobytes())
    shapes = ["x".join(map(str, a.shape)) or "-" for a in given]
    done = _run(command(system, cpu), e, shapes, folder)
    *_, said = [*done.stdout.strip().splitlines(), ""][-2:][:1] or [""]
    if done.returncode or said != "0":
        return (done.stdout + done.stderr).strip()
    shapes_of = json.loads((folder / "shapes").read_text())
    return {
        p.name: np.frombuffer((folder / f"out{n}").read_bytes(), types[p.name]).reshape(s)
        for n, (p, s) in enumerate(zip(e.outputs, shapes_of, strict=True))
    }


def _run(
    words: Sequence[str], e: ExportReport, shapes: Sequence[str], folder: Path
) -> subprocess.CompletedProcess[str]:
    library, weights = e.files[0][0], e.files[-1][0]
    about = [e.files[1][0]] if words[0] == "node" else [library, e.name, weights]
    environment = {**os.environ, "WINEDEBUG": "-all"}
    return subprocess.run(
        [*words, *about, *shapes], cwd=folder, capture_output=True, text=True, timeout=300,
        env=environment, errors="replace",
    )  # fmt: skip
