"""Caches of a fixed capacity are written in place (`Executable.bind_state`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt
from scripts.decoder_models import (
    Size,
    fixed_decoder,
    group_query_decoder,
    tensor_scatter_decoder,
)
from superopt.compilation.model.executable import Executable
from superopt.compilation.model.states.stateful_call import StatefulCall
from superopt.errors import SuperoptError, UsageError
from tests.support.compilation.decoders import session
from tests.support.compilation.models import F, model
from tests.support.onnx_io.decoder_operators import DRAWS, grouped_query_attention

ort = pytest.importorskip("onnxruntime")

Feeds = dict[str, np.ndarray]
Run = Callable[[Feeds], Mapping[str, np.ndarray]]
SIZE = Size(layers=2, width=32, heads=4, vocabulary=200, positions=300)
STATE = {f"present.{n}.{k}": f"past_key_values.{n}.{k}" for n in range(2) for k in ("key", "value")}
RELATIVE_TOLERANCE = 2e-5  # of the largest element
CAPACITY, PROMPT, STEPS = 256, 20, 200
DECODERS = {
    "scatter_nd": fixed_decoder,
    "tensor_scatter": tensor_scatter_decoder,
    "group_query": group_query_decoder,
    "group_query_mask": partial(group_query_decoder, from_mask=True),
}
# Each takes 1 to 2 s: by default one of them runs.
KINDS = [pytest.param(kind, marks=[pytest.mark.ci] * (kind != "scatter_nd")) for kind in DECODERS]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


def feeds_of(kind: str, tokens: Sequence[int], past: int) -> Feeds:
    """The inputs of a call except the caches."""
    total = past + len(tokens)
    at = np.arange(past, total)
    more: dict[str, Feeds] = {
        "scatter_nd": {"cache_position": at},
        "tensor_scatter": {
            "write_indices": np.array([past]), "nonpad_kv_seqlen": np.array([total])
        },
        "group_query": {
            "seqlens_k": np.array([total - 1], np.int32),
            "total_sequence_length": np.array(total, np.int32),
        },
        "group_query_mask": {"attention_mask": np.ones((1, total), np.int64)},
    }  # fmt: skip
    return {"input_ids": np.array(tokens)[None], "position_ids": at[None], **more[kind]}


def greedy(kind: str, run: Callable[[Feeds], np.ndarray], count: int) -> list[int]:
    """The likeliest tokens after a prompt. run: returns the logits."""
    tokens: list[int] = []
    now, past = list(range(PROMPT)), 0
    for _ in range(count):
        tokens.append(int(run(feeds_of(kind, now, past))[0, -1].argmax()))
        past += len(now)
        now = tokens[-1:]
    return tokens


def keep_caches(run: Run, capacity: int = CAPACITY) -> Callable[[Feeds], np.ndarray]:
    """A function of the inputs except the caches, which the calls of `run` pass on."""
    held = {n: np.zeros((1, SIZE.heads, capacity, SIZE.head), np.float32) for n in STATE.values()}

    def step(feeds: Feeds) -> np.ndarray:
        out = run({**feeds, **held})
        held.update({name: out[key] for key, name in STATE.items()})
        return out["logits"]

    return step


def logits_of(call: StatefulCall, feeds: Feeds) -> np.ndarray:
    logits: np.ndarray = call.run(feeds)["logits"]
    return logits


def is_in_place(call: StatefulCall) -> bool:
    return all(s.memory is not None for s in call.states.values())


@pytest.mark.parametrize("kind", KINDS)
def test_200_tokens_are_those_of_onnxruntime(kind: str) -> None:
    m = DECODERS[kind](SIZE, seed=4)
    wanted = greedy(kind, keep_caches(session(m)), STEPS)
    assert len({*wanted}) > 40
    exe = superopt.compile(m, threads=1)
    call = exe.bind_state(STATE, sizes={"capacity": CAPACITY})
    for _ in range(2):
        assert greedy(kind, partial(logits_of, call), STEPS) == wanted
        assert is_in_place(call)
        call.reset()
    assert exe.shape_policy.fallback is None
    assert not exe.variants  # no other program was compiled
    (programs,) = exe.state_programs.values()
    assert len(programs.classes.classes) == 2


@pytest.mark.ci
def test_a_circular_cache_has_the_last_tokens() -> None:
    """Calls beyond the capacity write over the oldest tokens."""
    m, capacity = tensor_scatter_decoder(SIZE, seed=4, mode="circular"), 32
    call = superopt.compile(m, threads=1).bind_state(STATE, sizes={"capacity": capacity})

    def limit_keys(run: Callable[[Feeds], np.ndarray], feeds: Feeds) -> np.ndarray:
        valid = np.minimum(feeds["nonpad_kv_seqlen"], capacity)
        return run({**feeds, "nonpad_kv_seqlen": valid})

    wanted = greedy("tensor_scatter", partial(limit_keys, keep_caches(session(m), capacity)), 80)
    assert len({*wanted}) > 10
    assert greedy("tensor_scatter", partial(limit_keys, partial(logits_of, call)), 80) == wanted
    assert is_in_place(call)


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_writes_new_elements_only(kind: str) -> None:
    m = DECODERS[kind](SIZE, seed=4, capacity=64)
    call, step = superopt.compile(m, threads=1).bind_state(STATE), keep_caches(session(m), 64)
    past = 0
    for count in (PROMPT, 1, 1, 3, 1, 1):
        feeds = feeds_of(kind, list(range(count)), past)
        before = {n: x.copy() for n, x in call.state.items()}
        memories = [s.memory for s in call.states.values()]
        logits, wanted = call.run(feeds)["logits"], step(feeds)
        np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-4)
        for name, x in before.items():
            same = call.state[name].view(np.int32) == x.view(np.int32)
            assert same[:, :, :past].all()
            assert same[:, :, past + count :].all()
            assert not same[:, :, past : past + count].all(axis=3).any()
        if count == 1 and all(x is not None for x in memories):  # none after onnxruntime
            assert [id(s.memory) for s in call.states.values()] == [*map(id, memories)]
        past += count


FULL = {
    "scatter_nd": "'cache_position' has the value 64",
    "tensor_scatter": "'write_indices' has the value 64",
    "group_query": "'seqlens_k' has the value 64",
    "group_query_mask": "would have the length 65",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_cache_is_an_error_before_it_is_written(kind: str) -> None:
    call = superopt.compile(DECODERS[kind](SIZE), threads=1).bind_state(
        STATE, sizes={"capacity": 64}
    )
    call.run(feeds_of(kind, list(range(PROMPT)), 0))
    call.run(feeds_of(kind, [3], 63))
    before = {n: x.copy() for n, x in call.state.items()}
    for tokens, past in (([5], 64), ([5, 6], 63)):
        with pytest.raises(SuperoptError, match=r"has the value|have the length|no greater than"):
            call.run(feeds_of(kind, tokens, past))
    with pytest.raises(UsageError, match=FULL[kind]):
        call.run(feeds_of(kind, [5], 64))
    assert is_in_place(call)
    assert all(np.array_equal(call.state[n], x) for n, x in before.items())


@pytest.mark.ci
def test_programs_come_from_the_disk_cache(tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    onnx.save(tensor_scatter_decoder(SIZE), path)
    texts = []
    for _ in range(2):
        exe = superopt.compile(path, threads=1)
        call = exe.bind_state(STATE, sizes={"capacity": 64})
        texts.append(greedy("tensor_scatter", partial(logits_of, call), 30))
        assert is_in_place(call)
    assert texts[0] == texts[1]


@pytest.mark.one_in(8)
@pytest.mark.parametrize("seed", range(24))
def test_random_attention_to_caches(seed: int) -> None:
    """Batches of texts whose lengths differ, with rotations, windows, caps and grouped heads."""
    rng = np.random.default_rng(seed)
    draw = DRAWS["attention_with_cache"]
    case = draw(rng) if seed % 2 else grouped_query_attention(rng, fixed_capacity=True)
    m = case.model()
    run, exe = session(m), superopt.compile(m, threads=1)
    for _ in range(4):
        sizes = case.draw_sizes(rng)
        given = case.feeds(rng, sizes)
        call = exe.bind_state({"nk": "pk", "nv": "pv"})
        call.reset({name: given[name] for name in ("pk", "pv")})
        got = dict(call.run({n: x for n, x in given.items() if n not in ("pk", "pv")}))
        wanted = run(given)
        state = call.state
        pairs = [got["y"], state["pk"], state["pv"]], [wanted[n] for n in ("y", "nk", "nv")]
        for some in pairs:
            case.clear(given, some)
        for x, y in zip(*pairs, strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=RELATIVE_TOLERANCE * np.abs(y).max())


def cache_model(
    nodes: Sequence[onnx.NodeProto], new: Sequence[int | str], positions: Sequence[int | str],
    more: Sequence[str] = (), **constants: np.ndarray,
) -> onnx.ModelProto:  # fmt: skip
    """Nodes that write `new` into `past` at `at`, and read the cache."""
    total = helper.make_node("ReduceSum", ["present"], ["y"], keepdims=0)
    inputs = {
        "past": (F, [2, 3, 8, 4]),
        "new": (F, [*new]),
        "at": (TensorProto.INT64, [*positions]),
    }
    made = model([*nodes, total], inputs, ["y", "present", *more], constants)
    made.opset_import[0].version, made.ir_version = 24, 12
    return made


def draw(shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal(tuple(shape)).astype(np.float32)


def check_writes(
    m: onnx.ModelProto, new: Sequence[int], positions: Sequence[object], in_place: bool = True
) -> Executable:
    """Compare calls at these positions with onnxruntime's."""
    rng, run, exe = np.random.default_rng(0), session(m), superopt.compile(m, threads=1)
    held, call = draw((2, 3, 8, 4), rng), exe.bind_state({"present": "past"})
    call.reset({"past": held})
    for at in positions:
        feeds = {"new": draw(new, rng), "at": np.array(at)}
        wanted = run({**feeds, "past": held})
        got = call.run(feeds)
        for name, x in got.items():
            np.testing.assert_allclose(x, wanted[name], rtol=1e-5, atol=1e-4)
        held = wanted["present"]
        assert np.array_equal(call.state["past"], held)
        assert is_in_place(call) == in_place
    return exe


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter_in_both_modes(mode: str) -> None:
    node = helper.make_node("TensorScatter", ["past", "new", "at"], ["present"], axis=2, mode=mode)
    more = [[6, 7], [7, 5], [13, 800]] if mode == "circular" else []
    m = cache_model([node], [2, 3, "n", 4], [2])
    check_writes(m, [2, 3, 3, 4], [[0, 5], [4, 1], [5, 0], *more])


def test_tensor_scatter_without_positions() -> None:
    node = helper.make_node("TensorScatter", ["past", "new"], ["present"])
    unused = helper.make_node("Add", ["at", "at"], ["z"])
    check_writes(cache_model([node, unused], [2, 3, 5, 4], [2], ["z"]), [2, 3, 5, 4], [[0, 0]] * 2)


SCATTERS = {
    "rows": (
        [("Transpose", ["past"], {"perm": [2, 0, 1, 3]}), ("ScatterND", ["0", "at", "new"], {}),
         ("Transpose", ["1"], {"perm": [1, 2, 0, 3]})],
        [2, 2, 3, 4], [2, 1], [[[0], [1]], [[7], [3]], [[-1], [-8]]],
    ),
    "first axis": ([("ScatterND", ["past", "at", "new"], {})],
                   [1, 3, 8, 4], [1, 1], [[[0]], [[1]], [[-2]]]),
    "elements": (
        [("Expand", ["at", "shape"], {}), ("ScatterElements", ["past", "0", "new"], {"axis": 2})],
        [2, 3, 2, 4], [1, 1, 2, 1], [[[[[0], [1]]]], [[[[7], [-4]]]]],
    ),
    "elements at positions without leading axes": (
        [("Expand", ["at", "shape"], {}), ("ScatterElements", ["past", "0", "new"], {"axis": -2})],
        [2, 3, 2, 4], [2, 1], [[[0], [1]], [[7], [-4]]],
    ),
}  # fmt: skip


Steps = Sequence[tuple[str, list[str], dict[str, object]]]


def scatter_model(
    steps: Steps, new: Sequence[int], positions: Sequence[int],
    more: Sequence[onnx.NodeProto] = (), outputs: Sequence[str] = (),
) -> onnx.ModelProto:  # fmt: skip
    nodes = [
        helper.make_node(op, names, ["present" if n == len(steps) - 1 else str(n)], **attrs)
        for n, (op, names, attrs) in enumerate(steps)
    ]
    return cache_model([*nodes, *more], new, positions, outputs, shape=np.array(new))


@pytest.mark.parametrize("kind", SCATTERS)
def test_scatters_of_rows(kind: str) -> None:
    steps, new, positions, at = SCATTERS[kind]
    check_writes(scatter_model(steps, new, positions), new, at)


def test_a_cache_that_others_read_before_it_is_written_is_copied() -> None:
    """What reads the input, or a value inside of the write, may run after the write."""
    new, at = [2, 3, 1, 4], [[0, 5], [4, 1]]
    write = helper.make_node("TensorScatter", ["past", "new", "at"], ["present"], axis=2)
    old = helper.make_node("ReduceMax", ["past"], ["old"], keepdims=0)
    check_writes(cache_model([write, old], new, [2], ["old"]), new, at, in_place=False)
    steps, new, positions, at = SCATTERS["rows"]
    inner = helper.make_node("ReduceMax", ["1"], ["old"], keepdims=0)
    check_writes(scatter_model(steps, new, positions, more=[inner], outputs=["old"]), new, at,
                 in_place=False)  # fmt: skip


def test_a_cache_whose_shape_is_read_is_written_in_place() -> None:
    """The shape is the same before and after the write."""
    nodes = [
        helper.make_node("Shape", ["past"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["sizes"], to=F),
        helper.make_node("TensorScatter", ["past", "new", "at"], ["present"], axis=2),
    ]
    m = cache_model(nodes, [2, 3, "n", 4], [2], ["sizes"])
    check_writes(m, [2, 3, 2, 4], [[0, 6], [4, 1]])
    m.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "capacity"
    check_writes(m, [2, 3, 2, 4], [[0, 6], [4, 1]])


def test_positions_along_the_axis_of_vectors_are_copied() -> None:
    """Keys that are the last axis: vectors of them would be stored at positions."""
    node = helper.make_node("TensorScatter", ["past", "new", "at"], ["present"], axis=3)
    check_writes(cache_model([node], [2, 3, 8, 1], [2]), [2, 3, 8, 1], [[0, 3], [2, 1]], False)


def test_positions_that_are_not_checked_are_not_written_in_place() -> None:
    """A position that a call cannot check could be beyond the memory."""
    new, at = [2, 3, 1, 4], [[0, 2], [2, 1]]
    square = helper.make_node("Mul", ["at", "at"], ["where"])
    write = helper.make_node("TensorScatter", ["past", "new", "where"], ["present"], axis=2)
    check_writes(cache_model([square, write], new, [2]), new, at, in_place=False)
