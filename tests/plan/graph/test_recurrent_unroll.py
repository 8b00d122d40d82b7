"""LSTM, GRU and RNN written out as their steps, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.errors import ModelError
from superopt.plan.graph.recurrent_layer import GATES
from tests.support.compilation.models import near, reference
from tests.support.compilation.recurrent import feeds, recurrent

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "reverse": {"direction": "reverse"},
    "both ways": {"direction": "bidirectional"},
    "given states": {"states": True},
    "both ways from given states": {"direction": "bidirectional", "states": True},
    "lengths that say nothing": {"lengths": True},
    "one step": {"steps": 1},
    "small": {"hidden": 1, "size": 1, "batch": 1},
    "as wide as vectors": {"hidden": 32, "batch": 1, "steps": 7},
    "its usual functions": {"named": True, "direction": "bidirectional"},
}


def check(m: onnx.ModelProto, threads: int = 1) -> superopt.Executable:
    exe, x = superopt.compile(m, threads=threads), feeds(m)
    near(exe(**x), reference(m, x))
    return exe


@pytest.mark.one_in(13)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", GATES)
def test_steps(kind: str, case: str) -> None:
    assert not check(recurrent(kind, **CASES[case])).fallback_nodes({})


@pytest.mark.one_in(6)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", GATES)
def test_both_directions_at_once_and_one_after_the_other(kind: str, threads: int) -> None:
    check(recurrent(kind, direction="bidirectional", hidden=200, steps=3, states=True), threads)


@pytest.mark.parametrize("kind", GATES)
def test_only_the_last_state(kind: str) -> None:
    m = recurrent(kind, direction="bidirectional")
    m.graph.node[0].output[0] = ""
    del m.graph.output[0]
    assert not check(m).fallback_nodes({})


def test_any_number_of_sequences() -> None:
    m = recurrent("LSTM")
    for i in (m.graph.input[0], *m.graph.output):
        i.type.tensor_type.shape.dim[2 if i.name == "y" else 1].dim_param = "n"
    exe = superopt.compile(m)
    for n in (1, 2):
        x = {"x": np.random.default_rng(n).standard_normal((5, n, 6)).astype(np.float32)}
        near(exe(**x), reference(m, x))
        assert not exe.fallback_nodes({"n": n})


def test_reset_after_the_product() -> None:
    for bias in (True, False):
        assert not check(
            recurrent("GRU", bias=bias, linear_before_reset=1, states=True)
        ).fallback_nodes({})


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", GATES)
def test_batches_may_come_first(kind: str) -> None:
    """As onnxruntime has it not: the same numbers as with steps first, turned round."""
    plain, m = (recurrent(kind, direction="bidirectional", states=True) for _ in range(2))
    m.graph.node[0].attribute.append(helper.make_attribute("layout", 1))
    for v in (*m.graph.input, *m.graph.output):
        dims = v.type.tensor_type.shape.dim
        turned = [dims[k].dim_value for k in ((2, 0, 1, 3) if len(dims) == 4 else (1, 0, 2))]
        for d, n in zip(dims, turned, strict=True):
            d.dim_value = n
    x = feeds(plain)
    wanted = superopt.compile(plain)(**x)
    got = superopt.compile(m)(**{k: v.swapaxes(0, 1) for k, v in x.items()})
    for k, v in wanted.items():
        np.testing.assert_array_equal(got[k], np.moveaxis(v, -2, 0))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", GATES)
def test_float64(kind: str) -> None:
    plain, m = (recurrent(kind, direction="bidirectional", states=True) for _ in range(2))
    for t in m.graph.initializer:
        array = onnx.numpy_helper.to_array(t).astype(np.float64)
        t.CopyFrom(onnx.numpy_helper.from_array(array, t.name))
    for v in (*m.graph.input, *m.graph.output):
        v.type.tensor_type.elem_type = TensorProto.DOUBLE
    x = feeds(plain)
    got = superopt.compile(m)(**{k: v.astype(np.float64) for k, v in x.items()})
    wanted = superopt.compile(plain)(**x)
    near(got, {k: v.astype(np.float64) for k, v in wanted.items()})


def test_shapes_that_do_not_fit_are_onnxruntimes_to_tell() -> None:
    """A state of other rows, and a size that the matrices have not: refused, and not computed."""
    for kind in GATES:
        m = recurrent(kind, batch=1, states=True)
        (h,) = (i for i in m.graph.input if i.name == "h")
        h.type.tensor_type.shape.dim[1].dim_value = 60
        x = feeds(m)
        with pytest.raises(ModelError):
            superopt.compile(m)(**x)
        m = recurrent(kind)
        (hidden,) = (a for a in m.graph.node[0].attribute if a.name == "hidden_size")
        hidden.i = 5
        for v in m.graph.output:
            v.type.tensor_type.shape.dim[len(v.type.tensor_type.shape.dim) - 1].dim_value = 5
        with pytest.raises(ModelError):
            superopt.compile(m)(**feeds(m))


def test_matrices_of_symbolic_sizes() -> None:
    m = recurrent("LSTM")
    (w,) = (t for t in m.graph.initializer if t.name == "w")
    m.graph.initializer.remove(w)
    m.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, ["d", "g", "i"]))
    x = feeds(recurrent("LSTM")) | {"w": onnx.numpy_helper.to_array(w)}
    near(superopt.compile(m)(**x), reference(m, x))


@pytest.mark.parametrize("kind", GATES)
def test_sequences_of_several_lengths(kind: str) -> None:
    m = recurrent(kind, lengths=True)
    (lengths,) = (t for t in m.graph.initializer if t.name == "l")
    lengths.CopyFrom(onnx.numpy_helper.from_array(np.array([5, 3, 1], np.int32), "l"))
    assert not check(m).fallback_nodes({})


@pytest.mark.parametrize("kind", GATES)
def test_no_sequences(kind: str) -> None:
    m = recurrent(kind)
    for v in (*m.graph.input, *m.graph.output):
        dims = v.type.tensor_type.shape.dim
        dims[len(dims) - 2].dim_param = "n"
    exe = superopt.compile(m)
    got = exe(x=np.zeros((5, 0, 6), np.float32))
    assert [v.size for v in got.values()] == [0] * len(got)
