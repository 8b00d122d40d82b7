"""States that grow stay in memory with room for more elements (`Executable.bind_state`)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from scripts.decoder_models import Size, growing_decoder
from superopt.compilation.model.executable import Executable
from superopt.compilation.model.states.state_programs import CAPACITY, StatePrograms
from superopt.compilation.model.states.stateful_call import StatefulCall
from superopt.errors import SuperoptError, UsageError
from tests.support.compilation.models import F, model

ort = pytest.importorskip("onnxruntime")

SIZE = Size(layers=1, width=32, heads=4, vocabulary=50, positions=300)
DECODER = growing_decoder(SIZE)
STATE = {f"present.0.{k}": f"past_key_values.0.{k}" for k in ("key", "value")}
RELATIVE_TOLERANCE = 2e-5  # of the largest element
Feeds = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


def session(m: onnx.ModelProto) -> Callable[[Feeds], Feeds]:
    """A function that runs a model in onnxruntime."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    made = ort.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in made.get_outputs()]
    return lambda feeds: dict(zip(names, made.run(None, feeds), strict=True))


def chunk(rng: np.random.Generator, pads: list[int], past: int, count: int) -> Feeds:
    """The inputs of a call with so many tokens, except the caches. pads: hidden positions on the
    left of each sequence."""
    left = np.array(pads)[:, None]
    at = np.arange(past + count)[None]
    mask = (at >= left).astype(np.int64)
    places = np.maximum(at[:, past:] - left, 0)
    ids = rng.integers(0, SIZE.vocabulary, (len(pads), count))
    return {"input_ids": ids, "position_ids": places, "attention_mask": mask}


def programs_of(exe: Executable) -> StatePrograms:
    (found,) = exe.state_programs.values()
    return found


def check_texts(exe: Executable, run: Callable[[Feeds], Feeds], seed: int) -> None:
    """Texts of several sequences, in chunks of any length, from empty caches or given ones."""
    rng, decode = np.random.default_rng(seed), exe.bind_state(STATE)
    for text in range(2):
        pads = [int(n) for n in rng.integers(0, 3, rng.integers(1, 4))]
        past = int(rng.integers(1, 100)) if text % 2 else 0
        shape = (len(pads), SIZE.heads, past, SIZE.head)
        held = {n: rng.standard_normal(shape).astype(np.float32) for n in STATE.values()}
        decode.reset(held if past else None)
        for count in (int(rng.integers(4, 70)), *rng.choice([1, 1, 1, 2, 9], 8)):
            feeds = chunk(rng, pads, past, count)
            wanted = run({**feeds, **held})
            got = {**decode.run(feeds), **decode.state}
            held = {name: wanted[output] for output, name in STATE.items()}
            for name, x in {"logits": wanted["logits"], **held}.items():
                limit = RELATIVE_TOLERANCE * np.abs(x).max()
                np.testing.assert_allclose(got[name], x, rtol=0, atol=limit)
            past += count


@pytest.mark.ci
@pytest.mark.one_in(2)
@pytest.mark.parametrize("specialize", ["background", "never"])
def test_chunks_of_any_length_are_as_in_onnxruntime(specialize: str) -> None:
    """Lengths of no class run in onnxruntime, in between; several threads share the programs."""
    exe, run = superopt.compile(DECODER, threads=1, specialize=specialize), session(DECODER)
    check_texts(exe, run, 0)
    failed: list[BaseException] = []

    def check(seed: int) -> None:
        try:
            check_texts(exe, run, seed)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=check, args=(seed,)) for seed in (1, 2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
    exe.wait()
    classes = programs_of(exe).classes.classes
    assert len(classes) > 3 if specialize == "background" else len(classes) == 3
    assert not exe.size_classes.classes  # no other program is compiled
    check_texts(exe, run, 4)


def test_a_call_writes_new_elements_only() -> None:
    exe = superopt.compile(DECODER, threads=1)
    decode, rng = exe.bind_state(STATE), np.random.default_rng(0)
    decode.run(chunk(rng, [0], 0, 20))
    memories = [s.memory for s in decode.states.values()]
    for past in range(20, 40):
        marked = []
        for memory in memories:
            assert memory is not None
            memory[:, :, past + 1 :] = np.nan
            marked.append(memory.copy())
        decode.run(chunk(rng, [0], past, 1))
        assert [s.memory for s in decode.states.values()] == memories
        for memory, before in zip(memories, marked, strict=True):
            assert memory is not None
            same = memory.view(np.int32) == before.view(np.int32)
            assert same[:, :, :past].all()
            assert same[:, :, past + 1 :].all()
            assert not same[:, :, past].any()


def test_memory_grows_by_a_factor() -> None:
    exe = superopt.compile(DECODER, threads=1)
    decode, rng = exe.bind_state(STATE), np.random.default_rng(0)
    decode.run(chunk(rng, [0], 0, 20))
    reserved = []
    for past in range(20, 299):
        decode.run(chunk(rng, [0], past, 1))
        reserved.append(decode.reserved)
        assert all(x.shape[2] == past + 1 for x in decode.state.values())
    assert sorted({*reserved}) == [64, 130, 262, 526]
    assert exe.shape_policy.fallback is None


def test_further_tokens_repeat_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    exe, run = superopt.compile(DECODER, threads=1), session(DECODER)
    decode, rng = exe.bind_state(STATE), np.random.default_rng(0)
    checked: list[int] = []
    original = StatefulCall._run_checked

    def count_call(self: StatefulCall, feeds: Feeds) -> Feeds:
        checked.append(len(self.state))
        return original(self, feeds)

    monkeypatch.setattr(StatefulCall, "_run_checked", count_call)
    held = {n: np.zeros((2, SIZE.heads, 0, 8), np.float32) for n in STATE.values()}
    past, calls = 0, (10, *[1] * 20, 3, *[1] * 5)
    for count in calls:
        feeds = chunk(rng, [0, 1], past, count)
        wanted = run({**feeds, **held})
        np.testing.assert_allclose(decode.run(feeds)["logits"], wanted["logits"], atol=1e-4)
        held = {name: wanted[output] for output, name in STATE.items()}
        past += count
    assert all(np.allclose(decode.state[n], x, atol=1e-4) for n, x in held.items())
    assert len(checked) <= 4  # where the number of tokens changes
    decode.reset(held)
    repeated = decode.run(chunk(rng, [0, 1], past, 1))["logits"]
    assert len(checked) <= 5
    assert np.isfinite(repeated).all()


def test_a_repeated_call_checks_its_inputs() -> None:
    exe = superopt.compile(DECODER, threads=1)
    decode, rng = exe.bind_state(STATE, capacity=24), np.random.default_rng(0)
    decode.run(chunk(rng, [0], 0, 20))
    decode.run(chunk(rng, [0], 20, 1))
    before = {n: x.copy() for n, x in decode.state.items()}
    good = chunk(rng, [0], 21, 1)
    assert decode.repeated is not None
    for name, wrong in {
        "input_ids": good["input_ids"].astype(np.int32),
        "attention_mask": good["attention_mask"][:, 1:],
        "position_ids": good["position_ids"][0],
    }.items():
        with pytest.raises(SuperoptError, match=name):
            decode.run({**good, name: wrong})
    with pytest.raises(UsageError, match="capacity is 24"):
        decode.run(chunk(rng, [0], 21, 4))
    with pytest.raises(UsageError, match="is a state"):
        decode.run({**good, **decode.state})
    assert all(np.array_equal(decode.state[n], x) for n, x in before.items())
    decode.run(good)
    assert all(x.shape[2] == 22 for x in decode.state.values())


def test_a_program_is_right_where_the_capacity_is_enough() -> None:
    exe = superopt.compile(DECODER, threads=1)
    decode = exe.bind_state(STATE)
    decode.run(chunk(np.random.default_rng(0), [0], 0, 20))
    sizes = {
        "batch_size": 1, "past_sequence_length": 80, "sequence_length": 1,
        "past_sequence_length___sequence_length": 81,
    }  # fmt: skip
    classes = programs_of(exe).classes
    assert classes.find({**sizes, CAPACITY: 81}) is not None
    assert classes.find({**sizes, CAPACITY: 80}) is None


@pytest.mark.ci
def test_a_file_has_its_programs_in_the_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "decoder.onnx"
    onnx.save(DECODER, path)
    rng, first = np.random.default_rng(0), chunk(np.random.default_rng(1), [0], 0, 20)
    then = chunk(rng, [0], 20, 1)
    decode = superopt.compile(path, threads=1).bind_state(STATE)
    wanted = [decode.run(feeds)["logits"] for feeds in (first, then)]
    with caplog.at_level(logging.INFO, "superopt.compile"):
        exe = superopt.compile(path, threads=1)
        decode = exe.bind_state(STATE)
        got = [decode.run(feeds)["logits"] for feeds in (first, then)]
    assert "a program for" not in caplog.text
    assert all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True))
    # another length is compiled by a child process
    longer = chunk(rng, [0], 0, 5)
    decode.reset()
    other = decode.run(longer)["logits"]
    exe.wait()
    decode.reset()
    np.testing.assert_allclose(decode.run(longer)["logits"], other, rtol=0, atol=1e-5)
    assert decode.reserved
    assert len(programs_of(exe).classes.classes) == 4
    assert "class of" in str(exe.memory())


def growing_sum(concat: list[str], taken: str = "") -> onnx.ModelProto:
    """y = the sum of a state that is a Concat of these. taken: a slice of it is the state."""
    nodes = [
        helper.make_node("Concat", concat, ["both"], axis=1),
        helper.make_node("Slice" if taken else "Identity", ["both", *taken.split()], ["next"]),
        helper.make_node("ReduceSum", ["next"], ["y"], keepdims=0),
    ]
    inputs = {"x": (F, ["b", "n", 4]), "past": (F, ["b", "p", 4])}
    known = {"begin": np.array([1]), "end": np.array([9999]), "axis": np.array([1])}
    return model(nodes, inputs, ["y", "next"], known)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("past", [0, 1])
@pytest.mark.parametrize(
    ("concat", "taken", "is_in_place"),
    [
        (["past", "x"], "", True),
        (["past", "x", "x"], "", True),
        (["past", "past", "x"], "", True),
        (["x", "past"], "", False),
        (["past", "x"], "begin end axis", False),
    ],
)
def test_states_that_are_not_extended_at_the_end(
    concat: list[str], taken: str, is_in_place: bool, past: int
) -> None:
    m = growing_sum(concat, taken)
    run, call = session(m), superopt.compile(m, threads=1).bind_state({"next": "past"})
    rng, held = np.random.default_rng(0), np.zeros((2, past, 4), np.float32)
    call.reset({"past": held})
    for count in (3, 1, 2, 1):
        feeds = {"x": rng.standard_normal((2, count, 4)).astype(np.float32)}
        wanted = run({**feeds, "past": held})
        np.testing.assert_allclose(call.run(feeds)["y"], wanted["y"], rtol=1e-5, atol=1e-5)
        held = wanted["next"]
        assert np.array_equal(call.state["past"], held)
    assert bool(call.reserved) == is_in_place


MISUSED: list[tuple[Callable[[Executable], StatefulCall], str]] = [
    (lambda exe: exe.bind_state({}), "maps names of outputs"),
    (lambda exe: exe.bind_state(["present.0.key"]), "maps names"),  # type: ignore[arg-type]
    (lambda exe: exe.bind_state(STATE, capacity=0), "capacity is 0"),
    (lambda exe: exe.bind_state(STATE, capacity=2.5), "capacity is 2.5"),  # type: ignore[arg-type]
    (lambda exe: exe.bind_state(STATE, sizes={"n": 3}), "n = 3"),
    (lambda exe: exe.bind_state(STATE, sizes={"batch_size": -1}), "the size batch_size is -1"),
]


@pytest.mark.parametrize(("bind", "why"), MISUSED)
def test_wrong_states_are_errors(bind: Callable[[Executable], StatefulCall], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        bind(superopt.compile(DECODER, threads=1))


def test_an_output_of_another_type_is_no_state() -> None:
    exe = superopt.compile(DECODER, threads=1)
    decode = exe.bind_state({**STATE, "logits": "input_ids"})
    feeds = chunk(np.random.default_rng(0), [0], 0, 4)
    del feeds["input_ids"]
    decode.reset({**{n: np.zeros((1, 4, 0, 8), np.float32) for n in STATE.values()},
                  "input_ids": np.zeros((1, 4), np.int64)})  # fmt: skip
    with pytest.raises(UsageError, match="'logits' is float32"):
        decode.run(feeds)


def test_calls_after_close_are_errors() -> None:
    exe = superopt.compile(DECODER, threads=1)
    decode = exe.bind_state(STATE)
    decode.run(chunk(np.random.default_rng(0), [0], 0, 4))
    exe.close()
    with pytest.raises(UsageError, match="closed"):
        decode.run(chunk(np.random.default_rng(0), [0], 4, 1))
