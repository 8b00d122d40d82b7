"""What is launched where a device has less memory than blocks are made for: with fakes of kernels
that Triton has compiled, which need no device."""

import re

import pytest

from superopt.kernels.runtime.gpu_program import fit_to_device
from tests.support.gpu.launches import Compiled, Function, launch


def test_steps_under_way_are_fewer_where_they_do_not_fit() -> None:
    large, small = Function(2), Function(9)
    given = [launch("a", large, 4), launch("b", small, 4), launch("a", large, 4)]
    found, kernels = fit_to_device(given)
    assert [x[4]["num_stages"] for x in found] == [2, 4, 2]
    assert [x[0] for x in found] == ["a", "b", "a"]
    assert list(kernels) == ["b", "a"]  # as they were ready
    assert (large.asked, small.asked) == ([4, 3, 2], [4])
    assert all(k.right for k in kernels.values())
    assert [x[4]["num_stages"] for x in given] == [4, 4, 4]


def test_what_never_fits_has_no_kernel() -> None:
    with pytest.raises(NotImplementedError, match=re.escape("big needs more memory")):
        fit_to_device([launch("big", Function(0), 3)])


def test_other_errors_are_not_taken_for_too_little_memory() -> None:
    class Broken(Compiled):
        def fits_device(self) -> bool:
            raise RuntimeError("no device")

    class Breaking(Function):
        def warmup(self, *_: object, num_stages: int, **more: object) -> Compiled:
            return Broken(True)

    with pytest.raises(RuntimeError, match="no device"):
        fit_to_device([launch("a", Breaking(1), 3)])
