"""Real exported graphs that ship without weights, and how to draw the weights.

A weightless model is an ONNX file whose large float initializers were replaced by statistics: a
JSON object under the metadata key `weightless.initializers`, from the initializer's name to its
shape, dtype, mean, standard deviation, minimum and maximum. The values depend only on that entry,
so they are the same on every machine.
"""

import json
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx.numpy_helper

from superopt.errors import ModelError

STATISTICS_KEY = "weightless.initializers"

Statistics = Mapping[str, object]


def draw_weights(source: str | Path | bytes) -> onnx.ModelProto:
    """Return the model at `source` (a path or the file's bytes) with its weights drawn.

    Graph, shapes and costs are those of the real model; its predictions are not. Raises ModelError
    if the model has no statistics.
    """
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    model = onnx.load_model_from_string(data)
    entries = {entry.key: entry.value for entry in model.metadata_props}
    if STATISTICS_KEY not in entries:
        raise ModelError(
            "this model has no statistics to draw weights from",
            f"its metadata has no entry {STATISTICS_KEY!r}",
            "give a weightless model, or use this one as it is",
        )
    statistics: dict[str, Statistics] = json.loads(entries.pop(STATISTICS_KEY))
    del model.metadata_props[:]
    for key, value in entries.items():
        model.metadata_props.add(key=key, value=value)
    for name, row in statistics.items():
        tensor = onnx.numpy_helper.from_array(_draw_initializer(name, row), name)
        model.graph.initializer.append(tensor)
    return model


def _draw_initializer(name: str, row: Statistics) -> npt.NDArray[np.generic]:
    """Draw one initializer of the shape and dtype in its row, seeded by its name."""
    match row:
        case {
            "shape": list(shape),
            "dtype": str(dtype),
            "mean": (int() | float()) as mean,
            "std": (int() | float()) as std,
            "low": (int() | float()) as low,
            "high": (int() | float()) as high,
        }:
            pass
        case _:
            raise ModelError(
                f"the statistics of initializer {name!r} are incomplete",
                f"they hold {sorted(row)}",
                "shape, dtype, mean, std, low and high are all needed",
            )
    draw = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    # Values of one sign are variances and scales: keep the sign, or a square root yields NaN.
    one_sign = low >= 0 or high <= 0
    values = draw.uniform(low, high, shape) if one_sign else draw.normal(mean, std, shape)
    return np.asarray(values.astype(np.dtype(dtype)))


def demo_models() -> dict[str, Callable[[], onnx.ModelProto]]:
    """Return the models shipped in the package by name, each as a function that draws it."""
    folder = files("superopt") / "demo"
    found = {
        entry.name.removesuffix(".onnx"): entry
        for entry in folder.iterdir()
        if entry.name.endswith(".onnx")
    }
    return {name: partial(_draw_demo_model, name) for name in sorted(found)}


def _draw_demo_model(name: str) -> onnx.ModelProto:
    return draw_weights((files("superopt") / "demo" / f"{name}.onnx").read_bytes())
