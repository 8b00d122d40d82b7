"""Every operator with a tensor expression, by its examples."""

from __future__ import annotations

import re

import pytest

from superopt.ir.graph import Node
from superopt.ops import OPS
from tests.support.ops.build import made

SIZES = {"n": 3, "m": 4, "b": 2}
# Element types that no kernel computes: such nodes run in onnxruntime.
WITHOUT = ("f8", "f4", "i4", "u4", "i2", "u2", "c64", "c128", "string")


EXAMPLES = [
    pytest.param(n, e, id=f"{n} {e}")
    for n, o in OPS.items()
    if not o.opaque
    for e in o.example
    if not any(w in e for w in WITHOUT)
]


def of_numbers(name: str, text: str) -> Node:
    shapes = r"\[[^\]]*\]"
    return made(name, re.sub(shapes, lambda s: re.sub(r"[a-z]", _size, s[0]), text))


def _size(m: re.Match[str]) -> str:
    return str(SIZES.get(m[0], 5))
