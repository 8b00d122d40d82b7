"""scripts/bench_gpu.py as far as it needs no GPU: shards that go on, torch's known times, the
table; and that torch's definitions are the models."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from superopt.kernels.runtime import gpu_device
from superopt.kernels.runtime.gpu_device import GpuPeak
from tests.support.paths import SCRIPTS

sys.path.insert(0, str(SCRIPTS))

import bench_gpu
import gpu_checks
import gpu_peers
import gpu_table
from bench_gpu import OWN, Case, Journal

ON = "a GPU, torch 2"
CASES = [Case("resnet18", "fp16", 1), Case("nasrnn", "tf32", 16), Case("two_tower", "fp16", 1)]
FOUND = {
    "ms": 0.5, "calls": 0.6, "limit": 0.1, "kernels": 3, "error": 1e-3, "compile s": 2.0,
    "why": "so",
}  # fmt: skip


class Device:
    """A clock, and steps that take so long on it; done: which were done."""

    def __init__(self, takes: float = 10.0, killed: str = "") -> None:
        self.now, self.takes, self.killed = 0.0, takes, killed
        self.done: list[str] = []

    def clock(self) -> float:
        return self.now

    def ready(self, case: Case) -> str:
        return str(case)

    def do(self, case: Case, step: str, ready: Any) -> dict[str, Any]:
        assert ready == str(case)
        self.now += self.takes
        if f"{case} {step}" == self.killed:
            raise KeyboardInterrupt  # no Exception: it ends the process
        self.done.append(f"{case} {step}")
        return FOUND if step == OWN else {"peers": {step: 1.0}, "beside": {step: 0.4}}


def shard(
    folder: Path, device: Device, seconds: float, known: Mapping[str, Any] | None = None
) -> int:
    journal = Journal.read(folder, ON)
    journal.cases |= known or {}
    return bench_gpu.shard(CASES, journal, seconds, device.ready, device.do, device.clock)


def all_steps() -> list[str]:
    return [f"{c} {s}" for c in CASES for s in c.steps]


@pytest.mark.parametrize("seconds", [10, 25, 40, 1000])
def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path, seconds: int) -> None:
    """In shards of any length each step is done once, and none ends beyond its shard."""
    done: list[str] = []
    left = 1
    for _ in range(20):
        device = Device()
        left = shard(tmp_path, device, seconds)
        done += device.done
        assert device.now <= seconds
        assert left == len(all_steps()) - len(done)
        if not left:
            break
    assert left == 0
    assert done == all_steps()
    held = [json.loads(p.read_text()) for p in sorted(tmp_path.glob("shard_*.json"))]
    assert {h["on"] for h in held} == {ON}
    whole = Journal.read(tmp_path, ON)
    assert whole.cases["resnet18 fp16 1"]["peers"] == {"graph": 1.0, "compile": 1.0, "max": 1.0}
    assert "peers" not in whole.cases["two_tower fp16 1"]
    assert Journal.read(tmp_path, "another").left(CASES[1]) == list(CASES[1].steps)


def test_what_was_killed_begins_anew_once(tmp_path: Path) -> None:
    victim = "resnet18 fp16 1 compile"
    for turn in range(2):
        with pytest.raises(KeyboardInterrupt):
            shard(tmp_path, Device(killed=victim), 1000)
        held = Journal.read(tmp_path, ON)
        assert "ms" in held.cases["resnet18 fp16 1"]
        assert ("compile" in held.left(CASES[0])) == (turn == 0)
    device = Device()
    assert shard(tmp_path, device, 1000) == 0
    assert device.done == [s for s in all_steps() if s not in (
        "resnet18 fp16 1 own", "resnet18 fp16 1 graph", victim)]  # fmt: skip
    assert "compile failed: was ended 2 times" in gpu_table.table(Journal.read(tmp_path, ON).cases)


def test_what_fails_is_said_and_not_done_again(tmp_path: Path) -> None:
    class Failing(Device):
        def do(self, case: Case, step: str, ready: Any) -> dict[str, Any]:
            if case.name == "nasrnn" or step == "max":
                raise ValueError("no such kernel")
            return super().do(case, step, ready)

    assert shard(tmp_path, Failing(), 1000) == 0
    text = gpu_table.table(Journal.read(tmp_path, ON).cases)
    assert "nasrnn, own failed: ValueError: no such kernel" in text
    assert "resnet18, max failed: ValueError" in text
    again = Device()
    assert shard(tmp_path, again, 1000) == 0
    assert again.done == []


def test_known_times_are_not_taken_again(tmp_path: Path) -> None:
    peers = tmp_path / "peers.json"
    gpu_peers.keep(peers, ON, {"nasrnn tf32 16": {"graph": 2.0}})
    gpu_peers.keep(peers, ON, {"nasrnn tf32 16": {"compile": 1.5}, "resnet18 fp16 1": {"max": 0.2}})
    gpu_peers.keep(peers, "another GPU, torch 2", {"nasrnn tf32 16": {"graph": 9.0}})
    gpu_peers.keep(peers, ON, {"nasrnn tf32 16": {"graph": 7.0}, "csrnet fp16 1": {}}, False)
    known = gpu_peers.known(peers, ON)
    assert known["nasrnn tf32 16"] == {"graph": 2.0, "compile": 1.5}
    assert gpu_peers.known(tmp_path / "none.json", ON) == {}
    device = Device()
    shard(tmp_path, device, 1000, {c: {"peers": t} for c, t in known.items()})
    assert "nasrnn tf32 16 own" in device.done
    assert not [s for s in device.done if s.startswith("nasrnn") and not s.endswith("own")]
    assert "resnet18 fp16 1 max" not in device.done
    assert "resnet18 fp16 1 compile" in device.done


def test_the_committed_times(root: Path) -> None:
    """By GPU and torch's version, then by model, precision and batch, then by mode."""
    held = json.loads((root / "docs" / "benchmarks" / "gpu_peers.json").read_text())
    for on, cases in held.items():
        assert ", torch " in on
        for case, times in cases.items():
            name, precision, batch = case.split()
            assert set(times) <= set(gpu_peers.wanted(name, precision))
            assert precision in ("fp16", "tf32")
            assert int(batch) > 0
            assert all(0 < t < 1000 for t in times.values())


def test_the_better_of_torchs_modes_counts() -> None:
    """By our time in turns with it, where there is one."""
    case = {**FOUND, "peers": {"graph": 2.0, "compile": 1.0}, "beside": {"compile": 0.8}}
    assert gpu_table.ratio(case) == ("compile", 1.25)
    assert gpu_table.ratio({**case, "beside": {"graph": 1.0}}) == ("compile", 2.0)
    assert gpu_table.ratio(FOUND) is None
    assert gpu_table.as_called(FOUND) is None
    assert gpu_table.as_called({**case, "peers": {"graph": 0.75, "compile": 1.0}}) == 1.5
    right = {"ok": True, "errors": [2e-3, 3e-3], "why": ""}
    some = {"resnet18 fp16 1": {**case, "accuracy": right},
            "nasrnn fp16 1": {**case, "beside": {}, "accuracy": {**right, "ok": False,
                                                                 "why": "too far"}}}  # fmt: skip
    text = gpu_table.table({**some, "csrnet fp16 1": {"peers": {"graph": 1.0}}})
    row = "| resnet18 | 0.500 | 1.000 | compile | yes | 1.25 | 1.67 | 0.1000 | 5.0 | 0.600 | 3 |"
    assert row in text
    wanted = "geometric mean of 2 ratios: {} (1.15 wanted); the lowest is resnet18's, {}"
    assert f"As graphs: {wanted.format(1.58, 1.25)}" in text
    assert f"As called: {wanted.format(1.67, 1.67)}" in text
    assert "nasrnn: 2.00 (3 wanted)" in text
    assert "section 14: 1 of 2." in text
    assert "resnet18 2.0e-03 (3.0e-03), nasrnn 2.0e-03 (3.0e-03)." in text
    assert "nasrnn: too far" in text
    assert "csrnet" not in text


def test_how_far_from_the_limit_and_why() -> None:
    def part(seconds: float, operations: float, moved: float, how: str) -> Any:
        return SimpleNamespace(seconds=seconds, operations=operations, bytes=moved, how=how)

    parts = [
        part(11e-6, 800e12 * 4e-6, 1, "dot rows=64"), part(6e-6, 1, 3e12 * 3e-6, "rows warps=4"),
        part(4e-6, 0, 0, "each elements=64"),
    ]  # fmt: skip
    most = GpuPeak(800e12, 3e12)
    assert gpu_table.limit(parts, most) == pytest.approx(7e-3)
    assert gpu_table.limit(parts, GpuPeak(400e12, 3e12)) == pytest.approx(11e-3)
    assert gpu_table.limit(parts, GpuPeak(800e12, 4e12)) == pytest.approx(6.25e-3)
    assert gpu_table.why(parts, most) == "limit 33%, 3 launches 21%, dot 26%, each 12%"
    assert gpu_table.why([], most) == ""


def test_what_a_gpu_can_do_is_measured_where_it_is_not_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_device, "execution_device", lambda: "cuda")
    monkeypatch.setattr(gpu_device, "measure_gpu_peak", lambda device, precision: GpuPeak(1.0, 2.0))
    monkeypatch.setattr(gpu_device, "device_name", lambda device: "NVIDIA H100 80GB HBM3")
    assert gpu_checks.most("tf32") == GpuPeak(400e12, 3e12)
    monkeypatch.setattr(gpu_device, "device_name", lambda device: "NVIDIA H200")
    assert gpu_checks.most("tf32") == GpuPeak(1.0, 2.0)


def test_the_command_prints_what_was_found(tmp_path: Path) -> None:
    """Where there is no GPU, too; and does nothing else."""
    shard(tmp_path, Device(), 1000)
    peers, page = tmp_path / "peers.json", tmp_path / "t.md"
    given = ["bench_gpu.py", "--out", str(tmp_path), "--table", "--peers", str(peers)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [*given, "--md", str(page)])
        bench_gpu.main()
    assert page.read_text().startswith(f"# {ON}\n\n## Batch 1, fp16\n")
    assert not peers.exists()


def test_a_failure_is_one_of_the_command_s(tmp_path: Path) -> None:
    class Failing(Device):
        def do(self, case: Case, step: str, ready: Any) -> dict[str, Any]:
            if case.name == "nasrnn" and step == OWN:
                raise ArithmeticError("far off")
            return super().do(case, step, ready)

    shard(tmp_path, Failing(), 1000)
    given = ["bench_gpu.py", "--out", str(tmp_path), "--table", "--peers", str(tmp_path / "p.json")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", given)
        with pytest.raises(SystemExit) as ended:
            bench_gpu.main()
    assert ended.value.code == 1


def test_far_off_is_none_too() -> None:
    right = np.array([3.0, 4.0])
    assert gpu_checks.far(np.array([3.0, 4.5]), right) == pytest.approx(0.5 / 12.5**0.5)
    assert not gpu_checks.far(np.array([3.0, np.nan]), right) <= 1
    assert gpu_checks.far(np.zeros(2), np.zeros(2)) == 0


VISION = ("resnet18", "resnet50", "squeezenet1_1", "mobilenet_v2", "inception_v3", "csrnet")


@pytest.mark.slow
@pytest.mark.parametrize("name", VISION)
def test_torchs_definitions_do_the_same_work(
    name: str, weightless_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The convolutions and products, of the same sizes, steps, borders and groups."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision")
    from gpu_nets import net

    monkeypatch.syspath_prepend(str(weightless_models[name].parent))
    from fill import fill

    module, given = net(name, 2, torch.float32, "cpu")
    found: list[tuple[Any, ...]] = []

    def told(m: Any, _: Any, out: Any) -> None:
        if isinstance(m, torch.nn.Conv2d):
            about = m.stride, m.padding, m.dilation, (m.groups,)
            found.append((tuple(m.weight.shape), *about, tuple(out.shape[2:])))
        elif isinstance(m, torch.nn.Linear):
            found.append((tuple(m.weight.shape),))

    for m in module.modules():
        m.register_forward_hook(told)
    with torch.no_grad():
        module(*given)
    assert sorted(found, key=str) == sorted(work_of(fill(name)), key=str)


def work_of(m: onnx.ModelProto) -> list[tuple[Any, ...]]:
    m = onnx.shape_inference.infer_shapes(m)
    weights = {t.name: tuple(t.dims) for t in m.graph.initializer}
    shapes = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim)
              for v in (*m.graph.value_info, *m.graph.output)}  # fmt: skip
    out: list[tuple[Any, ...]] = []
    for x in m.graph.node:
        about = {a.name: onnx.helper.get_attribute_value(a) for a in x.attribute}
        if x.op_type == "Conv":
            pads = tuple(about["pads"])
            assert pads[:2] == pads[2:]
            steps = tuple(about["strides"]), pads[:2], tuple(about["dilations"]), (about["group"],)
            out.append((weights[x.input[1]], *steps, shapes[x.output[0]][2:]))
        elif x.op_type == "Gemm":
            out.append((weights[x.input[1]],))
    return out


@pytest.mark.slow
def test_torchs_recurrent_net_is_the_model(
    weightless_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, ort = pytest.importorskip("torch"), pytest.importorskip("onnxruntime")
    from gpu_nets import net

    monkeypatch.syspath_prepend(str(weightless_models["nasrnn"].parent))
    from fill import fill

    m = fill("nasrnn")
    module, (x,) = net("nasrnn", 1, torch.float32, "cpu")
    known = {t.name: torch.from_numpy(onnx.numpy_helper.to_array(t).copy())
             for t in m.graph.initializer}  # fmt: skip
    names = {"first": "h0", **{f"{k}.{n}.weight": f"{k.upper()}.0.{n}.weight"
                               for k in "wu" for n in range(8)}}  # fmt: skip
    module.load_state_dict({own: known[name] for own, name in names.items()})
    session = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(module(x).numpy(), wanted, atol=1e-5)


@pytest.mark.slow
def test_torchs_llama_layers_are_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of smaller sizes; the weights are the model's."""
    torch, ort = pytest.importorskip("torch"), pytest.importorskip("onnxruntime")
    import gpu_nets

    for name, n in {"LAYERS": 2, "WIDTH": 64, "HEADS": 4, "INNER": 96, "LENGTH": 24}.items():
        monkeypatch.setattr(gpu_nets, name, n)
    path = tmp_path / "m.onnx"
    gpu_nets.llama_layers(path, 2)
    m = onnx.load(path)
    module, (x,) = gpu_nets.net("llama_layers", 2, torch.float32, "cpu")
    known = [onnx.numpy_helper.to_array(t) for t in m.graph.initializer if t.name.startswith("w")]
    with torch.no_grad():
        for linear, array in zip(module.w, known, strict=True):
            linear.weight.copy_(torch.from_numpy(array.T.copy()))
        got = module(x).numpy()
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x.numpy()})
    np.testing.assert_allclose(got, wanted, atol=1e-3)


def test_interleaved_measurements_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of torch's known times, those that this folder's shards did not take are added to its table;
    and a step that failed is an error of all."""
    case = {**FOUND, "peers": {"graph": 2.0}, "beside": {"graph": 1.0}}
    held = {"on": ON, "cases": {"resnet18 fp16 1": case}, "began": []}
    (tmp_path / "shard_001.json").write_text(json.dumps(held))
    peers = tmp_path / "peers.json"
    peers.write_text(json.dumps({ON: {"resnet18 fp16 1": {"graph": 1.2, "compile": 3.0}}}))
    out = tmp_path / "out.md"
    given = ["", "--out", str(tmp_path), "--table", "--peers", str(peers), "--md", str(out)]
    monkeypatch.setattr(sys, "argv", given)
    bench_gpu.main()
    assert "| 2.000 | graph | yes | 2.00 |" in out.read_text()
    case["failed"] = {"compile": "why"}
    (tmp_path / "shard_001.json").write_text(json.dumps(held))
    with pytest.raises(SystemExit) as e:
        bench_gpu.main()
    assert e.value.code == 1
