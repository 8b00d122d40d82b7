"""Object files of programs of one shared object."""

from __future__ import annotations

import superopt
from superopt.compilation.cpu.library.shared_objects import shared_objects
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.kernels.runtime.cpu import host
from tests.support.compilation.exporting import floats, node
from tests.support.compilation.models import F, model


def test_kernels_of_one_name_that_differ_get_other_names() -> None:
    m = model([node("MatMul", ["x", "w"], ["a"]), node("Softmax", ["a"], ["y"])],
              {"x": (F, [5, 16])}, ["y"], {"w": floats(16, 8)})  # fmt: skip
    (segment,) = superopt.compile(m).variant({})
    assert isinstance(segment, NativeSegment)
    program = segment.program
    first = shared_objects(program, host(), 1, None, 0, {})
    assert [*first] == [*program.kernels, "run0"]
    same = shared_objects(program, host(), 1, None, 1, first)
    assert [*same] == [*program.kernels, "run1"]
    assert all(same[name] == first[name] for name in program.kernels)
    other, *rest = program.kernels
    made = shared_objects(program, host(), 1, None, 2, {**first, other: b"other code"})
    assert [*made] == [f"{other}_2", *rest, "run2"]
    name = f"{other}_2".encode()
    assert name in made[f"{other}_2"]
    assert name in made["run2"]
    assert name not in first["run0"]
