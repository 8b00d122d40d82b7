"""Machine code in saved models: it gives the same bits without the compiler, and is refused where
it is damaged or does not fit."""

from __future__ import annotations

import json
import logging
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.compilation.model.executable import Executable
from superopt.errors import SuperoptError, UsageError
from superopt.kernels.runtime.target_cpu import VARIABLE
from superopt.plan.program.constant_pool import CONSTANT_POOL
from tests.support.compilation.models import F, model, net, partly_foreign, picture

HEAD = struct.Struct("<8sIIQ")
RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def winograd_net() -> onnx.ModelProto:
    """Convolutions whose weights are transformed, after batch normalizations are folded in."""
    weights = {f"w{k}": normal(64, 64, 3, 3) / 24 for k in range(2)}
    for name in ("scale", "bias", "mean", "variance"):
        weights[name] = np.abs(normal(64)) + 0.5
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1] * 4),
        helper.make_node("BatchNormalization", ["a", "scale", "bias", "mean", "variance"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Conv", ["c", "w1"], ["y"], pads=[1] * 4),
    ]
    return model(nodes, {"x": (F, ["n", 64, 28, 28])}, ["y"], weights)


def products() -> onnx.ModelProto:
    """Products with weights of widths that vectors do not divide, and of one input with several."""
    weights = {"a": normal(70, 90), "b": normal(90, 70), "c": normal(70, 90), "d": normal(90)}
    nodes = [
        helper.make_node("Transpose", ["b"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "a"], ["p"]),
        helper.make_node("MatMul", ["x", "t"], ["q"]),
        helper.make_node("MatMul", ["x", "c"], ["r"]),
        helper.make_node("Sum", ["p", "q", "r", "d"], ["y"]),
    ]
    return model(nodes, {"x": (F, ["n", 70])}, ["y"], weights)


MODELS = {
    "convolutions": (net(9), lambda n: picture(n, 9)),
    "winograd": (winograd_net(), lambda n: normal(n, 64, 28, 28)),
    "products": (products(), lambda n: normal(n, 70)),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


def compiled(given: onnx.ModelProto) -> Executable:
    return superopt.compile(given, shapes=[{"n": 1}, {"n": 3}])


def load_alone(path: Path) -> Executable:
    """Load it in a process that holds no constants, in effect."""
    CONSTANT_POOL.arrays.clear()
    return superopt.load(path)


@pytest.mark.parametrize("name", MODELS)
def test_it_gives_the_same_bits_without_the_compiler(name: str, tmp_path: Path) -> None:
    given, feed = MODELS[name]
    exe, path = compiled(given), tmp_path / "m.superopt"
    exe.save(path, aot="native")
    wanted = {n: (x := feed(n), exe(x=x)) for n in (1, 3)}
    again = load_alone(path)
    for x, each in wanted.values():
        for out, found in again(x=x).items():
            np.testing.assert_array_equal(found, each[out])
    assert not again.has_compiler
    x = feed(2)  # other sizes are compiled, of the weights in the file
    (first, *_) = again(x=x).values()
    np.testing.assert_allclose(first, next(iter(exe(x=x).values())), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["winograd", "products"])
def test_constants_are_made_of_the_weights(name: str, tmp_path: Path) -> None:
    """Two sizes and two processors add machine code, and no further copy of a weight."""
    given, _ = MODELS[name]
    exe = compiled(given)
    exe.save(tmp_path / "plain.superopt")
    exe.save(tmp_path / "code.superopt", aot="native,x86-64-v3")
    data = (tmp_path / "code.superopt").read_bytes()
    code = sum(p["parts"][1] + p["parts"][2] for p in about_of(data)["code"]["processors"])
    small = sum(p["parts"][0] for p in about_of(data)["code"]["processors"])
    assert small < 0.1 * given.ByteSize()
    added = len(data) - (tmp_path / "plain.superopt").stat().st_size
    assert added < code + small + 6 * 4096


def test_a_new_process_imports_no_compiler_and_needs_no_cache(tmp_path: Path) -> None:
    exe, path = compiled(net(9)), tmp_path / "m.superopt"
    exe.save(path, aot=["native"])
    x = picture(1, 9)
    np.savez(tmp_path / "x.npz", x=x, **exe(x=x))
    (tmp_path / "file").write_text("no folder")
    text = (
        "import sys, numpy as np, superopt\n"
        f"exe, z = superopt.load({str(path)!r}), np.load({str(tmp_path / 'x.npz')!r})\n"
        "assert all((y == z[name]).all() for name, y in exe(x=z['x']).items())\n"
        "absent = 'onnx', 'onnx_ir', 'onnxruntime', 'superopt.compilation.model.compiler'\n"
        "assert not {*absent} & sys.modules.keys(), {*absent} & sys.modules.keys()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False,
        env={"SUPEROPT_CACHE": str(tmp_path / "file" / "none"), "PYTHONPATH": "."},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "file").read_text() == "no folder"


def about_of(data: bytes) -> dict:
    *_, length = HEAD.unpack(data[: HEAD.size])
    return json.loads(data[HEAD.size : HEAD.size + length])


def with_about(data: bytes, about: dict) -> bytes:
    """The same file with another description, of fewer bytes."""
    text = json.dumps(about).encode()
    room = HEAD.unpack(data[: HEAD.size])[-1]
    assert len(text) <= room
    text += b" " * (room - len(text))
    head = HEAD.pack(b"superopt", 3, zlib.crc32(text), len(text))
    return head + text + data[HEAD.size + room :]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda code: code | {"package": "0"}, "of superopt 0"),
        (lambda code: code | {"platform": "sun os"}, "for sun os"),
        (lambda code: needs(code, "+sse5"), "code for native needs sse5"),
    ],
    ids=["version", "platform", "instructions"],
)
def test_code_that_does_not_fit_is_compiled_again(
    change, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    exe, path = compiled(net(9)), tmp_path / "m.superopt"
    exe.save(path, aot="native")
    data = path.read_bytes()
    about = about_of(data)
    path.write_bytes(with_about(data, about | {"code": change(about["code"])}))
    with caplog.at_level(logging.WARNING, "superopt.compile"):
        again = superopt.load(path)
    assert reason in caplog.text
    assert again.has_compiler
    x = picture(1, 9)
    np.testing.assert_array_equal(again(x=x)["y"], exe(x=x)["y"])


def needs(code: dict, feature: str) -> dict:
    (each,) = code["processors"]
    cpu, _, width = each["machine"]
    return code | {"processors": [each | {"machine": [cpu, feature, width]}]}


def test_code_for_fewer_instructions_is_used_where_others_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exe, path = compiled(net(9)), tmp_path / "m.superopt"
    exe.save(path, aot="native,x86-64-v2,x86-64")
    monkeypatch.setenv(VARIABLE, "x86-64-v2")
    again = load_alone(path)
    assert not again.has_compiler
    x = picture(1, 9)
    wanted = superopt.compile(net(9), shapes={"n": 1})(x=x)
    np.testing.assert_array_equal(again(x=x)["y"], wanted["y"])


def test_damaged_code_is_refused(tmp_path: Path) -> None:
    exe, path = compiled(net(9)), tmp_path / "m.superopt"
    exe.save(path, aot="native")
    data = path.read_bytes()
    _, _, (at, size, _) = about_of(data)["sections"]
    for where in range(at, at + size, max(size // 20, 1)):
        path.write_bytes(data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :])
        with pytest.raises(UsageError, match="code for native does not match its digest"):
            superopt.load(path)
    path.write_bytes(data[: at + size // 2])
    with pytest.raises(UsageError, match="is damaged"):
        superopt.load(path)


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    exe, path = compiled(products()), tmp_path / "m.superopt"
    exe.save(path, aot="native")
    data = path.read_bytes()
    _, (at, size, _), _ = about_of(data)["sections"]
    path.write_bytes(data[: at + size // 3] + b"\x55" + data[at + size // 3 + 1 :])
    with pytest.raises(UsageError, match="checksum of a section"):
        load_alone(path)


def test_parts_in_onnxruntime_are_compiled(tmp_path: Path) -> None:
    exe, path = superopt.compile(partly_foreign()), tmp_path / "m.superopt"
    exe.save(path, aot="native")
    again = superopt.load(path)
    x = normal(200, 9)
    for name, wanted in exe(x=x).items():
        np.testing.assert_array_equal(again(x=x)[name], wanted)


@pytest.mark.parametrize("name", ["z80", "x86-64-v9", ""])
def test_an_unknown_processor(name: str, tmp_path: Path) -> None:
    with pytest.raises(SuperoptError, match="unknown processor"):
        compiled(net(9)).save(tmp_path / "m.superopt", aot=[name])
    assert not (tmp_path / "m.superopt").exists()
