"""Kept programs by CUDA's driver: one that stands for it, on the processor; and how its structures
lie."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from superopt.compilation.cuda import load_compiler as cuda
from superopt.compilation.cuda import plan_settings
from superopt.kernels.cuda import driver as cuda_driver
from superopt.kernels.runtime import loaded_image
from superopt.kernels.triton import compiler
from superopt.onnx_io.read.source import read_model
from superopt.plan.program.streams import dependencies, minimal_waits
from tests.support.compilation.cache import ONES, scaled, written
from tests.support.gpu import fake_cuda
from tests.support.gpu.cache import CASES, by_driver, compile
from tests.support.gpu.compilation import feeds
from tests.support.gpu.device import REAL, cached_programs
from tests.support.gpu.models import branches
from tests.support.paths import ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu_cache")]


ALONE = pytest.mark.skipif(REAL, reason="in place of the driver that there is")


@ALONE
@pytest.mark.parametrize(
    "name", [pytest.param("a block", marks=pytest.mark.slow), "layer norm", "scalars", "branches"]
)
def test_on_the_device(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of the driver computes what it should, again and again; and all of it is given
    back."""
    m = CASES[name]()
    path = written(tmp_path / "m.onnx", m)
    wanted = compile(path).run(feeds(m))
    device = fake_cuda.Device()
    exe = by_driver(path, monkeypatch, device)
    for n in range(3):
        for x, a in exe.run(feeds(m)).items():
            assert a.dtype == wanted[x].dtype
            np.testing.assert_array_equal(a, wanted[x])
        steps = len(cached_programs(exe)[0].loaded.image.steps)
        assert device.launched == (2 + n) * steps  # once to begin with
    assert device.calls["cuLaunchKernelEx"] == 2 * steps
    assert device.calls["cuGraphLaunch"] == 3
    assert not device.stack
    assert "cuEventSynchronize" not in device.calls
    exe.variants.clear()
    exe.last_call = None
    gc.collect()
    assert not device.live
    assert device.calls["cuEventSynchronize"] == 1  # before code that may be at work is unloaded


@ALONE
def test_a_call_on_another_stream_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the one before, whose inputs are read there; on the same one they are in order."""
    path = written(tmp_path / "m.onnx", scaled(3))
    device = fake_cuda.Device()
    exe = by_driver(path, monkeypatch, device)
    for stream, waits in ((0, 0), (0, 0), (5, 1), (5, 1), (0, 2)):
        monkeypatch.setattr(loaded_image, "torch_stream", lambda number, stream=stream: stream)
        np.testing.assert_array_equal(exe(x=ONES)["y"], np.full((2, 4), 12))
        assert device.calls.get("cuStreamWaitEvent", 0) == waits


@ALONE
@pytest.mark.parametrize("last", [0, 5])
def test_so_does_one_that_was_compiled_here(last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its last call's end is waited for when nobody has it any more: that may be at work still,
    on whichever stream."""
    d = fake_cuda.driver(device := fake_cuda.Device())
    exe = cuda.compile_model(read_model(scaled(3)), "fp16")
    (part,) = exe.variant({}).kernel_steps
    running = part.gpu_program
    gpu = compiler.TorchStreamCuda(d, cuda_driver.Gpu("a GPU", (9, 0), 0))
    with gpu.activate():
        running.end_event = gpu.Event()
    for stream, waits in ((0, 0), (0, 0), (5, 1), (5, 1), (0, 2), (last, 2 + bool(last))):
        monkeypatch.setattr(compiler, "torch_stream", lambda number, stream=stream: stream)
        with gpu.activate():  # as by torch's launch of a graph
            np.testing.assert_array_equal(exe.run({"x": ONES})["y"], np.full((2, 4), 12))
        assert device.calls.get("cuStreamWaitEvent", 0) == waits
    assert device.calls["cuEventRecord"] == 6
    del exe, part, running
    gc.collect()
    assert device.calls["cuEventSynchronize"] == 1


@ALONE
def test_streams_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lanes(reads: Any, writes: Any, how: Any, max_streams: int) -> Any:
        return minimal_waits(
            [n % max_streams for n in range(len(writes))], dependencies(reads, writes)
        )

    monkeypatch.setattr(plan_settings, "on_gpu_streams", lanes)
    m = branches()
    path = written(tmp_path / "m.onnx", m)
    wanted = compile(path, streams=3).run(feeds(m))["y"]
    device = fake_cuda.Device()
    exe = by_driver(path, monkeypatch, device, streams=3)
    np.testing.assert_array_equal(exe.run(feeds(m))["y"], wanted)
    assert len({stream for _, _, stream in device.log}) == 3
    assert device.calls["cuStreamWaitEvent"] > 4
    exe.variants.clear()
    exe.last_call = None
    gc.collect()
    assert not device.live


@ALONE
@pytest.mark.parametrize(
    "fails",
    ["cuMemAlloc_v2", "cuModuleLoadData", "cuLaunchKernelEx", "cuStreamSynchronize",
     "cuGraphInstantiateWithFlags", "cuStreamEndCapture"],
)  # fmt: skip
def test_where_the_driver_fails(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is compiled, and nothing is left behind."""
    path = written(tmp_path / "m.onnx", scaled(3))
    device = fake_cuda.Device(fails)
    exe = by_driver(path, monkeypatch, device)
    assert not cached_programs(exe)
    np.testing.assert_array_equal(exe(x=ONES)["y"], np.full((2, 4), 12))
    assert device.calls[fails] == 2  # again, once torch keeps no memory that nobody uses
    assert not device.stack
    gc.collect()
    assert not device.live


@ALONE
@pytest.mark.parametrize("fails", ["", "cuStreamEndCapture"])
def test_nothing_is_collected_while_it_is_recorded(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What gives back a driver's memory ends a recording of the same thread."""
    d = fake_cuda.driver(device := fake_cuda.Device(fails))
    monkeypatch.setattr(cuda_driver, "load_driver", lambda: d)
    cuda = cuda_driver.Cuda(d, cuda_driver.find_gpu())
    held: list[Any] = [cuda.allocate(8)]
    held.append(held)

    def launch() -> None:
        nonlocal held
        held = []  # what it was is a cycle that nobody has
        assert len([[] for _ in range(100_000)]) == 100_000  # after far fewer some is collected
        assert "cuMemFree_v2" not in device.calls

    expected = pytest.raises(RuntimeError, match=fails) if fails else nullcontext()
    with expected, cuda.activate():
        cuda.capture_graph(launch)
    assert gc.isenabled()
    gc.collect()
    assert device.calls["cuMemFree_v2"] == 1


@ALONE
def test_the_gpu_is_the_one_that_torch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have told the driver of another one only."""
    import torch

    d = fake_cuda.driver(fake_cuda.Device())
    monkeypatch.setattr(cuda_driver, "load_driver", lambda: d)
    assert cuda_driver.find_gpu().number == 0
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert cuda_driver.find_gpu().number == 1
    assert cuda_driver.find_gpu(0).number == 0


LIGHT = """
import sys, numpy, superopt
from superopt.kernels.cuda import driver as cuda_driver
from superopt.kernels.runtime import loaded_image
from tests.support.gpu import fake_cuda

driver = fake_cuda.driver(fake_cuda.Device())
cuda_driver.load_driver = loaded_image.load_driver = lambda: driver
exe = superopt.compile(sys.argv[1], target="cuda", precision="fp16")
print(exe(x=numpy.ones((2, 4), numpy.float32))["y"].shape)
heavy = "torch triton onnx onnx_ir onnxruntime z3 llvmlite sympy sqlite3"
print([x for x in heavy.split() if x in sys.modules])
planner = ("superopt.te", "superopt.ir", "superopt.plan.passes", "superopt.plan.graph")
print([x for x in sys.modules if x.startswith(planner)])
"""


@ALONE
def test_another_process_loads_neither_compiler_nor_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "m.onnx", scaled(3))
    by_driver(path, monkeypatch, fake_cuda.Device())
    monkeypatch.delenv("TRITON_INTERPRET")
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, str(path)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["(2, 4)", "[]", "[]"]


COMPILED = """
import gc
import os
from types import SimpleNamespace
import torch
from superopt.kernels.cuda import driver as cuda_driver
from superopt.kernels.triton import compiler
from superopt.kernels.triton.module import define_functions
from tests.support.gpu import fake_cuda

text = '''
import triton
import triton.language as tl

@triton.jit
def twice(x, y):
    at = tl.program_id(0) * 64 + tl.arange(0, 64)
    tl.store(y + at, tl.load(x + at) * 2)
'''
device = fake_cuda.Device()
driver = fake_cuda.driver(device)
compiler.load_driver = cuda_driver.load_driver = lambda: driver
torch.cuda.current_device = lambda: 0
torch.cuda.is_initialized = lambda: True
torch._C._cuda_getCurrentRawStream = {0: 5}.get
f = compiler.CompiledFunction(define_functions(text, ["twice"])["twice"])
x, y = torch.zeros(256, dtype=torch.float16), torch.zeros(257, dtype=torch.float16)
how = {"num_warps": 2, "enable_fp_fusion": True}
made = f.warmup(x, y, **how, launch_pdl=True)
assert made is f.warmup(x, y, **how) and made.takes_only_addresses and made.fits_device()
assert made is not f.warmup(x, y[1:], **how)  # of which no multiple of 16 bytes is known
made.prefer_shared_memory()
try:
    wrong = define_functions(text.replace("* 2", "* two"), ["twice"])["twice"]
    compiler.CompiledFunction(wrong).warmup(x, y, **how)
except NotImplementedError as e:
    assert str(e).startswith("twice: Triton does not compile it: "), e
else:
    raise AssertionError
for early in (False, True):
    f[(4,)](x, y, **how, launch_pdl=early)
print(device.log, device.calls["cuModuleLoadData"], device.stack, bytes(made.asm["cubin"][:4]))
del made, f, wrong
gc.collect()
print(list(map(type, device.live.values())))
"""


@ALONE
def test_kernels_need_no_c_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """To be compiled, loaded and launched: there is none in such a process, nor Triton's cache."""
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.delenv("CC", raising=False)
    with tempfile.TemporaryDirectory() as empty:
        env = {**os.environ, "PATH": empty, "TRITON_CACHE_DIR": empty}
        done = subprocess.run(
            [sys.executable, "-c", COMPILED], capture_output=True, text=True, cwd=ROOT, env=env
        )
    assert done.stderr == ""
    said = "[(4, False, 5), (4, True, 5)] 1 [] b'\\x7fELF'"
    assert done.stdout.splitlines() == [said, "[<class 'NoneType'>]"]  # the device's own stream


LAID_OUT = """
#include <stddef.h>
#include <stdio.h>
#include "cuda.h"
#define AT(x) printf("%zu ", offsetof(CUlaunchConfig, x))
int main(void) {
    AT(gridDimX); AT(blockDimX); AT(sharedMemBytes); AT(hStream); AT(attrs); AT(numAttrs);
    printf("%zu %zu %zu %d", sizeof(CUlaunchConfig), offsetof(CUlaunchAttribute, value),
           sizeof(CUlaunchAttribute), CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
    printf(" %d %d %d", CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
           CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
           CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
}
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
def test_the_drivers_structures(tmp_path: Path) -> None:
    """Lie as the header that comes with Triton has them."""
    import triton

    include = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    (tmp_path / "a.c").write_text(LAID_OUT)
    given = ["cc", str(tmp_path / "a.c"), f"-I{include}", "-o", str(tmp_path / "a")]
    subprocess.run(given, check=True)
    out = subprocess.run([str(tmp_path / "a")], capture_output=True, text=True, check=True).stdout
    c, a = cuda_driver._Config, cuda_driver._Attribute
    fields = (c.grid, c.block, c.shared, c.stream, c.attributes, c.count)
    wanted = [*(f.offset for f in fields), ctypes.sizeof(c), a.value.offset, ctypes.sizeof(a)]
    told = (
        cuda_driver._PROGRAMMATIC_SERIALIZATION,
        cuda_driver._STATIC,
        cuda_driver._DYNAMIC,
        cuda_driver._SHARED_CARVEOUT,
    )
    assert [*map(int, out.split())] == [*wanted, *told]
