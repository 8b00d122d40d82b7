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

from superopt.ir import graph as ir_graph
from superopt.ir.op import Attr
from superopt.ops import OPS
from superopt.te.expr.dtype import to_numpy


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
_PARAMETER_DEFAULTS: Mapping[str, tuple[Any, Any]] = {
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


def parse_activations(
    attributes: Mapping[str, Any], default: Sequence[str]
) -> tuple[Activation, ...]:
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
    if name not in _PARAMETER_DEFAULTS:
        raise UnknownActivation(f"activation {name!r} is not defined by ONNX")
    out = []
    for what, given, default in zip(
        ("alpha", "beta"), (alphas, betas), _PARAMETER_DEFAULTS[name], strict=True
    ):
        number = None if default is None else next(given, default)
        if number is ...:
            raise UnknownActivation(f"activation {name!r} without activation_{what}")
        out.append(None if number is None else float(number))
    return Activation(name, *out)


def apply_activation(a: Activation, x: ir_graph.Value) -> ir_graph.Value:
    """Return the function of `x`, elementwise."""
    return _BUILDERS[a.name](x, a.alpha, a.beta)


def scalar_like(number: float, like: ir_graph.Value) -> ir_graph.Value:
    """Return a scalar constant with the element type of `like`."""
    assert like.type.dtype is not None
    return ir_graph.constant(np.array(number, to_numpy(like.type.dtype)))


def _make_node(name: str, *inputs: ir_graph.Value, **attrs: Attr) -> ir_graph.Value:
    return ir_graph.node(OPS[name], inputs, **attrs)


def _unary_builder(name: str, *numbers: str) -> Callable[..., ir_graph.Value]:
    def graph(x: ir_graph.Value, alpha: float | None, beta: float | None) -> ir_graph.Value:
        given = {"alpha": alpha, "beta": beta}
        return _make_node(name, x, **{k: given[k] for k in numbers})

    return graph


def _affine(x: ir_graph.Value, alpha: float, beta: float) -> ir_graph.Value:
    return _make_node("Add", _make_node("Mul", x, scalar_like(alpha, x)), scalar_like(beta, x))


def _scaled_tanh(x: ir_graph.Value, alpha: float, beta: float) -> ir_graph.Value:
    return _make_node(
        "Mul", _make_node("Tanh", _make_node("Mul", x, scalar_like(beta, x))), scalar_like(alpha, x)
    )


_BUILDERS: Mapping[str, Callable[..., ir_graph.Value]] = {
    "affine": _affine,
    "elu": _unary_builder("Elu", "alpha"),
    "hardsigmoid": _unary_builder("HardSigmoid", "alpha", "beta"),
    "leakyrelu": _unary_builder("LeakyRelu", "alpha"),
    "relu": _unary_builder("Relu"),
    "scaledtanh": _scaled_tanh,
    "sigmoid": _unary_builder("Sigmoid"),
    "softplus": _unary_builder("Softplus"),
    "softsign": _unary_builder("Softsign"),
    "tanh": _unary_builder("Tanh"),
    "thresholdedrelu": _unary_builder("ThresholdedRelu", "alpha"),
}
