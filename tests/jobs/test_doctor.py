"""What `doctor` says of a GPU, by files of a driver that are written here."""

from __future__ import annotations

from pathlib import Path

import pytest

from superopt.jobs import doctor

VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Release Build\n"
H100 = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 0\n"


@pytest.mark.parametrize(
    ("files", "torch", "environment", "said"),
    [
        ((), "2.11.0", {}, ("missing", "", "no NVIDIA driver found")),
        (("version",), "2.11.0", {}, ("problem", "driver 580.159.04", "no /dev/nvidia0")),
        (("version", "nvidia0", "h100"), "2.11.0+cu130", {},
         ("ok", "driver 580.159.04", "NVIDIA H100 80GB HBM3")),
        (("version", "nvidia0", "nvidia1"), "2.11.0", {}, ("ok", "driver 580.159.04", "2 NVIDIA")),
        (("nvidia0",), None, {}, ("ok", "a driver", "1 NVIDIA GPU")),
        (("version", "nvidia0"), "2.11.0+cpu", {}, ("problem", "driver", "is built without CUDA")),
        (("version", "nvidia0"), "2.11.0", {"CUDA_VISIBLE_DEVICES": ""},
         ("problem", "driver", "hides all GPUs")),
        ((), "2.11.0", {"TRITON_INTERPRET": "1"}, ("ok", "", "Triton's interpreter")),
    ],
)  # fmt: skip
def test_a_gpu(
    files: tuple[str, ...], torch: str | None, environment: dict[str, str],
    said: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    texts = {
        "version": ("driver/version", VERSION), "h100": ("driver/gpus/0000/information", H100),
        "nvidia0": ("dev/nvidia0", ""), "nvidia1": ("dev/nvidia1", ""),
    }  # fmt: skip
    for name in (*files, "nvidiactl"):
        place, text = texts.get(name, ("dev/nvidiactl", ""))
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    monkeypatch.setattr(doctor, "DRIVER_FOLDER", tmp_path / "driver")
    monkeypatch.setattr(doctor, "DEVICE_FOLDER", tmp_path / "dev")
    monkeypatch.setattr(doctor, "_package_version", lambda name: torch if name == "torch" else "1")
    for name in ("TRITON_INTERPRET", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (found,) = [f for f in doctor.diagnose() if f.name == "gpu"]
    status, version, text = said
    assert found.status == status
    assert version in found.version
    assert text in found.detail
