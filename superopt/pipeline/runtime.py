"""Models in onnxruntime's worker process: as files in a private folder, run and timed there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from superopt import ort
from superopt.cost.clock import Ratio, compare, faster
from superopt.onnx_io.write import copy_unchanged, write_model


def runner(
    path: Path, outputs: Sequence[str], threads: int, failures: list[str]
) -> Callable[[Mapping[str, np.ndarray]], list[np.ndarray] | None]:
    """Runs the model at `path`; None (and a line in `failures`) where onnxruntime cannot.

    The model is loaded at the first call and again only if the worker died.
    """
    loaded: ort.Loaded | ort.Failed | None = None

    def run(feeds: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
        nonlocal loaded
        if ort.available() is None:
            return None
        worker = ort.shared()
        if loaded is None:
            loaded = worker.load(path, threads=threads)
        if isinstance(loaded, ort.Failed):
            failures.append(loaded.message)
            return None
        found = worker.run(loaded, dict(feeds))
        if isinstance(found, ort.Failed):
            failures.append(found.message)
            return None
        return [found[name] for name in outputs]  # type: ignore[misc]

    return run


def drop_all() -> None:
    """End the worker, and with it every model that it holds."""
    ort.shared().close()


__all__ = ["Ratio", "compare", "copy_unchanged", "drop_all", "faster", "runner", "write_model"]
