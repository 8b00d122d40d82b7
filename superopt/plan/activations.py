"""Activation functions of recurrent layers, as operators of the graph.

activations        names, for each direction one of each gate
activation_alpha   numbers for those functions that have an alpha, in their order
activation_beta    likewise
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.ir import graph as g
from superopt.ir.op import Attr
from superopt.ops import OPS
from superopt.te.dtype import to_numpy


class UnknownActivation(ValueError):
    """A function that ONNX does not name, or without a number that it needs."""


@dataclass(frozen=True, slots=True)
class Activation:
    """A function by its name in lower case, with its numbers; None for one that it has not."""

    name: str
    alpha: float | None = None
    beta: float | None = None


# Names, with the defaults of alpha and beta; ... for a number that must be given: ONNX has no
# default, or onnxruntime another one (0 for ThresholdedRelu's alpha, for ONNX's 1).
_NUMBERS: Mapping[str, tuple[Any, Any]] = {
    "affine": (..., ...),
    "elu": (1.0, None),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01, None),
    "relu": (None, None),
    "scaledtanh": (..., ...),
    "sigmoid": (None, None),
    "softplus": (None, None),
    "softsign": (None, None),
    "tanh": (None, None),
    "thresholdedrelu": (..., None),
}


def activations(attributes: Mapping[str, Any], default: Sequence[str]) -> tuple[Activation, ...]:
    """The functions of a layer's attributes. default: names where it has none.

    Raises UnknownActivation.
    """
    names = [_text(a).lower() for a in attributes.get("activations") or default]
    if len(names) != len(default):
        raise UnknownActivation(f"{len(names)} activations, where it has {len(default)} gates")
    alphas, betas = (iter(attributes.get(f"activation_{k}") or ()) for k in ("alpha", "beta"))
    return tuple(_activation(name, alphas, betas) for name in names)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    if name not in _NUMBERS:
        raise UnknownActivation(f"activation {name!r} is none of ONNX's")
    out = []
    for what, given, default in zip(
        ("alpha", "beta"), (alphas, betas), _NUMBERS[name], strict=True
    ):
        number = None if default is None else next(given, default)
        if number is ...:
            raise UnknownActivation(f"activation {name!r} without activation_{what}")
        out.append(None if number is None else float(number))
    return Activation(name, *out)


def applied(a: Activation, x: g.Value) -> g.Value:
    """The value of the function, element by element."""
    return _GRAPHS[a.name](x, a.alpha, a.beta)


def scalar(number: float, like: g.Value) -> g.Value:
    """A constant of another value's element type."""
    assert like.type.dtype is not None
    return g.constant(np.array(number, to_numpy(like.type.dtype)))


def _do(name: str, *inputs: g.Value, **attrs: Attr) -> g.Value:
    return g.node(OPS[name], inputs, **attrs)


def _operator(name: str, *numbers: str) -> Callable[..., g.Value]:
    def graph(x: g.Value, alpha: float | None, beta: float | None) -> g.Value:
        given = {"alpha": alpha, "beta": beta}
        return _do(name, x, **{k: given[k] for k in numbers})

    return graph


def _affine(x: g.Value, alpha: float, beta: float) -> g.Value:
    return _do("Add", _do("Mul", x, scalar(alpha, x)), scalar(beta, x))


def _scaled_tanh(x: g.Value, alpha: float, beta: float) -> g.Value:
    return _do("Mul", _do("Tanh", _do("Mul", x, scalar(beta, x))), scalar(alpha, x))


_GRAPHS: Mapping[str, Callable[..., g.Value]] = {
    "affine": _affine,
    "elu": _operator("Elu", "alpha"),
    "hardsigmoid": _operator("HardSigmoid", "alpha", "beta"),
    "leakyrelu": _operator("LeakyRelu", "alpha"),
    "relu": _operator("Relu"),
    "scaledtanh": _scaled_tanh,
    "sigmoid": _operator("Sigmoid"),
    "softplus": _operator("Softplus"),
    "softsign": _operator("Softsign"),
    "tanh": _operator("Tanh"),
    "thresholdedrelu": _operator("ThresholdedRelu", "alpha"),
}
