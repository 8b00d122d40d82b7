"""Objects that expressions share, and hashes that distinguish them."""

import pickle
import subprocess
import sys
from fractions import Fraction

import pytest

from superopt.te.expr.dtype import F32, INDEX
from superopt.te.expr.node import Axis, Const, Size
from superopt.te.expr.tensor import Tensor, apply, compute, const


def test_axes_of_equal_extents_are_one_object() -> None:
    one, other = (compute((3, Size("n")), lambda *i: const(1, F32)) for _ in range(2))
    assert one.axes[0] is other.axes[0]
    assert one.axes[1] is other.axes[1]
    wide = compute((4,), lambda *i: const(1, F32))
    assert wide.axes[0] != one.axes[0]
    assert hash(wide.axes[0]) != hash(one.axes[0])


def test_the_type_of_a_tensor_is_one_object() -> None:
    t = Tensor("t", F32, (2, Size("n")))
    assert t.type is t.type
    assert (t.type.dtype, t.type.shape) == (F32, (2, Size("n")))


def test_numbers_adopt_the_type_of_the_expressions() -> None:
    x = const(2, F32)
    assert apply("add", x, 1, Fraction(1, 3)).args[1:] == (
        const(1, F32),
        const(Fraction(1, 3), F32),
    )
    with pytest.raises(TypeError, match="numbers only"):
        apply("add", 1, 2.0)
    with pytest.raises(TypeError, match="f32 and index"):
        apply("add", x, Const(1, INDEX))


def test_a_hash_is_not_pickled() -> None:
    """Hashes of texts differ between processes."""
    axis = Axis("i", 3)
    assert hash(axis)
    script = (
        "import pickle, sys; from superopt.te.expr.node import Axis;"
        "axis = pickle.loads(sys.stdin.buffer.read());"
        "sys.exit(not ({axis: 1}.get(Axis('i', 3)) and axis == Axis('i', 3)))"
    )
    done = subprocess.run([sys.executable, "-c", script], input=pickle.dumps(axis), check=False)
    assert done.returncode == 0
