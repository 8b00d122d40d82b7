"""Register a plugin execution provider with onnxruntime in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from superopt.errors import UsageError
from superopt.ort.sessions import _ort

FIRST_VERSION = "1.23"  # with providers that compile


def register_provider(name: str, library: Path, provider: str) -> list[Any]:
    """Register a library under a name; return the devices of its provider. Others may have
    registered a library of the same provider: its devices come first.

    Raises UsageError if onnxruntime is missing, too old, or refuses the library.
    """
    ort = _ort()
    if not hasattr(ort, "register_execution_provider_library"):
        raise _refusal(ort.__version__, "it has no plugin execution providers")

    def devices() -> list[Any]:
        return [d for d in ort.get_ep_devices() if d.ep_name == provider]

    before = len(devices())
    try:
        ort.register_execution_provider_library(name, str(library))
    except Exception as e:
        raise _refusal(ort.__version__, str(e)) from None
    return devices()[before:]


def _refusal(version: str, reason: str) -> UsageError:
    return UsageError(
        f"onnxruntime {version} does not take the execution provider",
        reason,
        f"install onnxruntime {FIRST_VERSION} or later",
    )
