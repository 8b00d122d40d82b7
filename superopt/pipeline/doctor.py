"""`doctor`: what is installed, and what it enables."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version

from superopt.cost.machine import machine
from superopt.cost.store import Store
from superopt.report.data import Finding

_CORE = (
    "numpy",
    "networkx",
    "onnx",
    "onnx-ir",
    "ml_dtypes",
    "click",
    "rich",
    "jinja2",
    "platformdirs",
)


_EXTRAS = (
    ("onnxruntime", "ort", "measured costs, timing and the check in the runtime"),
    ("openvino", "bench", "`superopt bench --vs openvino`"),
    ("torch", "bench", '`superopt bench --vs torch`; with triton, target="cuda"'),
    ("triton", "gpu", 'target="cuda"'),
    ("onnx2torch", "bench", "`superopt bench --vs torch`"),
)
_FLAVOURS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")


def _gpu() -> str:
    """Whether there is a GPU, as far as files of its driver say."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "in Triton's interpreter, as TRITON_INTERPRET=1 says; slow, for tests"
    there = os.path.exists("/dev/nvidiactl") or os.path.exists("/proc/driver/nvidia/version")
    return "an NVIDIA driver is there" if there else "no NVIDIA driver was found on this machine"


def doctor() -> tuple[Finding, ...]:
    """One finding a row; nothing heavy is imported."""
    here = machine()
    rows = [
        Finding("superopt", "ok", _version("superopt") or "source tree", sys.executable),
        Finding("python", "ok", sys.version.split()[0], here.os),
        Finding("machine", "ok", "", here.text),
    ]
    for name in _CORE:
        found = _version(name)
        rows.append(
            Finding(
                name,
                "ok" if found else "problem",
                found or "",
                "" if found else f"pip install {name}",
            )
        )
    for name, extra, use in _EXTRAS:
        found = _version(name)
        use += f", {_gpu()}" if name == "triton" else ""
        detail = use if found else f'{use}: pip install "superopt[{extra}]"'
        rows.append(Finding(name, "ok" if found else "missing", found or "", detail))
    rows += _flavours()
    with Store.open(None) as store:
        stats = store.stats()
        where = str(stats.path) if stats.path else f"in memory: {stats.reason}"
        status = "ok" if stats.path else "problem"
        rows.append(Finding("cost store", status, "", f"{where}, {stats.operators} entries"))  # type: ignore[arg-type]
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    rows.append(Finding("processors", "ok", str(allowed), "that this process may use"))
    return tuple(rows)


def _flavours() -> list[Finding]:
    """Several packages that all install the module onnxruntime overwrite each other."""
    there = [name for name in _FLAVOURS if _version(name)]
    if len(there) < 2:
        return []
    detail = f"{' and '.join(there)} overwrite each other's files: uninstall all, install one"
    return [Finding("onnxruntime packages", "problem", "", detail)]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
