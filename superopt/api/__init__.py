"""The public functions, and the files that they read and write.

`superopt.api.generate_rules` and the others resolve on first use (PEP 562); `import superopt` has
the ones that most programs need.
"""

from __future__ import annotations

import importlib

_MODULES = ("functions", "compilation", "rule_library", "open_model", "model_files")


def __getattr__(name: str) -> object:
    if not name.startswith("_") and name not in _MODULES:
        for module in _MODULES:
            found = importlib.import_module(f"superopt.api.{module}")
            if hasattr(found, name):
                return getattr(found, name)
    raise AttributeError(f"module 'superopt.api' has no attribute {name!r}")
