"""Decoders: classes of their sizes, greedy decoding, and state that stays inside."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest
from onnx import helper

import superopt
from scripts.decoder_models import Size, fixed_decoder, growing_decoder
from superopt.compilation.frontend.decode_sizes import decode_sizes
from superopt.compilation.model.compile_class import compile_size_class
from superopt.errors import UsageError
from superopt.onnx_io.import_.size_relation import relate_by_guards
from tests.support.compilation.decoders import (
    DECODER,
    MASK_SIZE,
    SIZE,
    STATE,
    Feeds,
    check_outputs,
    feeds_at,
    session,
    sizes_at,
    tokens,
)
from tests.support.compilation.models import F, model

ort = pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[superopt.Executable]:
    """The compiled decoder, of tests for which it does not matter what else called it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUPEROPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield superopt.compile(DECODER, threads=1)


EXAMPLES = [(1, 20, 1), (1, 3, 1), (2, 5, 9), (1, 0, 7), (3, 0, 20), (1, 0, 70)]


@pytest.mark.ci
@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("example", "mask_size"),
    [*((at, MASK_SIZE) for at in EXAMPLES), ((2, 5, 9), "total"), ((1, 0, 7), "total")],
)
def test_a_class_is_right_at_all_sizes_that_it_admits(
    example: tuple[int, int, int], mask_size: str
) -> None:
    m = DECODER if mask_size == MASK_SIZE else growing_decoder(SIZE, mask_size=mask_size)
    exe, run = superopt.compile(m, threads=1, specialize="never"), session(m)
    exe.run(feeds_at(*example))
    found = exe.size_classes.find(sizes_at(*example, mask_size))
    assert found is not None
    some = [
        (batch, past, sequence)
        for batch in (1, 2, 3)
        for past in (0, 1, 2, 7, 15, 16, 31, 33, 63, 64, 80, 95)
        for sequence in (1, 2, 3, 4, 5, 7, 8, 9, 15, 17, 33, 64, 70, 95, 96, 97)
        if found.formulas.admits(sizes_at(batch, past, sequence, mask_size))
    ]
    assert all(past + sequence <= SIZE.positions for _, past, sequence in some)
    assert len(some) >= 3
    for at in some:
        feeds = feeds_at(*at)
        check_outputs(exe.run(feeds), run(feeds))
    assert exe.shape_policy.fallback is None


def test_a_mask_of_another_length_is_an_error() -> None:
    """Its length is a symbol of its own, which must be past + sequence."""
    exe = superopt.compile(growing_decoder(SIZE, mask_size="total"), threads=1, specialize="never")
    exe.run(feeds_at(1, 20, 1))
    feeds = {**feeds_at(1, 21, 1), "attention_mask": np.ones((1, 21), np.int64)}
    with pytest.raises(Exception, match="21"):
        exe.run(feeds)


def test_the_first_call_compiles_what_decoding_needs(caplog: pytest.LogCaptureFixture) -> None:
    exe = superopt.compile(DECODER, threads=1)
    with caplog.at_level(logging.INFO, "superopt.compile"):
        exe.run(feeds_at(1, 0, 9))
        assert "a program for all sizes" in caplog.text
        caplog.clear()
        for past in range(9, 96):
            exe.run(feeds_at(1, past, 1))
    assert not caplog.messages
    assert exe.shape_policy.fallback is None


def greedy(step: Callable[[Feeds, int], np.ndarray], prompt: np.ndarray, count: int) -> list[int]:
    """The tokens that follow a prompt. step: returns the logits; it is given the inputs except the
    caches, and the number of tokens so far."""
    tokens: list[int] = []
    now, past = prompt, 0
    for _ in range(count):
        total = past + len(now)
        feeds = {
            "input_ids": now[None], "position_ids": np.arange(past, total)[None],
            "attention_mask": np.ones((1, total), np.int64),
        }  # fmt: skip
        tokens.append(int(np.argmax(step(feeds, past)[0, -1])))
        now, past = np.array(tokens[-1:]), total
    return tokens


def with_caches(
    run: Callable[[Feeds], Mapping[str, np.ndarray]], size: Size
) -> Callable[..., np.ndarray]:
    names = [f"{n}.{k}" for n in range(size.layers) for k in ("key", "value")]
    held: Feeds = {}

    def step(feeds: Feeds, past: int) -> np.ndarray:
        if not past:
            empty = np.zeros((1, size.heads, 0, size.head), np.float32)
            held.update({f"past_key_values.{n}": empty for n in names})
        out = run({**feeds, **held})
        held.update({f"past_key_values.{n}": out[f"present.{n}"] for n in names})
        return out["logits"]

    return step


def test_200_tokens_are_those_of_onnxruntime() -> None:
    size = Size(layers=2, width=64, heads=2, vocabulary=400, positions=256)
    m = growing_decoder(size, seed=3)
    prompt = np.random.default_rng(0).integers(0, size.vocabulary, 20)
    wanted = greedy(with_caches(session(m), size), prompt, 200)
    assert len({*wanted}) > 40
    exe = superopt.compile(m, threads=1)
    assert greedy(with_caches(exe.run, size), prompt, 200) == wanted
    decode = exe.bind_state(STATE)
    for _ in range(2):
        assert greedy(lambda feeds, _: decode.run(feeds)["logits"], prompt, 200) == wanted
        decode.reset()
    assert exe.shape_policy.fallback is None


def test_caches_of_a_fixed_capacity() -> None:
    """Scatters write the caches; the first call compiles the program of one token, too."""
    size = Size(layers=2, width=32, heads=4, vocabulary=200, positions=96)
    m = fixed_decoder(size, seed=1)
    empty = np.zeros((1, size.heads, 64, size.head), np.float32)
    held = dict.fromkeys(STATE.values(), empty)

    def with_position(feeds: Feeds, past: int) -> Feeds:
        at = feeds["position_ids"]
        return {"input_ids": feeds["input_ids"], "position_ids": at, "cache_position": at[0]}

    def step(feeds: Feeds, past: int) -> np.ndarray:
        out = run({**with_position(feeds, past), **held})
        held.update({name: out[key] for key, name in STATE.items()})
        return out["logits"]

    run = session(m)
    prompt = np.arange(20)
    wanted = greedy(step, prompt, 40)
    assert len({*wanted}) > 10
    exe = superopt.compile(m, threads=1)
    decode = exe.bind_state(STATE, sizes={"capacity": 64})
    found = greedy(lambda feeds, past: decode.run(with_position(feeds, past))["logits"], prompt, 40)
    assert found == wanted
    for name, x in held.items():
        check_outputs({name: decode.state[name]}, {name: x})
    before = {name: x.copy() for name, x in decode.state.items()}
    with pytest.raises(UsageError, match="'cache_position' has the value 64"):
        decode.run(with_position(tokens(1, 64, 1), 64))
    for name, x in before.items():
        assert np.array_equal(decode.state[name], x)
    assert exe.shape_policy.fallback is None
    assert not exe.variants  # programs that write states in place alone


@pytest.mark.ci
def test_states_are_those_of_calls_with_all_inputs(decoder: superopt.Executable) -> None:
    decode = decoder.bind_state(STATE)
    assert decode.state == {}
    held = {name: np.zeros((2, SIZE.heads, 0, SIZE.head), np.float32) for name in STATE.values()}
    past = 0
    for sequence in (5, 1, 1, 3, 1):
        feeds = tokens(2, past, sequence)
        wanted = decoder.run({**feeds, **held})
        found = decode.run(feeds)
        assert found.keys() == {"logits"}
        assert np.array_equal(found["logits"], wanted["logits"])
        held = {name: wanted[out] for out, name in STATE.items()}
        for name, x in held.items():
            assert np.array_equal(decode.state[name], x)
        past += sequence


@pytest.mark.ci
def test_states_keep_their_memory() -> None:
    """Calls up to the capacity write into one buffer for each."""
    decode = superopt.compile(DECODER, threads=1).bind_state(STATE, capacity=40)
    decode.run(tokens(1, 0, 20))
    seen = set()
    for past in range(20, 40):
        decode.run(tokens(1, past, 1))
        seen |= {x.ctypes.data for x in decode.state.values()}
    assert len(seen) == len(STATE)


def test_a_full_cache_is_an_error_before_it_is_written() -> None:
    decode = superopt.compile(DECODER, threads=1).bind_state(STATE, capacity=22)
    decode.run(tokens(1, 0, 20))
    decode.run(tokens(1, 20, 1))
    before = {name: x.copy() for name, x in decode.state.items()}
    with pytest.raises(UsageError, match="capacity is 22"):
        decode.run(tokens(1, 21, 2))
    for name, x in before.items():
        assert np.array_equal(decode.state[name], x)
    decode.run(tokens(1, 21, 1))
    with pytest.raises(UsageError, match="length 23"):
        decode.run(tokens(1, 22, 1))
    decode.reset()
    decode.run(tokens(1, 0, 22))


@pytest.mark.ci
def test_a_length_beyond_the_positions_leaves_the_state() -> None:
    """The model has 96 positions; onnxruntime and kernels reject more."""
    decode = superopt.compile(DECODER, threads=1).bind_state(STATE)
    decode.run(tokens(1, 0, 95))
    decode.run(tokens(1, 95, 1))
    before = {name: x.copy() for name, x in decode.state.items()}
    feeds = {**tokens(1, 96, 1), "position_ids": np.zeros((1, 1), np.int64)}
    with pytest.raises(Exception, match=r"96|97"):
        decode.run(feeds)
    for name, x in before.items():
        assert np.array_equal(decode.state[name], x)


def test_reset_takes_states(decoder: superopt.Executable) -> None:
    decode = decoder.bind_state(STATE)
    given = feeds_at(1, 20, 1)
    decode.reset({name: given[name] for name in STATE.values()})
    feeds = {name: x for name, x in given.items() if name not in STATE.values()}
    assert np.array_equal(decode.run(feeds)["logits"], decoder.run(given)["logits"])
    with pytest.raises(UsageError, match="all of them"):
        decode.reset({"past_key_values.0.key": given["past_key_values.0.key"]})


def test_names_that_cannot_be_states_are_errors(decoder: superopt.Executable) -> None:
    with pytest.raises(UsageError, match="no output 'presents'"):
        decoder.bind_state({"presents": "past_key_values.0.key"})
    with pytest.raises(UsageError, match="no input 'past'"):
        decoder.bind_state({"present.0.key": "past"})
    with pytest.raises(UsageError, match="two outputs"):
        decoder.bind_state(
            dict.fromkeys(["present.0.key", "present.1.key"], "past_key_values.0.key")
        )
    decode = decoder.bind_state(STATE)
    with pytest.raises(UsageError, match="is a state"):
        decode.run(feeds_at(1, 20, 1))


def test_states_of_models_that_run_in_onnxruntime() -> None:
    """A cumulative sum by NonZero, which has no kernel."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["at"]),
        helper.make_node("Cast", ["at"], ["a"], to=F),
        helper.make_node("ReduceSum", ["a"], ["b"], keepdims=0),
        helper.make_node("Add", ["b", "sum"], ["next"]),
        helper.make_node("Identity", ["next"], ["y"]),
    ]
    m = model(nodes, {"x": (F, ["n"]), "sum": (F, [1])}, ["y", "next"], {})
    call = superopt.compile(m, threads=1).bind_state({"next": "sum"})
    for total in (3.0, 6.0, 9.0):
        assert call.run({"x": np.ones(3, np.float32)})["y"] == [total]
    call.reset()
    assert call.run({"x": np.ones(3, np.float32)})["y"] == [3.0]


def test_decode_sizes_follow_the_growing_input(decoder: superopt.Executable) -> None:
    found = decode_sizes(decoder.model, sizes_at(1, 0, 9))
    assert found == [sizes_at(1, 9, 1), sizes_at(1, 64, 1)]
    plain = model([helper.make_node("Relu", ["x"], ["y"])], {"x": (F, ["n", 4])}, ["y"], {})
    assert decode_sizes(superopt.compile(plain, threads=1).model, {"n": 9}) == []


def test_sizes_are_related_by_guards() -> None:
    exe = superopt.compile(DECODER, threads=1)
    made = relate_by_guards(exe.model, sizes_at(1, 20, 3))
    assert made is not None
    _, relation = made
    assert {str(g): holds for g, holds in relation.guards.items()} == {
        f"({MASK_SIZE} == (past_sequence_length + sequence_length))": True,
        "(past_sequence_length <= 96)": True,
        "((past_sequence_length + sequence_length) <= 96)": True,
    }
    found = compile_size_class(exe.compiler, sizes_at(1, 0, 9))
    assert found is not None
    assert found.formulas.admits(sizes_at(1, 0, 8))
    assert not found.formulas.admits({**sizes_at(1, 0, 8), MASK_SIZE: 9})
    assert not found.formulas.admits(sizes_at(1, 1, 8))
    (step,) = found.load_steps() or ()
    assert step.formulas is not None  # a repeated call asks those of the step
    assert step.formulas.admits(sizes_at(1, 0, 8))
    assert not step.formulas.admits({**sizes_at(1, 0, 8), MASK_SIZE: 9})
    assert not step.formulas.admits(sizes_at(1, 1, 8))
