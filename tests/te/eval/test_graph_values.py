"""The values of graphs: sizes bound from the feeds, opaque nodes, what is held how long."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import weakref

import numpy as np
import pytest

from superopt.ir.evaluate import evaluate, evaluate_node, node_results
from superopt.ir.graph import Graph, Input, Node, Value, constant, node, opaque_node
from superopt.ir.op import InferError, Op, Payload
from superopt.ops import OPS
from superopt.te.eval.domain import Reals
from superopt.te.eval.prime_field import PrimeField
from superopt.te.expr import index
from superopt.te.expr.dtype import BF16, F32, F64
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType

N = Size("n")
A = Input("a", TensorType(F32, (N, 3)))
B = Input("b", TensorType(F32, (N, 5)))
ONES = np.ones((4, 3), np.float32)


def joined() -> Graph:
    return Graph((A, B), (node(OPS["Relu"], [node(OPS["Concat"], [A, B], axis=1)]),))


def test_sizes_are_those_of_the_feeds() -> None:
    for n in (2, 4):
        a, b = -np.ones((n, 3), np.float32), np.ones((n, 5), np.float32)
        (out,) = evaluate(joined(), {"a": a, "b": b})
        np.testing.assert_array_equal(out, np.concatenate([0 * a, b], 1))


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"a": ONES, "b": np.ones((3, 5), "f4")}, "n is 4 in axis 0 of input a but 3 in axis 0"),
        ({"a": ONES, "b": np.ones((4, 6), "f4")}, "input b is .* axis 1 is 6, not 5"),
        ({"a": ONES, "b": np.ones(5, "f4")}, "input b is .* fed an array of shape"),
        ({"a": ONES}, "input b: .* was not fed; given: a"),
        ({"a": ONES, "b": np.ones((4, 5), "i4")}, "input b: got int32 elements"),
    ],
)
def test_feeds_must_fit(feeds: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(joined(), feeds)


def test_composite_sizes_are_checked() -> None:
    double = Input("d", TensorType(F32, (index.dim(N * 2),)))
    g = Graph((A, double), (node(OPS["Relu"], [A]), node(OPS["Relu"], [double])))
    evaluate(g, {"a": ONES, "d": np.ones(8, "f4")})
    with pytest.raises(ValueError, match=r"axis 0 of input d is 7, not .* = 8"):
        evaluate(g, {"a": ONES, "d": np.ones(7, "f4")})


def test_sizes_in_attributes() -> None:
    flat = node(OPS["Reshape"], [A], shape=(index.dim(N * 3),))
    (out,) = evaluate(Graph((A,), (flat,)), {"a": ONES})
    assert out.shape == (12,)
    unknown = node(OPS["Expand"], [constant(np.ones((1,), "f4"))], shape=(Size("k"),))
    with pytest.raises(ValueError, match="size 'k' of k is in the shape of no input"):
        evaluate(Graph((), (unknown,)), {})


def test_opaque_nodes_are_computed_by_the_caller() -> None:
    strange = Op("Strange", None, domain="custom")
    result = TensorType(F32, (Size("found"), 3))
    made = opaque_node(strange, [A], Payload("x"), [result])
    g = Graph((A,), (node(OPS["Relu"], [made]),))
    with pytest.raises(InferError, match="Strange is opaque"):
        evaluate(g, {"a": ONES})

    def compute(n: Node, arrays: list[np.ndarray | None]) -> list[np.ndarray]:
        assert n is made
        assert arrays[0] is not None
        seen.append(arrays[0].dtype)
        return [arrays[0][:2].astype(np.float32)]

    seen: list[np.dtype] = []
    for domain in (Reals(), Reals(F64)):
        (out,) = evaluate(g, {"a": ONES}, domain, compute)
        np.testing.assert_array_equal(out, ONES[:2])
        assert out.dtype == domain.storage_dtype(F32)
    assert seen == [np.float32, np.float64]


def test_every_result_is_shown_and_what_is_used_up_is_dropped() -> None:
    value: Value = A
    for _ in range(6):
        value = node(OPS["Exp"], [node(OPS["Neg"], [value])])
    held: list[weakref.ref[np.ndarray]] = []
    most = 0

    def keep(v: Value, array: np.ndarray) -> None:
        nonlocal most
        base = array if array.base is None else array.base
        held.append(weakref.ref(base))
        gc.collect()
        most = max(most, sum(r() is not None for r in held))

    gc.freeze()  # what other tests left is not looked through twelve times
    try:
        evaluate(Graph((A,), (value,)), {"a": ONES}, on_result=keep)
    finally:
        gc.unfreeze()
    assert len(held) == 12
    assert most <= 3


def test_constants_are_loaded_when_they_are_read() -> None:
    loads = []

    def load() -> np.ndarray:
        loads.append(1)
        return np.full(3, 2, np.float32)

    late = constant(type=TensorType(F32, (3,)), key="late", load=load, nbytes=12)
    g = Graph((A,), (node(OPS["Add"], [A, late]), late))
    assert loads == []
    total, same = evaluate(g, {"a": ONES}, Reals(F64))
    np.testing.assert_array_equal(total, 3 * np.ones((4, 3)))
    assert (total.dtype, same.dtype) == (np.float64, np.float64)
    assert len(loads) == 2


def test_the_field_takes_its_own_elements_and_real_numbers() -> None:
    field = PrimeField(3)
    elements = field.random(TensorType(F32, (4, 3)), 0)
    real = np.full((4, 5), 0.5, np.float32)
    (out,) = evaluate(joined(), {"a": elements, "b": real}, field)
    assert out.shape == (2, 4, 8)
    np.testing.assert_array_equal(
        out[:, :, 3:], np.broadcast_to(field.const(0.5, F32)[:, None, None], (2, 4, 5))
    )


def test_single_operators() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (out,) = evaluate_node(OPS["Transpose"], {"perm": (1, 0)}, [x])
    np.testing.assert_array_equal(out, x.T)
    clip = [x, None, np.float32(3)]
    (out,) = evaluate_node(OPS["Clip"], {}, [None if c is None else np.asarray(c) for c in clip])
    np.testing.assert_array_equal(out, x.clip(max=3))
    (wide,) = evaluate_node(OPS["Relu"], {}, [x.astype(float)], Reals(F64), [BF16])
    np.testing.assert_array_equal(wide, x)
    n = node(OPS["Relu"], [constant(x)])
    (out,) = node_results(n, [x], Reals(F64))
    assert out.dtype == np.float64
    with pytest.raises(InferError):
        evaluate_node(OPS["MatMul"], {}, [x, x])


def test_an_expression_that_was_sent_elsewhere_is_equal() -> None:
    """Its hash is of one process, since those of strings are, and does not travel."""
    n = Size("n")
    sent = pickle.loads(pickle.dumps(made := n // 2 + 3))
    assert sent == made
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    script = (
        "import pickle, superopt.te.expr.tensor; from superopt.te.expr.node import Size;"
        f" print(hash(pickle.loads({pickle.dumps(made)!r})), hash(Size('n') // 2 + 3))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env
    )
    there, its_own = done.stdout.split()
    assert there == its_own
