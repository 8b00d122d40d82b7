"""superopt optimizes and compiles ONNX models and checks that their results stay the same.

    import superopt

    result = superopt.optimize("model.onnx", budget=60)
    result.save("fast.onnx")

Public names resolve on first use (PEP 562): importing this package loads nothing heavy.
"""

import importlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superopt.api.functions import bench, compile, derive, doctor, load, optimize, tune, verify
    from superopt.api.onnxruntime import export_for_onnxruntime, ort_provider, ort_register
    from superopt.api.optimized import Optimized
    from superopt.api.simplification import simplify
    from superopt.compilation.model.executable import Executable
    from superopt.errors import (
        Aborted,
        CheckFailed,
        ExitCode,
        ModelError,
        SuperoptError,
        Undecided,
        UsageError,
    )
    from superopt.optimization.simplification.simplified import Simplified

__version__ = "0.1.0"

# Functions log to superopt.optimize, superopt.compile and so on; the program decides what is shown.
logging.getLogger("superopt").addHandler(logging.NullHandler())

# The module that defines each public name.
_MODULE_OF = {
    "Aborted": "superopt.errors",
    "CheckFailed": "superopt.errors",
    "Executable": "superopt.compilation.model.executable",
    "ExitCode": "superopt.errors",
    "ModelError": "superopt.errors",
    "Optimized": "superopt.api.optimized",
    "Simplified": "superopt.optimization.simplification.simplified",
    "SuperoptError": "superopt.errors",
    "Undecided": "superopt.errors",
    "UsageError": "superopt.errors",
    "bench": "superopt.api.functions",
    "compile": "superopt.api.compilation",
    "derive": "superopt.api.functions",
    "doctor": "superopt.api.functions",
    "export_for_onnxruntime": "superopt.api.onnxruntime",
    "load": "superopt.api.compilation",
    "optimize": "superopt.api.optimization",
    "ort_provider": "superopt.api.onnxruntime",
    "ort_register": "superopt.api.onnxruntime",
    "simplify": "superopt.api.simplification",
    "tune": "superopt.api.compilation",
    "verify": "superopt.api.functions",
}

__all__ = [
    "Aborted",
    "CheckFailed",
    "Executable",
    "ExitCode",
    "ModelError",
    "Optimized",
    "Simplified",
    "SuperoptError",
    "Undecided",
    "UsageError",
    "__version__",
    "bench",
    "compile",
    "derive",
    "doctor",
    "export_for_onnxruntime",
    "load",
    "optimize",
    "ort_provider",
    "ort_register",
    "simplify",
    "tune",
    "verify",
]


def __getattr__(name: str) -> object:
    if (home := _MODULE_OF.get(name)) is None:
        raise AttributeError(f"module 'superopt' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
