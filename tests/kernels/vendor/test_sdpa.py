"""Attention by torch: in Triton's interpreter it computes the same on the processor; on the GPU
itself, by cuDNN or by its flash attention, where the environment has SUPEROPT_TEST_GPU=1."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import superopt
from superopt.compilation.cuda import load_compiler
from superopt.kernels.triton.module import vendor_name
from superopt.kernels.vendor.sdpa import fused_backends, parse_sdpa
from superopt.onnx_io.read.source import read_model
from tests.support.compilation.cache import written
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import feeds, near
from tests.support.gpu.device import cached_programs
from tests.support.gpu.models import ATTENTION, heads, node
from tests.support.gpu.vendor import libraries, taken

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


def masked(length: int, d: int, least: float = -np.inf) -> onnx.ModelProto:
    """Heads whose queries see no key behind their own place: -inf is added to what is there."""
    mask = np.where(np.tri(length, dtype=bool), 0, least).astype(np.float32)
    nodes = [
        node("Transpose", "k", "t", perm=[0, 2, 1]), node("MatMul", "q", "t", "s"),
        node("Mul", "s", "scale", "u"), node("Add", "u", "mask", "m"),
        node("Softmax", "m", "p", axis=-1), node("MatMul", "p", "v", "y"),
    ]  # fmt: skip
    given = {n: (F, [3, length, d]) for n in "qkv"}
    return model(nodes, given, ["y"], {"scale": np.float32(d**-0.5), "mask": mask})


# Of what torch computes: how much it is asked for, as sizes, and whether masked.
OFFERED: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[int, ...], bool]] = {
    "heads": (ATTENTION["heads"], (2, 2, 2, 24, 24, 16), False),
    "of eight": (lambda: heads(20, 2, 8), (2, 2, 2, 20, 20, 8), False),
    "many keys": (lambda: heads(70, 1, 32), (1, 2, 2, 70, 70, 32), False),
    "heads in groups": (ATTENTION["heads in groups"], (2, 4, 2, 24, 24, 16), False),
}  # fmt: skip


def between(m: onnx.ModelProto) -> onnx.ModelProto:
    """The same, of what is computed: inputs of 32 bits are no halves."""
    for i, v in enumerate([x.name for x in m.graph.input]):
        for n in m.graph.node:
            for k, x in enumerate(n.input):
                if x == v:
                    n.input[k] = f"{v}_1"
        m.graph.node.insert(i, node("Tanh", v, f"{v}_1"))
    return m


OFFERED["masked by -inf"] = lambda: between(masked(40, 32)), (1, 3, 3, 40, 40, 32), True
REFUSED = (
    "ragged heads",
    "causal heads",
    "masked heads",
    "a mask beyond halves",
)


@pytest.mark.round_robin(2)
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("name", OFFERED)
def test_torch_computes_the_same(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, sizes, causal = OFFERED[name]
    m = make()
    taken(monkeypatch)
    exe = load_compiler.compile_model(read_model(m), precision)
    near(exe.run(feeds(m)), reference(m, feeds(m)), precision)
    (text,) = (x for x in libraries(exe) if x.startswith("sdpa"))
    assert str(parse_sdpa(text)) == text
    assert (parse_sdpa(text).sizes, parse_sdpa(text).causal) == (sizes, causal)
    assert any("torch's attention" in p.how for p in exe.profile(feeds(m), seconds=0.01).parts)
    own = load_compiler.compile_model(read_model(m), precision, vendor=False)
    assert not libraries(own)


@pytest.mark.parametrize("name", REFUSED)
def test_attention_that_torch_does_not_compute(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of a query that are no whole vectors, and masks that it has not."""
    m = ATTENTION[name]()
    taken(monkeypatch)
    exe = load_compiler.compile_model(read_model(m), "fp16")
    near(exe.run(feeds(m)), reference(m, feeds(m)), "fp16")
    assert not [x for x in libraries(exe) if x.startswith("sdpa")]


@pytest.mark.parametrize(
    ("precision", "least", "offered"),
    [("fp16", -3.4e38, True), ("fp16", -1e9, False), ("bf16", -3.4e38, False)],
)
def test_what_no_score_makes_up_for(
    precision: str, least: float, offered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask of a finite number is one of -inf where no product of two halves is as large; numbers
    of bfloat16 are as large as a float32's."""
    m = between(masked(24, 16, least))
    taken(monkeypatch)
    exe = load_compiler.compile_model(read_model(m), precision)
    near(exe.run(feeds(m)), reference(m, feeds(m)), precision)
    found = [parse_sdpa(x) for x in libraries(exe) if x.startswith("sdpa")]
    assert [x.causal for x in found] == [True] * offered


def test_rows_with_unaligned_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Are ours, though each row is some vectors long: queries are the last of 20 numbers."""
    m = between(masked(24, 16))
    m.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 20
    for name, n in (("from", 4), ("to", 20), ("axis", 2)):
        m.graph.initializer.append(onnx.numpy_helper.from_array(np.array([n]), name))
    (at,) = (n for n, x in enumerate(m.graph.node) if "q_1" in x.input)
    m.graph.node[at].input[0] = "q_2"
    m.graph.node.insert(at, node("Slice", "q_1", "from", "to", "axis", "q_2"))
    taken(monkeypatch)
    exe = load_compiler.compile_model(read_model(m), "fp16")
    near(exe.run(feeds(m)), reference(m, feeds(m)), "fp16")
    assert not [x for x in libraries(exe) if x.startswith("sdpa")]


def test_it_is_found_again(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken(monkeypatch)
    m = ATTENTION["heads"]()
    path = written(tmp_path / "m.onnx", m)
    found = [superopt.compile(path, target="cuda", precision="fp16") for _ in range(2)]
    np.testing.assert_array_equal(*(exe.run(feeds(m))["y"] for exe in found))
    (ready,) = cached_programs(found[1])
    assert [vendor_name(f.name) for f in ready.loaded.image.functions if f.begin == f.end] == [
        "torch's attention"
    ]


def test_its_text() -> None:
    text = (
        "sdpa 2x2x2x8x8x16 0:768x16x96x1+0 0:768x16x96x1+32 0:768x16x96x1+64 256x16x32x1+0 0.25 1"
    )
    assert str(parse_sdpa(text)) == text
    wrong: Any
    for wrong in ("conv 1 2 3", text + " 0"):
        with pytest.raises(ValueError, match="is not an attention, such as sdpa"):
            parse_sdpa(wrong)


def test_threads_wait_with_what_they_say_of_attention() -> None:
    """It is the process's: what was said before is so again."""
    import torch

    said: Any = torch.backends.cuda
    within = [threading.Event() for _ in range(2)]
    found = []

    def one(n: int) -> None:
        if n:
            within[0].wait()
        with fused_backends():
            within[n].set()
            within[1].wait(0.2)  # the other one cannot get here
            found.append((n, within[1].is_set(), said.math_sdp_enabled()))

    threads = [threading.Thread(target=one, args=(n,)) for n in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [(0, False, False), (1, True, False)]
    assert said.math_sdp_enabled()
