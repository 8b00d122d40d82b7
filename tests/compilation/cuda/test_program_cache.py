"""Models on a GPU that are kept whole: found again, and only where they are still right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import superopt
from superopt.compilation.cache import entries
from superopt.compilation.cuda import device as cuda_device
from superopt.compilation.cuda import load_compiler, plan_settings, store_program
from superopt.compilation.model.compiler import Compiler
from superopt.cost import tuning_records
from superopt.cost.store import Store
from superopt.errors import ModelError
from superopt.kernels.algorithms import space
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.cuda.image import image_from_dict, image_to_dict
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.gpu_device import device_name
from superopt.kernels.runtime.module_image import export_image
from superopt.onnx_io.read.source import read_model
from superopt.plan.program.streams import dependencies, minimal_waits
from tests.support.compilation.cache import ONES, counting, scaled, written
from tests.support.compilation.models import F, model
from tests.support.gpu.cache import CASES, compile
from tests.support.gpu.compilation import feeds
from tests.support.gpu.device import REAL, cached_programs
from tests.support.gpu.models import MODELS, branches, drawn, gemms, node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu_cache")]


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    return counting(Compiler, monkeypatch)


def gives(path: Path, number: float) -> None:
    np.testing.assert_array_equal(compile(path)(x=ONES)["y"], np.full((2, 4), number))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_it_is_found_again(name: str, tmp_path: Path, compiled: list[object]) -> None:
    m = CASES[name]()
    path = written(tmp_path / "m.onnx", m)
    first = compile(path).run(feeds(m))
    exe = compile(path)
    for _ in range(2):
        again = exe.run(feeds(m))
        assert list(again) == list(first)
        for x, a in first.items():
            assert again[x].dtype == a.dtype
            np.testing.assert_array_equal(again[x], a)
    assert len(compiled) == 1


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_each_precision_by_itself(precision: str, tmp_path: Path, compiled: list[object]) -> None:
    m = MODELS["one row"]()
    path = written(tmp_path / "m.onnx", m)
    compile(path)
    found = [compile(path, precision).run(feeds(m))["y"] for _ in range(2)]
    np.testing.assert_array_equal(*found)
    assert len(compiled) == 2


def test_on_several_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[object]
) -> None:
    def lanes(reads: Any, writes: Any, how: Any, max_streams: int) -> Any:
        return minimal_waits(
            [n % max_streams for n in range(len(writes))], dependencies(reads, writes)
        )

    monkeypatch.setattr(plan_settings, "on_gpu_streams", lanes)
    m = branches()
    path = written(tmp_path / "m.onnx", m)
    found = []
    for _ in range(2):
        exe = compile(path, streams=3)
        found.append(exe.run(feeds(m))["y"])
    np.testing.assert_array_equal(*found)
    assert len(compiled) == 1
    (ready,) = cached_programs(exe)
    assert ready.loaded.image.stream_count == 3
    assert any(c.waits for c in ready.loaded.image.calls)


def test_what_the_vendors_library_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[object]
) -> None:
    def choose(p: Problem, wanted: Option | None, target: str, vendor: bool) -> Any:
        some = [o for o in space.options(p, "cuda", vendor) if o.algorithm == "vendor"]
        return space.build_choice(
            p, some[0] if some else next(space.options(p, "cuda", vendor)), "cuda"
        )

    monkeypatch.setattr(space, "choose", choose)
    m = gemms()
    path = written(tmp_path / "m.onnx", m)
    found = [compile(path, "fp32") for _ in range(2)]
    np.testing.assert_array_equal(*(exe.run(feeds(m))["y"] for exe in found))
    (ready,) = cached_programs(found[1])
    assert sum(f.name.startswith("mm ") for f in ready.loaded.image.functions) == 2
    assert len(compiled) == 1


def symbolic() -> onnx.ModelProto:
    m = MODELS["layer norm"]()
    dim = m.graph.input[0].type.tensor_type.shape.dim[1]
    dim.Clear()
    dim.dim_param = "n"
    m.graph.output[0].type.tensor_type.ClearField("shape")
    return m


def test_at_each_size(tmp_path: Path, compiled: list[object]) -> None:
    path = written(tmp_path / "m.onnx", symbolic())
    found = []
    for _ in range(2):
        exe = compile(path)
        found.append([exe(x=drawn(3, n, 50))["y"] for n in (4, 1)])
    assert len(compiled) == 2
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
    assert exe(x=drawn(3, 2, 50))["y"].shape == (3, 2, 50)
    assert len(compiled) == 3


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["digest", "model", "program", "constants"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "empty"])
def test_what_is_damaged_is_made_again(
    gpu_cache: Path, tmp_path: Path, kind: str, damage: str, compiled: list[object]
) -> None:
    path = written(tmp_path / "m.onnx", scaled(3))
    compile(path)
    (file,) = gpu_cache.glob(f"*.{kind}")
    held = bytearray(file.read_bytes())
    held[len(held) // 3] ^= 4
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes({"flip": bytes(held), "cut": bytes(held[:-9]), "empty": b""}[damage])
    gives(path, 12)
    count = len(compiled)
    assert count == 1 + (kind in ("program", "constants"))
    gives(path, 12)
    assert len(compiled) == count


WAYS: dict[str, dict[str, Any]] = {
    "products": {"float_class": "E1"}, "vendor": {"vendor": False}, "streams": {"streams": 1},
}  # fmt: skip


@pytest.mark.parametrize("changed", [*WAYS, "GPU", "torch", "superopt", "numpy"])
def test_another_key(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[object]
) -> None:
    """With other options, on another GPU, by other versions it is compiled again; and as it was
    before it is there still."""
    path = written(tmp_path / "m.onnx", scaled(3))
    for n in (1, 1):
        compile(path)
        assert len(compiled) == n
    with monkeypatch.context() as m:
        if changed == "GPU":
            where = cuda_device.find_device("fp16")
            assert where is not None
            other = replace(where, gpu_name="another GPU")
            m.setattr(cuda_device, "find_device", lambda precision: other)
        elif changed == "torch":
            m.setattr(entries, "package_state", lambda name: [1, 2, 3, 4, len(name)])
        elif changed == "superopt":
            m.setattr(entries, "package_state_digest", lambda: "others")
        elif changed == "numpy":
            m.setattr(np, "__version__", "9.9")
        for _ in range(2):
            compile(path, **WAYS.get(changed, {}))
            assert len(compiled) == 2
    compile(path)
    assert len(compiled) == 2


def test_what_was_measured(tmp_path: Path, compiled: list[object]) -> None:
    """What is in the store of measurements is another plan; as the store was before it was not."""
    m = MODELS["one row"]()
    path = written(tmp_path / "m.onnx", m)
    exe = compile(path)
    program = exe.variant({}).program
    key, p = next((k, p) for k, p in program.problems.items() if "gemm" in str(program.options[k])
                  or "block_reduction" in str(program.options[k]))  # fmt: skip
    option = [*space.options(p, "cuda")][-1]
    assert option != program.options[key]
    on = tuning_records.gpu_target(device_name(exe.device.torch_device), "ieee")
    with Store.open(None) as store:
        tuning_records.store_times(store, on, key, (1,), {option: (1.0, 1.0, 1.0, 1)})
    for _ in range(2):
        exe = compile(path)
    assert len(compiled) == 2
    (ready,) = exe.variants.values()
    assert ready.options is not None
    assert ready.options[key] == str(option)
    assert exe.variant({}).program.options[key] == option
    np.testing.assert_allclose(
        compile(path).run(feeds(m))["y"], exe.run(feeds(m))["y"], rtol=0, atol=0
    )


def test_what_was_tuned_is_kept(tmp_path: Path, compiled: list[object]) -> None:
    m = MODELS["one row"]()
    path = written(tmp_path / "m.onnx", m)
    first = compile(path, tune=0.1)
    count = len(compiled)
    again = compile(path)
    assert len(compiled) == count
    np.testing.assert_array_equal(again.run(feeds(m))["y"], first.run(feeds(m))["y"])


def test_another_model_in_its_place(tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", scaled(3))
    compile(path)
    held = compile(path)
    before = path.stat()
    with path.open("r+b") as f:  # the same file, of the same size and age
        f.write(scaled(5).SerializeToString())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    gives(path, 20)
    np.testing.assert_array_equal(held(x=ONES)["y"], np.full((2, 4), 12))
    with pytest.raises(ModelError, match="has changed"):
        held.model  # noqa: B018


def test_a_folder_of_others_is_not_used(gpu_cache: Path, tmp_path: Path) -> None:
    gpu_cache.mkdir(parents=True)
    gpu_cache.chmod(0o777)
    gives(written(tmp_path / "m.onnx", scaled(3)), 12)
    assert not list(gpu_cache.iterdir())


def test_parts_in_onnxruntime_are_not_kept(gpu_cache: Path, tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "a"), node("NonZero", "a", "y")]
    path = written(tmp_path / "m.onnx", model(nodes, {"x": (F, [2, 4])}, ["y"], {}))
    for _ in range(2):
        assert compile(path)(x=ONES)["y"].shape == (2, 8)
    assert not list(gpu_cache.glob("*.program"))


def test_what_is_too_large_to_keep_is_not_copied(
    gpu_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "m.onnx", scaled(3))
    monkeypatch.setenv("SUPEROPT_CACHE_MAX_SIZE", "1")
    monkeypatch.setattr(store_program, "export_image", lambda *given: pytest.fail("it is copied"))
    np.testing.assert_array_equal(compile(path)(x=ONES)["y"], np.full((2, 4), 12))
    assert not list(gpu_cache.glob("*.program"))


@pytest.mark.slow
def test_what_else_is_asked_of_it(tmp_path: Path, compiled: list[object]) -> None:
    m = MODELS["a block"]()
    path = written(tmp_path / "m.onnx", m)
    first, found = compile(path), compile(path)
    assert not cached_programs(first)
    assert cached_programs(found)
    wanted = found.run(feeds(m))
    found.save(tmp_path / "m.superopt")
    again: Any = superopt.load(tmp_path / "m.superopt")
    assert again.variant({}).program.options == first.variant({}).program.options
    assert found.profile(seconds=0.01).parts
    assert found.accuracy(sets=1).passed
    assert not found.fallback_nodes({})
    assert not cached_programs(found)  # its memory is free: what was compiled took its place
    for exe in (found, again):
        np.testing.assert_array_equal(exe.run(feeds(m))["y"], wanted["y"])
    count = len(compiled)
    found.tune({}, budget=0.01)
    assert len(compiled) == count + 1
    compile(path)
    assert len(compiled) == count + 1


def test_a_model_that_is_no_file(gpu_cache: Path) -> None:
    superopt.compile(scaled(3), target="cuda")
    assert not gpu_cache.exists()


TWICE = """
import sys, numpy, superopt
from superopt.compilation.cache import entries
entries._MIN_REST_NS = entries._MIN_REST_WHOLE_SECONDS_NS = -1
exe = superopt.compile(sys.argv[1], target="cuda", precision="fp16")
found = [v.options is not None for v in exe.variants.values()]
print(exe(x=numpy.ones((2, 4), numpy.float32))["y"].sum(), sum(found))
"""


@pytest.mark.slow
def test_two_processes_at_once(gpu_cache: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", scaled(3))

    def started() -> Iterator[subprocess.Popen[str]]:
        for _ in range(2):
            given = [sys.executable, "-c", TWICE, str(path)]
            yield subprocess.Popen(given, stdout=subprocess.PIPE, text=True)

    for wanted in ("96.0 0", "96.0 1"):  # at first neither finds anything, as a rule
        for p in [*started()]:
            out, _ = p.communicate()
            assert p.returncode == 0
            assert out.split()[0] == wanted.split()[0]
            assert wanted.endswith("0") or out.strip() == wanted
    assert not list(gpu_cache.glob("*.part"))


@pytest.mark.skipif(not REAL, reason="there are no tensors on a device")
def test_tensors_on_the_device(tmp_path: Path) -> None:
    """Give such: the program's own, which the next call writes again; on torch's current stream."""
    import torch

    m = MODELS["a block"]()
    path = written(tmp_path / "m.onnx", m)
    wanted = compile(path).run(feeds(m))
    exe = compile(path)
    held = {n: torch.from_numpy(x).cuda() for n, x in feeds(m).items()}
    other: Any = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    for _ in range(2):
        with torch.cuda.stream(other):
            got = exe.run(held)
            copied = {n: x.clone() for n, x in got.items()}
        other.synchronize()
        for n, x in copied.items():
            assert x.is_cuda
            np.testing.assert_array_equal(x.cpu().numpy(), wanted[n])
    assert cached_programs(exe)
    first = next(iter(got.values()))
    exe.variants.clear()
    exe.last_call = None
    torch.cuda.synchronize()
    assert first.isfinite().all()  # its memory is there as long as it is


def test_the_program_is_read_as_it_was_made() -> None:
    """An image is JSON, and that gives it again."""
    exe = load_compiler.compile_model(read_model(branches()), "fp16")
    made = export_image(
        exe.variant({}).only_step.gpu_program, exe.device.torch_device, exe.device.dot_precision
    )
    assert made is not None
    assert image_from_dict(json.loads(json.dumps(image_to_dict(made.image)))) == made.image
    with pytest.raises(LookupError):
        image_from_dict({})
