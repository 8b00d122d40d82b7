"""Compiled models in files: what comes back, and what is said of files that are damaged."""

from __future__ import annotations

import json
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import superopt
from superopt.compilation.cpu import load_compiler as compile_
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.compilation.fallback.session_segment import OrtSegment
from superopt.compilation.model import saved_model
from superopt.cost.learned_ranking import FEATURE_ALGORITHMS
from superopt.errors import ModelError, SuperoptError, UsageError
from superopt.kernels.runtime.cpu import Machine, host
from tests.support.compilation.models import F, model, net, partly_foreign, picture

HEAD = struct.Struct("<8sIIQ")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


def test_it_computes_the_same_bits_again(tmp_path: Path) -> None:
    exe = superopt.compile(net("s"), threads=2)
    pictures = [picture(1, 9), picture(2, 14)]
    for x in pictures:
        exe(x=x)
    exe.save(tmp_path / "m.superopt")
    wanted = [exe(x=x) for x in pictures]  # by the programs of these sizes, which save compiles
    again = superopt.load(tmp_path / "m.superopt")
    assert again.device.threads == 2
    sizes = [(("n", 1), ("s", 9)), (("n", 2), ("s", 14))]
    assert list(again.variants) == sizes  # both are compiled already
    for x, each in zip(pictures, wanted, strict=True):
        for name, found in again(x=x).items():
            np.testing.assert_array_equal(found, each[name])
    assert again(x=picture(3, 8))["y"].shape == (3, 10)  # and others when they come


@pytest.mark.parametrize("shapes", [[{"n": 1}], [{"n": 1}, {"n": 6}]], ids=["one", "two"])
def test_each_weight_is_in_the_file_once(shapes: list[dict[str, int]], tmp_path: Path) -> None:
    """Also where kernels read it in other layouts, and Winograd's filters of twice its size."""
    weights = {f"w{k}": np.ones((64, 64, 3, 3), np.float32) * k for k in range(4)}
    names = ["x", "a", "b", "c", "y"]
    nodes = [
        helper.make_node("Conv", [names[k], f"w{k}"], [names[k + 1]], pads=[1] * 4)
        for k in range(4)
    ]
    given = model(nodes, {"x": (F, ["n", 64, 28, 28])}, ["y"], weights)
    exe = superopt.compile(given, shapes=shapes)
    packed = exe.variant({"n": 1}).program.constant_bytes
    assert packed > 1.5 * sum(w.nbytes for w in weights.values())
    exe.save(tmp_path / "m.superopt")
    assert (tmp_path / "m.superopt").stat().st_size < 1.1 * given.ByteSize()
    again = superopt.load(tmp_path / "m.superopt")
    x = np.random.default_rng(0).standard_normal((1, 64, 28, 28)).astype(np.float32)
    np.testing.assert_array_equal(again(x=x)["y"], exe(x=x)["y"])


def test_a_file_of_the_format_before_is_read(tmp_path: Path) -> None:
    """Its packed constants are not used. One of an earlier or later format is refused."""
    exe = superopt.compile(net(9))
    x = picture(1, 9)
    exe.run({"x": x})
    exe.save(tmp_path / "m.superopt")
    data = (tmp_path / "m.superopt").read_bytes()
    magic, _, crc, length = HEAD.unpack(data[: HEAD.size])
    about = json.loads(data[HEAD.size : HEAD.size + length])
    constants = [len(data), 4096, zlib.crc32(bytes(4096))]
    about = {**about, "constants": ["identity"], "sections": [*about["sections"], constants]}
    text = json.dumps(about).encode()
    begin = HEAD.pack(magic, 2, zlib.crc32(text), len(text)) + text
    old = tmp_path / "old.superopt"
    old.write_bytes(begin + data[len(begin) :] + bytes(4096))
    np.testing.assert_array_equal(superopt.load(old)(x=x)["y"], exe(x=x)["y"])
    for number in (1, 4):
        old.write_bytes(HEAD.pack(magic, number, crc, length) + data[HEAD.size :])
        with pytest.raises(UsageError, match=f"(?s)is of format {number}.*formats 2 and 3"):
            superopt.load(old)


def test_for_other_vectors_all_is_made_again(tmp_path: Path) -> None:
    exe = superopt.compile(net())
    x = picture(1, 9)
    wanted = exe(x=x)["y"]
    exe.save(tmp_path / "m.superopt")
    here = host()
    narrow = Machine(here.cpu, here.features, 16 if here.width > 16 else 32)
    if here.width == 16:
        pytest.skip("this machine has the narrowest vectors")
    again = compile_.load_saved(saved_model.read_saved_model(tmp_path / "m.superopt"), None, narrow)
    assert all(s.code.program.problems for v in again.variants.values() for s in v)  # type: ignore[union-attr]
    np.testing.assert_allclose(again(x=x)["y"], wanted, rtol=1e-5)


def test_what_runs_in_onnxruntime_comes_back_too(tmp_path: Path) -> None:
    exe = superopt.compile(partly_foreign())
    x = np.random.default_rng(1).standard_normal((200, 9)).astype(np.float32)
    wanted = exe(x=x)
    exe.save(tmp_path / "m.superopt")
    again = superopt.load(tmp_path / "m.superopt")
    assert {type(s) for s in again.variants[()]} == {NativeSegment, OrtSegment}
    for name, found in again(x=x).items():
        np.testing.assert_array_equal(found, wanted[name])


def test_no_machine_code_is_in_the_file(tmp_path: Path) -> None:
    exe = superopt.compile(net(9))
    exe.run({"x": picture(1, 9)})
    exe.save(tmp_path / "m.superopt")
    data = (tmp_path / "m.superopt").read_bytes()
    assert b"\x7fELF" not in data
    *_, length = HEAD.unpack(data[: HEAD.size])
    about = json.loads(data[HEAD.size : HEAD.size + length])
    assert set(about) == {
        "superopt", "model", "threads", "width", "float_class", "partial", "weights", "schedules",
        "sizes", "sections", "target", "precision", "vendor", "streams",
    }  # fmt: skip
    assert {o.split()[0] for o in about["schedules"].values()} <= set(FEATURE_ALGORITHMS)


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _flipped(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _about(change: object) -> bytes:
    text = json.dumps(change).encode()
    return HEAD.pack(b"superopt", 3, zlib.crc32(text), len(text)) + text


def test_damage_is_found(tmp_path: Path) -> None:
    """Wherever a bit is another one, or the file ends: an error, or the same numbers (between
    sections nothing is read)."""
    exe = superopt.compile(net())
    x = picture(1, 9)
    wanted = exe(x=x)["y"]
    good = tmp_path / "good.superopt"
    exe.save(good)
    data = good.read_bytes()
    rng = random.Random(0)
    refused = 0
    for n in range(120):
        change = _cut if n % 3 == 0 else _flipped
        # Most of a file is one section: half of the changes are where the description is.
        head = HEAD.unpack(data[: HEAD.size])[-1] + HEAD.size
        new = change(data[:head], rng) + data[head:] if n % 2 else change(data, rng)
        bad = tmp_path / "bad.superopt"
        bad.write_bytes(new)
        try:
            got = superopt.load(bad)(x=x)["y"]
        except SuperoptError:
            refused += 1
        else:
            np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert refused > 60


def test_a_digit_of_the_description(tmp_path: Path) -> None:
    """Each of them: places of weights are there, too, which nothing else would miss."""
    exe = superopt.compile(net())
    file = tmp_path / "m.superopt"
    exe.save(file)
    data = file.read_bytes()
    head = HEAD.size + HEAD.unpack(data[: HEAD.size])[-1]
    digits = [n for n in range(HEAD.size, head) if chr(data[n]).isdigit()]
    for n in digits[:: max(len(digits) // 40, 1)]:
        other = b"1" if data[n : n + 1] != b"1" else b"2"
        file.write_bytes(data[:n] + other + data[n + 1 :])
        with pytest.raises(UsageError, match="is damaged\nits description"):
            superopt.load(file)


@pytest.mark.parametrize("name", ["empty", "text", "format", "list", "numbers", "sections"])
def test_other_files_are_refused(name: str, tmp_path: Path) -> None:
    contents = {
        "empty": b"",
        "text": b"hello, world",
        "format": HEAD.pack(b"superopt", 3, zlib.crc32(b"{}"), 2) + b"{}",
        "list": _about([]),
        "numbers": _about({"sections": [[-4096, 1, 0]]}),
        "sections": _about({"sections": []}),
    }
    bad = tmp_path / "bad.superopt"
    bad.write_bytes(contents[name])
    with pytest.raises(UsageError) as e:
        superopt.load(bad)
    assert str(bad) in str(e.value)


def test_a_saved_model_is_no_onnx_file(tmp_path: Path) -> None:
    exe = superopt.compile(net())
    exe.save(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="a compiled model"):
        superopt.compile(tmp_path / "m.onnx")


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    exe = superopt.compile(net())
    for place in (tmp_path, tmp_path / "no" / "such" / "m.superopt"):
        with pytest.raises(UsageError, match="cannot be written"):
            exe.save(place)
