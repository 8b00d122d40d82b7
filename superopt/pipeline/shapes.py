"""Representative values of symbolic sizes: the user's, else small defaults."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.errors import UsageError
from superopt.onnx_io.importer import Model

_DEFAULTS: tuple[tuple[str, int], ...] = (
    ("batch", 1),
    ("seq", 128),
    ("len", 128),
    ("token", 128),
    ("height", 224),
    ("width", 224),
)
DEFAULT = 8


def representative(model: Model, given: Mapping[str, int]) -> dict[str, int]:
    """A value for every symbolic size of the model, by our name of it.

    `given` is keyed by the name in the file or by ours. Raises UsageError for an unknown name or a
    value below 1.
    """
    ours = {**{name: name for name in model.sizes}, **dict(model.symbols)}
    sizes: dict[str, int] = {}
    for name, value in given.items():
        if name not in ours:
            known = ", ".join(sorted(model.symbols)) or "none: all its sizes are fixed"
            raise UsageError(
                f"--shape {name}={value}: the model has no size {name}",
                f"its symbolic sizes are {known}",
                "use one of these names",
            )
        if value < 1:
            raise UsageError(
                f"--shape {name}={value}: a size is at least 1",
                f"it is {value}",
                "give a positive number",
            )
        sizes[ours[name]] = value
    theirs = {v: k for k, v in model.symbols.items()}
    for name in theirs:
        sizes.setdefault(name, _default(theirs[name]))
    return sizes


def _default(name: str) -> int:
    lower = name.lower()
    return next((value for part, value in _DEFAULTS if part in lower), DEFAULT)


def unequal(sizes: Mapping[str, int]) -> dict[str, int]:
    """Other sizes, all different and small, to check that the result runs at every size."""
    return {name: 2 + n + n % 2 for n, name in enumerate(sorted(sizes))}
