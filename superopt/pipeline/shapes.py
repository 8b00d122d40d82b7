"""Representative values of symbolic sizes: the user's, else small defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from superopt.errors import ModelError, UsageError
from superopt.onnx_io.import_.model import Model

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
    ours = {**{name: name for name in model.size_bindings}, **dict(model.symbols)}
    sizes: dict[str, int] = {}
    for name, value in given.items():
        if name not in ours:
            known = [theirs for theirs, our in model.symbols.items() if our in model.size_bindings]
            raise UsageError(
                f"--shape {name}={value}: the model has no size {name}",
                f"its symbolic sizes are {', '.join(sorted(known))}"
                if known
                else "all its sizes are fixed",
                "use one of these names" if known else "leave out --shape",
            )
        if value < 1:
            raise UsageError(
                f"--shape {name}={value}: a size is at least 1",
                f"it is {value}",
                "give a positive number",
            )
        sizes[ours[name]] = value
    for theirs, our in model.symbols.items():
        sizes.setdefault(our, _default(theirs))
    return sizes


def chosen(model: Model, given: Mapping[str, int]) -> str:
    """The sizes that nobody gave, as the user writes them; empty where there are none."""
    sizes = representative(model, given)
    own = {our: n for our, n in sizes.items() if our not in _ours(model, given)}
    return text(model, own)


@contextmanager
def fitting(model: Model, given: Mapping[str, int]) -> Iterator[None]:
    """What fails where sizes are `representative` may do so by those that were chosen: they may
    hang on each other, as p and p + 1. Then that is said."""
    try:
        yield
    except (ModelError, UsageError) as e:
        own = chosen(model, given)
        if not own:
            raise
        raise UsageError(
            f"{model.source.label} does not run at {own}, which superopt chose",
            f"{e.what}: {e.why}",
            f"give sizes that go together, by --shape NAME=N; if it is not these, {e.todo}",
        ) from e


def _ours(model: Model, given: Mapping[str, int]) -> set[str]:
    """Names in the file, or ours, as ours."""
    return {model.symbols.get(name, name) for name in given}


def _default(name: str) -> int:
    lower = name.lower()
    return next((value for part, value in _DEFAULTS if part in lower), DEFAULT)


def others(sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Other sizes at which the result must be right, too: unequal ones first.

    A model may not run at all of them: its batch must be even, or its images not too small.
    """
    names = sorted(sizes)
    yield {name: 2 + n for n, name in enumerate(names)}
    yield {name: max(1, sizes[name] // 2) + n for n, name in enumerate(names)}
    yield {name: 2 + 2 * n for n, name in enumerate(names)}
    yield {name: 2 * sizes[name] for name in names}


def text(model: Model, sizes: Mapping[str, int]) -> str:
    """Sizes as the user writes them: `batch=8,sequence=128`, by their names in the file."""
    bound = {our: theirs for theirs, our in model.symbols.items() if our in model.size_bindings}
    return ",".join(f"{bound[our]}={n}" for our, n in sorted(sizes.items()) if our in bound)
