"""`doctor`: which packages and devices are available, and what they enable."""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from superopt import __version__
from superopt.cost.machine import this_machine
from superopt.cost.store import Store
from superopt.report.data.report import Finding

_REQUIRED_PACKAGES = (
    "numpy",
    "onnx",
    "onnx-ir",
    "ml_dtypes",
    "click",
    "rich",
    "jinja2",
    "platformdirs",
)


_OPTIONAL_PACKAGES = (
    ("onnxruntime", "ort", "measured costs, timing and the check in the runtime"),
    ("openvino", "bench", "`superopt bench --vs openvino`"),
    ("torch", "gpu", 'target="cuda", with triton; `superopt bench --vs torch`'),
    ("triton", "gpu", 'target="cuda"'),
    ("onnx2torch", "bench", "`superopt bench --vs torch`"),
    ("lightgbm", "learn", "`superopt tune` learns which kernel options to measure first"),
)
_ONNXRUNTIME_PACKAGES = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-openvino",
    "onnxruntime-directml",
)


DRIVER_FOLDER, DEVICE_FOLDER = Path("/proc/driver/nvidia"), Path("/dev")


def _find_gpu() -> Finding:
    """Return whether there is a GPU, according to the files of its driver and to installed
    packages."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        how = "TRITON_INTERPRET=1: kernels run in Triton's interpreter, slowly, for tests"
        return Finding("gpu", "ok", "", how)
    version = _read_text(DRIVER_FOLDER / "version")
    nodes = list(DEVICE_FOLDER.glob("nvidia[0-9]*"))
    if not version and not nodes:
        how = 'no NVIDIA driver found on this machine; target="cuda" needs one'
        return Finding("gpu", "missing", "", how)
    found = re.search(r"\d+\.\d+(\.\d+)?", version)
    driver = f"driver {found[0]}" if found else "a driver"
    if not nodes:
        return Finding(
            "gpu", "problem", driver, "there is no /dev/nvidia0; give this process access to a GPU"
        )
    if (torch := _package_version("torch")) is not None and torch.endswith("+cpu"):
        how = f"torch {torch} is built without CUDA; install a build with CUDA"
        return Finding("gpu", "problem", driver, how)
    texts = map(_read_text, sorted(DRIVER_FOLDER.glob("gpus/*/information")))
    models = [m[1].strip() for m in (re.search(r"Model:(.*)", t) for t in texts) if m]
    names = ", ".join(models) or f"{len(nodes)} NVIDIA GPU{'s' if len(nodes) > 1 else ''}"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    return Finding(
        "gpu", "problem" if hidden else "ok", driver,
        "CUDA_VISIBLE_DEVICES is empty, which hides all GPUs" if hidden else names,
    )  # fmt: skip


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def diagnose() -> tuple[Finding, ...]:
    """Return the findings, one for each row of the table. Imports no heavy package."""
    here = this_machine()
    rows = [
        Finding("superopt", "ok", __version__, sys.executable),
        Finding("python", "ok", sys.version.split()[0], here.os),
        Finding("machine", "ok", "", here.text),
    ]
    for name in _REQUIRED_PACKAGES:
        found = _package_version(name)
        rows.append(
            Finding(
                name,
                "ok" if found else "problem",
                found or "",
                "" if found else f"pip install {name}",
            )
        )
    for name, extra, use in _OPTIONAL_PACKAGES:
        found = _package_version(name)
        detail = use if found else f'{use}: pip install "superopt-onnx[{extra}]"'
        rows.append(Finding(name, "ok" if found else "missing", found or "", detail))
    rows.append(_find_gpu())
    rows += _find_onnxruntime_conflicts()
    with Store.open(None) as store:
        stats = store.stats()
        where = str(stats.path) if stats.path else f"in memory: {stats.reason}"
        status = "ok" if stats.path else "problem"
        rows.append(Finding("cost store", status, "", f"{where}, {stats.operators} entries"))  # type: ignore[arg-type]
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    rows.append(Finding("processors", "ok", str(allowed), "available to this process"))
    return tuple(rows)


def _find_onnxruntime_conflicts() -> list[Finding]:
    """Return a problem if several packages that install the module onnxruntime are installed: they
    overwrite each other's files."""
    there = [name for name in _ONNXRUNTIME_PACKAGES if _package_version(name)]
    if len(there) < 2:
        return []
    detail = f"{' and '.join(there)} overwrite each other's files: uninstall all, install one"
    return [Finding("onnxruntime packages", "problem", "", detail)]


def _package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
