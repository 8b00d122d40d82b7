"""Versions of the packages that a result was made with."""

import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

from superopt import __version__


@lru_cache(maxsize=64)  # each reads the package's whole metadata
def package_version(package: str) -> str:
    """Return the version of an installed distribution, or of this superopt; "missing" without."""
    if package == "superopt":
        return __version__  # also of a source tree, which is not installed
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def package_versions() -> tuple[tuple[str, str], ...]:
    """Return the packages that a result depends on, with their versions."""
    packages = ("superopt", "onnx", "onnx-ir", "onnxruntime", "numpy")
    return (("python", platform.python_version()), *((p, package_version(p)) for p in packages))
