"""Constants that are functions of a model's constants, shared by all programs of the model."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable

import numpy as np

Load = Callable[[], np.ndarray]  # returns a constant's array

_DERIVED: weakref.WeakKeyDictionary[Load, weakref.WeakValueDictionary[Hashable, Load]] = (
    weakref.WeakKeyDictionary()
)


def derive_constant(
    load: Load, recipe: Hashable, transform: Callable[[np.ndarray], np.ndarray]
) -> Load:
    """Return a function that returns `transform(load())`. recipe: identifies `transform`.

    It is the same function as long as any program holds it, so programs for further sizes share
    what was packed of it.
    """
    known = _DERIVED.setdefault(load, weakref.WeakValueDictionary())
    if (found := known.get(recipe)) is None:

        def transformed() -> np.ndarray:
            return transform(load())

        found = known[recipe] = transformed
    return found
