"""Building and evaluating single operators from text: `f32[2, n] axis=1`."""

from __future__ import annotations

import numpy as np

from superopt.ir.evaluate import evaluate_node
from superopt.ir.graph import Input, Node, node
from superopt.ir.op import Attr
from superopt.ir.syntax import expression, parse_attr, parse_type
from superopt.ops import OPS
from superopt.te.expr.dtype import DType
from superopt.te.expr.tensor import TensorType


def example(text: str) -> tuple[tuple[TensorType, ...], dict[str, Attr]]:
    """Operand types and attributes of an operator's example."""
    types: list[TensorType] = []
    attrs: dict[str, Attr] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if equals:
            attrs[name] = parse_attr(expression(value))
        else:
            types.append(parse_type(expression(word)))
    return tuple(types), attrs


def operands(types: tuple[TensorType, ...]) -> tuple[Input, ...]:
    return tuple(Input(f"x{n}", t) for n, t in enumerate(types))


def made(name: str, text: str, inputs: tuple[Input, ...] | None = None) -> Node:
    """The node of operator `name` on operands of the types in `text`, with its attributes."""
    types, attrs = example(text)
    return node(OPS[name], inputs or operands(types), **attrs)


def value(
    name: str, *arrays: np.ndarray | None, dtypes: tuple[DType, ...] | None = None, **attrs: Attr
) -> np.ndarray:
    """The first result of operator `name`."""
    return evaluate_node(OPS[name], attrs, arrays, dtypes=dtypes)[0]


def values(name: str, *arrays: np.ndarray | None, **attrs: Attr) -> list[np.ndarray]:
    """All results of operator `name`."""
    return evaluate_node(OPS[name], attrs, arrays)
