"""Activation functions of recurrent layers as graph operators.

activations        names, one for each gate of each direction
activation_alpha   the alpha of each function that has one, in their order
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
    """A function that ONNX does not define, or one without a required parameter."""


@dataclass(frozen=True, slots=True)
class Activation:
    """A function by its lower-case name, with its parameters; None for a parameter that it does not
    have."""

    name: str
    alpha: float | None = None
    beta: float | None = None


# Names, with the defaults of alpha and beta. `...` marks a required parameter: ONNX has no default,
# or onnxruntime uses another one (0 for ThresholdedRelu's alpha, where ONNX says 1).
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
    """Return the functions of a layer's attributes. default: their names if the attribute is
    absent.

    Raises UnknownActivation.
    """
    names = [_text(a).lower() for a in attributes.get("activations") or default]
    if len(names) != len(default):
        raise UnknownActivation(f"{len(names)} activations for {len(default)} gates")
    alphas, betas = (iter(attributes.get(f"activation_{k}") or ()) for k in ("alpha", "beta"))
    return tuple(_activation(name, alphas, betas) for name in names)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    if name not in _NUMBERS:
        raise UnknownActivation(f"activation {name!r} is not defined by ONNX")
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
    """Return the function of `x`, elementwise."""
    return _GRAPHS[a.name](x, a.alpha, a.beta)


def scalar(number: float, like: g.Value) -> g.Value:
    """Return a scalar constant with the element type of `like`."""
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
