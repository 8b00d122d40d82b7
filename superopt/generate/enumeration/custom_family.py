"""Parse a family from text: operators as in rules, and the shapes of inputs and constants.

custom("MatMul, Transpose(perm=(1,0)), Split(axis=0, split=(3,3))", "x=3x3, s=, 0=zeros:3x3")
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from math import prod

from superopt.errors import UsageError
from superopt.generate.enumeration.bank import constant_entries
from superopt.generate.families.family import Family, OperatorUse, Shape
from superopt.generate.families.fit_operators import MAX_ELEMENTS, fit_uses, shape_text
from superopt.ir.op import REQUIRED, Attr, Payload
from superopt.ir.syntax import MalformedText, expression, parse_attr, parser_message
from superopt.ops import OPS
from superopt.te.expr.node import Expr

FAMILY_NAME = "custom"
CONSTANT_KINDS = ("zeros", "ones", "twos", "eye", "dirac", "means")
MAX_INPUTS = 12
MAX_OPS = 5
SMALL_TENSOR_ELEMENTS = 8  # elements; smaller tensors may be all positive on a few samples
AXIS_ATTRIBUTES = ("axis", "axes", "perm")


def custom_family(ops: str, shapes: str) -> Family:
    """Return the family of these operators on inputs and constants of these shapes.

    ops: ONNX names, with attributes as in rules; each with one or two operands. shapes: NAME=SHAPE
    for an input, NAME=KIND:SHAPE for a constant, SHAPE as 2x3, or empty for a scalar. Raises
    UsageError for text that cannot be parsed or enumerated.
    """
    operators = _parse_operators(ops)
    inputs, constants = _parse_leaves(shapes)
    uses, largest = fit_uses(operators, {**inputs, **{n: s for n, (_, s) in constants.items()}})
    samples = 32 if max(map(prod, inputs.values())) < SMALL_TENSOR_ELEMENTS else 8
    return Family(FAMILY_NAME, inputs, constants, uses, largest, samples, MAX_OPS)


def family_text(family: Family) -> str:
    """Return everything that the family's rules depend on, on one line."""
    leaves = [f"{n}={shape_text(s)}" for n, s in family.inputs.items()]
    leaves += [f"{n}={kind}:{shape_text(s)}" for n, (kind, s) in family.constants.items()]
    return f"{family.name} of {', '.join(map(str, family.uses))} on {', '.join(leaves)}"


_TOKEN = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|.""", re.DOTALL)


def _split_items(text: str) -> Iterator[str]:
    """Yield the text between the commas outside of brackets."""
    depth, item = 0, ""
    for token in _TOKEN.findall(text):
        depth += (token in "([{") - (token in ")]}")
        if token == "," and depth == 0:
            yield item.strip()
            item = ""
        else:
            item += token
    yield item.strip()


# --- operators ------------------------------------------------------------------------------------


def _parse_operators(text: str) -> list[OperatorUse]:
    found: list[OperatorUse] = []
    for item in _split_items(text):
        made = _parse_operator(item)
        if made in found:
            raise UsageError(f"{item} occurs twice", f"in {text!r}", "leave one of them out")
        found.append(made)
    return found


def _parse_operator(text: str) -> OperatorUse:
    name, given = _parse_call(text)
    if name not in OPS:
        lower = {known.lower(): known for known in OPS}
        near = difflib.get_close_matches(name.lower(), lower, n=3)
        raise UsageError(
            f"unknown operator {name!r}",
            f"{len(OPS)} ONNX operators have a tensor expression",
            f"did you mean {' or '.join(lower[n] for n in near)}?" if near else "choose another",
        )
    op = OPS[name]
    arity = max(2, op.required) if op.variadic else op.required
    if not 1 <= arity <= 2:
        raise UsageError(
            f"{name} has {arity} operands",
            "only operators with one or two can be enumerated",
            "leave it out",
        )
    for key, value in given.items():
        if key not in op.attrs:
            has = f"it has {', '.join(op.attrs)}" if op.attrs else "it has none"
            raise UsageError(f"{name} has no attribute {key}", has, f"leave {key} out")
        if key in AXIS_ATTRIBUTES and any(isinstance(v, int) and v < 0 for v in _as_tuple(value)):
            raise UsageError(
                f"{text}: {key} is counted from the end",
                "operands have several ranks, and rules count from both ends anyway",
                "count it from 0",
            )
    for key, default in op.attrs.items():
        if default is REQUIRED and key not in given:
            raise UsageError(
                f"{name} needs the attribute {key}",
                f"{text!r} says {', '.join(given) or 'none'}",
                f"write {name}({key}=...)",
            )
    if name == "Conv":
        given.setdefault("group", 1)  # a law for one group states it
    return OperatorUse(name, tuple(given.items()), arity)


def _as_tuple(value: Attr) -> tuple[Attr, ...]:
    return value if isinstance(value, tuple) else (value,)


def _parse_call(text: str) -> tuple[str, dict[str, Attr]]:
    """Return the operator's name and its attributes."""

    def wrong(why: str) -> UsageError:
        return UsageError(
            f"{text!r} is not an operator", why, "write it as MatMul or Transpose(perm=(1, 0))"
        )

    try:
        match expression(text):
            case ast.Name(name):
                return name, {}
            case ast.Call(ast.Name(name), [], keywords):
                given: dict[str, Attr] = {}
                for k in keywords:
                    if k.arg is None or k.arg in given:
                        raise wrong(
                            f"{k.arg or '**'} occurs twice" if k.arg else "** is not a name"
                        )
                    given[k.arg] = parse_attr(k.value)
                    if any(isinstance(v, (Expr, Payload)) for v in _as_tuple(given[k.arg])):
                        raise wrong(f"{k.arg}={ast.unparse(k.value)} is not a concrete value")
                return name, given
            case ast.Call(ast.Name(name)):
                raise wrong(
                    f"operands must be omitted, and attributes need names: {name}(key=value)"
                )
    except MalformedText as e:
        raise wrong(parser_message(e)) from None
    raise wrong("it is neither a name nor a name with attributes")


# --- inputs and constants -------------------------------------------------------------------------


def _parse_leaves(text: str) -> tuple[dict[str, Shape], dict[str, tuple[str, Shape]]]:
    inputs: dict[str, Shape] = {}
    constants: dict[str, tuple[str, Shape]] = {}
    written: dict[str, str] = {}
    for item in _split_items(text):
        name, equals, rest = (part.strip() for part in item.partition("="))
        kind, colon, dims = (part.strip() for part in rest.rpartition(":"))
        if not equals or not re.fullmatch(r"\w+", name):
            raise UsageError(
                f"{item!r} is not the shape of an input", f"in {text!r}", "write it as x=2x3, or s="
            )
        shape = _parse_shape(item, dims)
        if name in written:
            raise UsageError(
                f"{name} occurs twice",
                f"as {name}={written[name]} and {item}",
                "rename one of them",
            )
        written[name] = rest
        if not colon:
            inputs[name] = shape
            continue
        _check_constant(item, kind, shape)
        for other, (like, size) in constants.items():
            if size == shape and constant_entries(like, size) == constant_entries(kind, shape):
                raise UsageError(
                    f"{name} and {other} are the same constant",
                    f"{rest} equals {written[other]}",
                    "leave one of them out",
                )
        constants[name] = (kind, shape)
    if not 1 <= len(inputs) <= MAX_INPUTS:
        raise UsageError(
            f"{len(inputs)} inputs were given",
            f"there must be 1 to {MAX_INPUTS}",
            "pass that many",
        )
    return inputs, constants


def _parse_shape(item: str, dims: str) -> Shape:
    sizes = dims.split("x") if dims else []
    if not all(re.fullmatch(r"\s*[0-9]{1,9}\s*", d) for d in sizes):
        raise UsageError(
            f"{item!r}: {dims!r} is not a shape",
            "a shape is sizes joined by x",
            "write it as 2x3, or ''",
        )
    shape = tuple(map(int, sizes))
    if 0 in shape:
        raise UsageError(
            f"{item!r} has no elements", "a size is 0",
            "pass sizes of at least 1: all empty tensors are equal",
        )  # fmt: skip
    if prod(shape) > MAX_ELEMENTS:
        raise UsageError(
            f"{item!r} has {prod(shape)} elements",
            f"tensors of an enumeration have at most {MAX_ELEMENTS}",
            "pass small sizes, such as 2x3: results are tested at other ones",
        )
    return shape


def _check_constant(item: str, kind: str, shape: Shape) -> None:
    if kind not in CONSTANT_KINDS:
        raise UsageError(
            f"{item!r}: unknown constant {kind!r}",
            f"the constants are {', '.join(CONSTANT_KINDS)}",
            "choose one",
        )
    if kind == "eye" and (len(shape) != 2 or shape[0] != shape[1]):
        raise UsageError(
            f"{item!r} is not an identity",
            f"an eye must be square, not {shape_text(shape)}",
            "pass 3x3",
        )
    if kind in ("dirac", "means") and (len(shape) < 3 or shape[0] != shape[1]):
        raise UsageError(
            f"{item!r} is not the kernel of a convolution",
            f"a {kind} has as many output as input channels, and spatial axes, not "
            f"{shape_text(shape)}",
            "pass 2x2x3x3",
        )
