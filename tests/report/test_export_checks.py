"""What exported C code checks in a call: sizes of inputs, guards of classes, values of indices. The
library is compiled by the system's compiler and called by ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import superopt
from scripts.decoder_models import growing_decoder
from superopt.compilation.cpu.library import library_code
from superopt.errors import UsageError
from tests.support.compilation.concurrent_calls import in_threads
from tests.support.compilation.decoders import (
    DECODER,
    SIZE,
    check_outputs,
    feeds_at,
    session,
    sizes_at,
)
from tests.support.compilation.exporting import (
    CC,
    HERE,
    INDIVISIBLE_SIZE,
    NO_TENSOR,
    OK,
    OTHER_SHAPE,
    SIZE_RANGE,
    UNEQUAL_SIZES,
    UNIT_SIZE,
    UNRELATED_SIZES,
    VALUE_RANGE,
    InC,
    floats,
    node,
    size_array,
)
from tests.support.compilation.models import F, model, near, reference
from tests.support.onnx_io import limit_cases

pytestmark = pytest.mark.skipif(
    CC is None or not HERE, reason="shared objects need Linux on x86-64 and a C compiler"
)
Sizes = Mapping[str, int]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


def export(m: onnx.ModelProto, folder: Path, **options: Any) -> InC:
    return InC(superopt.compile(m, threads=1).export(folder / "m", **options))


def size_arguments(o: InC, sizes: Sizes) -> list[int]:
    return [sizes[name] for name in o.e.symbols]


# batch, past and new tokens; the mask's length, `total`, must be past + sequence
DECODER_CALLS = [(1, 0, 7), (1, 7, 1), (1, 8, 1), (1, 20, 1), (1, 63, 1), (1, 95, 1), (1, 3, 1),
                 (1, 9, 9), (1, 90, 3), (1, 30, 1)]  # fmt: skip


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> InC:
    m = growing_decoder(SIZE, mask_size="total")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUPEROPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return export(m, tmp_path_factory.mktemp("decoder"))


def decoder_sizes(o: InC, batch: int, past: int, sequence: int, **others: int) -> list[int]:
    return size_arguments(o, {**sizes_at(batch, past, sequence, "total"), **others})


@pytest.mark.ci
def test_related_sizes_are_exported(decoder: InC) -> None:
    """A size that is an expression of others: ten calls have the values of ONNX Runtime."""
    run = session(growing_decoder(SIZE, mask_size="total"))
    assert decoder.e.symbols == ("batch_size", "past_sequence_length", "sequence_length", "total")
    assert decoder.e.outputs[0].shape == ("batch_size", "sequence_length", SIZE.vocabulary)
    for at in DECODER_CALLS:
        feeds = feeds_at(*at)
        shapes = [feeds[p.name].shape for p in decoder.e.inputs]
        assert decoder.infer_sizes(shapes) == (OK, decoder_sizes(decoder, *at))
        check_outputs(decoder.run(feeds, *decoder_sizes(decoder, *at)), run(feeds))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("at", "others", "code", "text"),
    [
        ((1, 20, 1), {"total": 25}, UNRELATED_SIZES,
         "total is 25, and must be equal to past_sequence_length + 1, which is 21 (total: axis 1 "
         "of input attention_mask, past_sequence_length: axis 2 of input past_key_values.0.key)"),
        ((1, 200, 1), {}, SIZE_RANGE,
         "past_sequence_length is 200, and must be at most 96 (past_sequence_length: axis 2 of "
         "input past_key_values.0.key)"),
        ((1, 96, 1), {}, SIZE_RANGE,
         "past_sequence_length + 1 is 97, and must be at most 96 (past_sequence_length: axis 2 of "
         "input past_key_values.0.key)"),
        ((1, 20, 0), {"total": 21}, SIZE_RANGE,
         "sequence_length is 0, and must be at least 1 (sequence_length: axis 1 of input "
         "input_ids)"),
        ((-1, 20, 1), {}, SIZE_RANGE,
         "batch_size is -1, and must be at least 1 (batch_size: axis 0 of input input_ids)"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_explained(
    decoder: InC, at: tuple[int, int, int], others: Sizes, code: int, text: str
) -> None:
    sizes = decoder_sizes(decoder, *at, **others)
    arrays = [feeds_at(1, 20, 1)[p.name] for p in decoder.e.inputs]
    out = [np.zeros(1 << 14, np.float32) for _ in decoder.e.outputs]
    assert decoder.call([*arrays], [*out], sizes) == code
    assert decoder.message() == text
    assert decoder.words(code)
    assert not any(a.any() for a in out)  # nothing was written
    reserve = getattr(decoder.lib, f"{decoder.e.name}_reserve")
    reserve.argtypes = [ctypes.c_void_p] * 2
    assert reserve(decoder.at, size_array(sizes)) == code
    run = session(growing_decoder(SIZE, mask_size="total"))  # the handle is as it was
    feeds = feeds_at(1, 20, 1)
    check_outputs(decoder.run(feeds, *decoder_sizes(decoder, 1, 20, 1)), run(feeds))
    assert decoder.message() == "nothing is wrong"


def test_one_size_of_two_inputs(tmp_path: Path) -> None:
    m = model([node("Add", ["x", "y"], ["z"])], {"x": (F, ["n", 4]), "y": (F, ["n", 4])}, ["z"])
    o = export(m, tmp_path)
    assert o.infer_sizes([(3, 4), (3, 4)]) == (OK, [3])
    assert o.infer_sizes([(3, 4), (5, 4)])[0] == UNEQUAL_SIZES
    assert o.message() == "n is 3 in axis 0 of input x, and 5 in axis 0 of input y"
    assert o.infer_sizes([(3, 5), (3, 4)])[0] == OTHER_SHAPE
    assert o.message() == "axis 1 of input x is 5, and must be 4"
    assert o.infer_sizes([(3, 4), (3, 4)]) == (OK, [3])
    assert o.message() == "nothing is wrong"
    o.close()


def test_lengths_and_null_of_messages(tmp_path: Path) -> None:
    m = model([node("Relu", ["x"], ["y"])], {"x": (F, ["n", 4])}, ["y"])
    o = export(m, tmp_path)
    assert o.call([None], [floats(3, 4)], [3]) == NO_TENSOR
    wanted = "a pointer is NULL that must not be"
    assert o.message() == wanted
    text = ctypes.create_string_buffer(b"#" * 20, 20)
    assert o._message(o.at, text, 10) == len(wanted)
    assert text.raw[:11] == wanted[:9].encode() + b"\0#"
    assert o._message(None, text, 20) == len(wanted)
    o.close()


def halves() -> onnx.ModelProto:
    """Two equal parts: n must be even."""
    nodes = [
        node("Split", ["x"], ["a", "b"], axis=0),
        node("Add", ["a", "b"], ["y"]),
    ]
    return model(nodes, {"x": (F, ["n", 8])}, ["y"])


def test_a_size_that_is_not_divisible(tmp_path: Path) -> None:
    m = halves()
    o = export(m, tmp_path)
    for n in (2, 4, 8, 10, 16, 30, 64, 66, 100, 128):
        x = floats(n, 8)
        near(o.run({"x": x}, n), reference(m, {"x": x}))
    assert o.call([floats(7, 8)], [floats(4, 8)], [7]) == INDIVISIBLE_SIZE
    assert o.message() == "n % 2 is 1, and must be equal to 0 (n: axis 0 of input x)"
    o.close()


def test_sizes_that_are_not_broadcast(tmp_path: Path) -> None:
    """The code adds rows of as many; a size of 1 would be another program."""
    m = model([node("Add", ["x", "y"], ["z"])], {"x": (F, ["n", 4]), "y": (F, ["m", 4])}, ["z"])
    o = export(m, tmp_path)
    assert o.e.symbols == ("m", "n")
    for n in (1, 2, 3, 8, 20, 64):
        feeds = {"x": floats(n, 4), "y": floats(n, 4)}
        near(o.run(feeds, n, n), reference(m, feeds))
    for sizes in ([6, 1], [3, 6]):
        arrays = [floats(sizes[1], 4), floats(sizes[0], 4)]
        assert o.call([*arrays], [floats(6, 4)], sizes) == UNRELATED_SIZES
        assert "and must be equal to" in o.message()
        assert "axis 0 of input x" in o.message()
        assert "axis 0 of input y" in o.message()
    o.close()


def test_a_size_that_must_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only class is that of one token after others."""
    monkeypatch.setattr(library_code, "MAX_CLASS_COMPILES", 0)
    m = growing_decoder(SIZE, mask_size="total")
    exe = superopt.compile(m, threads=1, specialize="never")
    exe.run(feeds_at(1, 20, 1))
    o = InC(exe.export(tmp_path / "m"))
    check_outputs(
        o.run(feeds_at(1, 30, 1), *decoder_sizes(o, 1, 30, 1)), session(m)(feeds_at(1, 30, 1))
    )
    arrays = [feeds_at(1, 30, 2)[p.name] for p in o.e.inputs]
    out = [np.zeros(1 << 14, np.float32) for _ in o.e.outputs]
    assert o.call([*arrays], [*out], decoder_sizes(o, 1, 30, 2)) == UNIT_SIZE
    assert o.message() == (
        "sequence_length is 2, and must be equal to 1 (sequence_length: axis 1 of input input_ids)"
    )
    o.close()


# of the models of limit_cases.py, at all lengths up to the capacity of their caches
POSSIBLE = {
    "at": 0,
    "valid": 8,
    "last": 7,
    "total": 8,
    "places": 0,
    "mask": 1,
    "i": 0,
    "j": 0,
    "k": 0,
}


@pytest.mark.parametrize(("make", "length", "values", "what", "why"), limit_cases.REFUSED)
def test_values_of_indices_are_checked(
    make: Callable[[], Any], length: int, values: Any, what: str, why: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """C refuses what Python does, for the same reason, before anything is written. Scatters have
    programs for fixed sizes."""
    monkeypatch.setattr(library_code, "MAX_CLASS_COMPILES", 0)
    case, feeds = make(), limit_cases.feeds
    exe = superopt.compile(case.model(), threads=1, specialize="never")
    is_possible = length <= limit_cases.CAPACITY
    good = feeds(case, length if is_possible else 1, **{name: POSSIBLE[name] for name in values})
    expected = exe.run(good)
    is_fixed = make is limit_cases.scatter_case
    sizes = {"b": limit_cases.BATCH, "s": length, "c": limit_cases.CAPACITY}
    fixed = {name: n for name, n in sizes.items() if name in exe.model.symbols}
    o = InC(exe.export(tmp_path / "m", shapes=fixed if is_fixed else None))
    refused = feeds(case, length, **values)
    with pytest.raises(UsageError, match=what):
        exe.run(refused)
    out = [np.full(1 << 13, 7, p.dtype) for p in o.e.outputs]
    own = [] if is_fixed else size_arguments(o, sizes)
    code = o.call([refused[p.name] for p in o.e.inputs], [*out], own)
    if is_possible:
        assert code == VALUE_RANGE
        assert what.replace("'", "") in o.message()
        assert why.replace("size c", "size 8" if is_fixed else "size c") in o.message()
        near(o.run(good, *own), expected)
    else:  # there is no code for more rows than a cache has
        assert code in (SIZE_RANGE, VALUE_RANGE)
    assert all((a == 7).all() for a in out)
    o.close()


def test_indices_from_sizes_are_checked(tmp_path: Path) -> None:
    """A table of positions has 9 rows."""
    nodes = [node("Shape", ["x"], ["s"], start=0, end=1), node("Squeeze", ["s"], ["n"]),
             node("Range", ["zero", "n", "one"], ["at"]), node("Gather", ["t", "at"], ["p"]),
             node("Add", ["x", "p"], ["y"])]  # fmt: skip
    known = {"t": floats(9, 4), "zero": np.array(0), "one": np.array(1)}
    m = model(nodes, {"x": (F, ["n", 4])}, ["y"], known)
    o = export(m, tmp_path)
    for n in range(1, 10):
        near(o.run({"x": floats(n, 4)}, n), reference(m, {"x": floats(n, 4)}))
    assert o.call([floats(10, 4)], [floats(10, 4)], [10]) == SIZE_RANGE
    assert "n is 10, and must be at most 9" in o.message()
    o.close()


def test_failures_belong_to_a_handle(tmp_path: Path) -> None:
    """Threads with clones get their own messages at the same time."""
    o = export(halves(), tmp_path)
    clone = getattr(o.lib, f"{o.e.name}_clone")
    clone.argtypes, clone.restype = [ctypes.c_void_p] * 2, ctypes.c_void_p
    reserve: Callable[..., int] = getattr(o.lib, f"{o.e.name}_reserve")
    reserve.argtypes = [ctypes.c_void_p] * 2  # type: ignore[attr-defined]
    handles = [clone(o.at, None) for _ in range(4)]

    def fail(k: int) -> set[str]:
        found = set()
        for _ in range(200):
            assert reserve(handles[k], size_array([-k])) == SIZE_RANGE
            found.add(o.message(handles[k]))
        return found

    for k, found in enumerate(in_threads(fail, 4)):
        assert found == {f"n is {-k}, and must be at least 1 (n: axis 0 of input x)"}
    for handle in handles:
        o._close(handle)
    o.close()


def test_the_decoder_of_an_exporter_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mask's size is named past_sequence_length + sequence_length, and is a size of its own.
    The library has the classes of calls before, also where no other one is compiled."""
    monkeypatch.setattr(library_code, "MAX_CLASS_COMPILES", 0)
    exe = superopt.compile(DECODER, threads=1)
    feeds = feeds_at(2, 5, 9)
    wanted = exe.run(feeds)
    o = InC(exe.export(tmp_path / "m"))
    shapes = [feeds[p.name].shape for p in o.e.inputs]
    code, sizes = o.infer_sizes(shapes)
    assert code == OK
    check_outputs(o.run(feeds, *sizes), wanted)
    o.close()
