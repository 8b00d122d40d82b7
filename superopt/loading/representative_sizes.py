"""Representative values of symbolic sizes: the user's, or small defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from superopt.errors import ModelError, UsageError
from superopt.loading.given_sizes import SizeNames, as_size_mapping
from superopt.onnx_io.import_.model import Model

_DEFAULT_SIZES: tuple[tuple[str, int], ...] = (
    ("batch", 1),
    ("seq", 128),
    ("len", 128),
    ("token", 128),
    ("height", 224),
    ("width", 224),
)
DEFAULT_SIZE = 8
# Sizes without a telling name, by the place where an input has them.
_IMAGE_SIZE = 224  # of an axis of an image
_SIGNAL_SIZE = 16_000  # samples: a second of speech
_TOKEN_COUNT = 128
_MAX_IMAGE_CHANNELS = 4
# What exporters call a dimension without a name: `unk__17`, `DynamicDimension.0`, `x_d0`, `?`.
_NAMELESS = re.compile(r"\?|unk_+\d+|.*dynamic.*|.*_d\d+", re.IGNORECASE)
_SIGNAL = re.compile(r"wave|audio|signal|speech|pcm", re.IGNORECASE)


def representative_sizes(model: Model, given_sizes: Mapping[str, int]) -> dict[str, int]:
    """Return a value for every symbolic size of the model, by superopt's name of it.

    `given_sizes` has names of the file or superopt's names as keys. Raises UsageError for an
    unknown name or a value below 1.
    """
    ours = {**{name: name for name in model.size_bindings}, **dict(model.symbols)}
    known = size_names(model, least=1)
    sizes: dict[str, int] = {}
    for name, value in as_size_mapping(given_sizes).items():
        if name not in ours:
            raise known.unknown_error(name, value)
        sizes[ours[name]] = known.check_value(name, value)
    for theirs, our in model.symbols.items():
        sizes.setdefault(our, _default_size(model, theirs, our))
    return sizes


def size_names(model: Model, least: int = 0) -> SizeNames:
    """Return the symbolic sizes that a user may give, by their names in the file."""
    names = [theirs for theirs, our in model.symbols.items() if our in model.size_bindings]
    types = {i.name: str(i.type) for i in model.graph.inputs}
    return SizeNames(names, least=least, inputs=types)


def default_sizes_text(model: Model, given_sizes: Mapping[str, int]) -> str:
    """Return the sizes that superopt chose, in the user's notation; empty if there are none."""
    sizes = representative_sizes(model, given_sizes)
    own = {our: n for our, n in sizes.items() if our not in _internal_names(model, given_sizes)}
    return sizes_text(model, own)


@contextmanager
def explain_default_sizes(model: Model, given_sizes: Mapping[str, int]) -> Iterator[None]:
    """Add to an error that sizes were chosen by `representative_sizes`: sizes may depend on each
    other, as p and p + 1, so that the chosen ones may be the cause."""
    try:
        yield
    except (ModelError, UsageError) as e:
        own = default_sizes_text(model, given_sizes)
        if not own:
            raise
        raise UsageError(
            f"{model.source.label} does not run at {own}, the default sizes",
            f"{e.what}: {e.why}",
            f"give consistent sizes by --shape NAME=N; if sizes are not the cause, {e.todo}",
        ) from e


def _internal_names(model: Model, given_sizes: Mapping[str, int]) -> set[str]:
    """Return superopt's names of sizes named in the file or by superopt."""
    return {model.symbols.get(name, name) for name in given_sizes}


def _default_size(model: Model, theirs: str, our: str) -> int:
    lower = theirs.lower()
    found = next((value for part, value in _DEFAULT_SIZES if part in lower), None)
    if found is None and our in model.size_bindings:
        found = _size_at(model, *model.size_bindings[our], has_name=not _NAMELESS.fullmatch(theirs))
    return DEFAULT_SIZE if found is None else found


def _size_at(model: Model, name: str, axis: int, has_name: bool) -> int | None:
    """Return a size for an axis of an input; None if the place does not say which. has_name: the
    size has a name of its own, which may mean anything but a signal's length."""
    (t,) = (i.type for i in model.graph.inputs if i.name == name)
    shape = t.shape or ()
    is_last = axis == len(shape) - 1 == 1
    if is_last and t.dtype is not None and t.dtype.is_float and _SIGNAL.search(name):
        return _SIGNAL_SIZE
    if has_name:
        return None
    if axis == 0 and (len(shape) > 1 or len(model.graph.inputs) > 1):
        return 1
    channels = shape[1] if len(shape) == 4 else None
    if axis >= 2 and isinstance(channels, int) and channels <= _MAX_IMAGE_CHANNELS:
        return _IMAGE_SIZE
    return _TOKEN_COUNT if is_last and t.dtype is not None and t.dtype.is_int else None


def alternative_sizes(sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield other sizes at which results must be right, too: unequal ones first.

    A model may not run at all of them: its batch may have to be even, or its images may become too
    small.
    """
    names = sorted(sizes)
    yield {name: 2 + n for n, name in enumerate(names)}
    yield {name: max(1, sizes[name] // 2) + n for n, name in enumerate(names)}
    yield {name: 2 + 2 * n for n, name in enumerate(names)}
    yield {name: 2 * sizes[name] for name in names}


def input_sizes(model: Model, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes that inputs have, by their names in the file; `sizes` also has those of
    results whose shapes are not known, which no user gives."""
    bound = {our: theirs for theirs, our in model.symbols.items() if our in model.size_bindings}
    return {bound[our]: n for our, n in sorted(sizes.items()) if our in bound}


def sizes_text(model: Model, sizes: Mapping[str, int]) -> str:
    """Return sizes in the user's notation, by their names in the file: `batch=8,sequence=128`."""
    return ",".join(f"{name}={n}" for name, n in input_sizes(model, sizes).items())
