"""The limits of a call: sizes, ends, and what is refused before it is allocated."""

from __future__ import annotations

import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt import guard, ort
from superopt.check.random_inputs import IndexLimit, random_array
from superopt.errors import ModelError, OutOfMemory, OutOfTime, UsageError
from superopt.ir.constant_folding import fold_constants
from superopt.ir.evaluate import evaluate
from superopt.ir.graph import content_key
from superopt.jobs import benchmark
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read import wire
from superopt.onnx_io.read.source import read_model
from superopt.ort.timing import interleave
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64
from superopt.te.expr.tensor import TensorType
from tests.support.onnx_io.hostile import KINDS, chain, empty_nodes, loop, model, model_bytes

X = {"x": np.ones(4, np.float32)}
ROOM_BYTES = 200_000_000


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("512MB", 512_000_000),
        ("512 mb", 512_000_000),
        ("1.5 GiB", 3 << 29),
        ("2g", 2_000_000_000),
        ("1KiB", 1024),
        ("3TB", 3_000_000_000_000),
        (".5k", 500),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert guard.parse_size(text) == guard.parse_max_memory(text) == size


@pytest.mark.parametrize("text", ["", "0", "0GB", "-1", "8 parsecs", "1e3", "iB", "5iB", "GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"8GB|megabytes"):
        guard.parse_size(text)
    with pytest.raises(UsageError, match="max_memory"):
        guard.parse_max_memory(text)


@pytest.mark.parametrize("value", [0, -5, 1.5, True, b"8GB"])
def test_an_argument_that_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="max_memory"):
        guard.parse_max_memory(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (999_600, "1 MB"), (9_300_000_000, "9.3 GB"), (2**31, "2.15 GB")],
)
def test_sizes_are_written(size: int, text: str) -> None:
    assert guard.size_text(size) == text


def test_a_guard_inside_another_never_allows_more() -> None:
    with guard.limit_call(10, 1000) as outer:
        with guard.limit_call(1000, 5000) as inner:
            assert (inner.deadline, inner.max_memory) == (outer.deadline, 1000)
        with guard.limit_call(1, 500) as inner:
            assert inner.deadline < outer.deadline
            assert inner.max_memory == 500
            inner.note("what was left out")
        assert outer.take_notes() == ("what was left out",)
        assert outer.take_notes() == ()
    assert guard.current_guard().deadline == guard.NO_LIMIT


@pytest.mark.parametrize(("spent", "counted"), [(0.0, 0.0), (1.0, 1.0), (50.0, 1.5)])
def test_importing_counts_up_to_a_limit(spent: float, counted: float) -> None:
    begin = time.monotonic() - spent
    with guard.limit_call(20.0) as plain, guard.limit_call(20.0, begin=begin) as limits:
        assert plain.deadline - limits.deadline == pytest.approx(counted, abs=0.2)


def test_time_is_over_at_the_end() -> None:
    guard.check_time("nothing limits this")
    with guard.limit_call(60) as limits:
        guard.check_time("this may go on")
        limits.shorten_deadline(-1)
        with pytest.raises(OutOfTime, match=r"sorting was stopped\nits budget of 60 s is over"):
            guard.check_time("sorting")


def test_memory_is_refused_before_it_is_used() -> None:
    guard.require_memory(1 << 50, "nothing limits this")
    with guard.limit_call(None, guard.bytes_in_use() + ROOM_BYTES):
        guard.require_memory(ROOM_BYTES // 2, "a part")
        with pytest.raises(
            guard.MemoryLimitError, match=r"a copy needs 2 GB, more than .*--max-memory"
        ):
            guard.require_memory(2_000_000_000, "a copy")
    with guard.limit_call(0.5, 1 << 50), pytest.raises(OutOfTime, match="takes at least 50 s"):
        guard.require_memory(100_000_000_000, "a copy")


def test_unhandled_memory_errors_are_model_errors() -> None:
    with pytest.raises(OutOfMemory, match="out of memory\na copy needs 2 GB"):  # noqa: SIM117
        with guard.limit_call(None, ROOM_BYTES), guard.limit_call(None, ROOM_BYTES):
            guard.require_memory(2_000_000_000, "a copy")


def test_something_is_done_at_an_end_that_moved() -> None:
    done = threading.Event()
    with guard.limit_call(600) as limits:
        limits.on_deadline(done.set)
        assert not done.wait(0.2)
        limits.shorten_deadline(0.1)
        assert done.wait(30)
    never = threading.Event()
    with guard.limit_call(0.1) as limits:
        limits.on_deadline(never.set)
    assert not never.wait(3)


def test_control_groups_limit_what_is_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    for folder, most, used in ((inner, "max", 5), (outer, "1000000", 300_000)):
        folder.mkdir()
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("anon 7\ninactive_file 100000\n")
    monkeypatch.setattr(guard, "_control_groups", lambda: iter([inner, outer]))
    assert guard.available_memory() == 1_000_000 - (300_000 - 100_000)
    monkeypatch.setattr(guard, "_control_groups", lambda: iter([inner]))
    assert guard.available_memory() > 1_000_000


EXPANDING = [
    "constant-of-shape", "doubling-concats", "doubling-concats-of-input", "expand", "range",
    "one-hot", "eye-like", "pad", "outer-product",
]  # fmt: skip


@pytest.mark.parametrize("kind", EXPANDING)
def test_small_files_do_not_expand_in_evaluation_and_folding(kind: str) -> None:
    """Neither a huge result nor a huge intermediate one is allocated."""
    source = read_model(KINDS[kind]().SerializeToString())
    tracemalloc.start()
    try:
        with guard.limit_call(None, guard.bytes_in_use() + ROOM_BYTES):
            graph = import_model(source).graph
            folded = fold_constants(graph).graph
            for g in (graph, folded):
                with pytest.raises(guard.MemoryLimitError, match="max-memory"):
                    evaluate(g, X, Reals(F64))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.3 * ROOM_BYTES


def test_too_many_nodes_are_counted_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "strip_tensors", lambda *_: pytest.fail("it was read"))
    with pytest.raises(ModelError, match="more than 1000000 nodes"):
        read_model(empty_nodes(1_000_001).SerializeToString())


@pytest.mark.parametrize("count", [0, 1, 7])
def test_nodes_are_counted(count: int) -> None:
    data = memoryview(chain(count).SerializeToString() if count else model_bytes([]))
    assert wire.count_nodes(data, 100) == count
    assert wire.count_nodes(data, 3) == min(count, 4)


def test_reading_ends_at_the_end() -> None:
    source = read_model(chain(50).SerializeToString())
    with guard.limit_call(60) as limits:
        limits.shorten_deadline(-1)
        with pytest.raises(OutOfTime, match=r"reading (the|a) model was (stopped|skipped)"):
            import_model(source)
        with pytest.raises(OutOfTime):
            read_model(chain(50).SerializeToString())


def sparse_external(folder: Path, size: int) -> Path:
    """A model of 170 bytes with `size` bytes of external data, which take no room on disk."""
    weight = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[size // 4])
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, text in (("location", "w.bin"), ("offset", "0"), ("length", str(size))):
        weight.external_data.add(key=key, value=text)
    nodes = [
        helper.make_node("ReduceMax", ["w"], ["top"], keepdims=0),
        helper.make_node("Add", ["x", "top"], ["y"]),
    ]
    path = folder / "m.onnx"
    path.write_bytes(model(nodes, [weight]).SerializeToString())
    with (folder / "w.bin").open("wb") as file:
        file.truncate(size)
    return path


@pytest.mark.parametrize("size", [4096, 200_000_000])
def test_digests_of_large_files_end_at_the_end(size: int, tmp_path: Path) -> None:
    """Of small ones they are made all the same: a report is for what was found by then."""
    source = read_model(sparse_external(tmp_path, size))
    array = np.zeros(size, np.uint8)
    with guard.limit_call(60) as limits:
        limits.shorten_deadline(-1)
        if size < 1_000_000:
            assert len(source.sha256) == 64
            assert content_key(array)
            return
        with pytest.raises(OutOfTime, match=r"w\.bin was (stopped|skipped)"):
            _ = source.sha256
        with pytest.raises(OutOfTime, match=r"reading constants was (stopped|skipped)"):
            content_key(array)


def test_constants_beyond_the_memory_are_not_packed(tmp_path: Path) -> None:
    path = sparse_external(tmp_path, 2 * ROOM_BYTES)
    with pytest.raises(ModelError, match=r"constants or memory needs 400 MB, .*--max-memory"):
        superopt.compile(path, max_memory=guard.bytes_in_use() + ROOM_BYTES)


def test_an_endless_run_ends_in_this_process() -> None:
    session = ort.load_session(loop(2**60).SerializeToString())
    with guard.limit_call(60) as limits:
        limits.shorten_deadline(0.5)
        with pytest.raises(OutOfTime, match="running a model in onnxruntime"):
            ort.run(session, X)
    short = ort.load_session(loop(3).SerializeToString())
    assert ort.run(short, X)["y"].shape == (4,)


def test_an_endless_run_ends_in_the_worker() -> None:
    with ort.Worker() as worker, guard.limit_call(600) as limits:
        assert not isinstance(worker.run(loop(3).SerializeToString(), X), ort.Failure)
        limits.shorten_deadline(1.0)
        found = worker.run(loop(2**60).SerializeToString(), X)
        assert isinstance(found, ort.Failure)
        assert found.kind == "time"
        found = worker.run(loop(3).SerializeToString(), X)
        assert isinstance(found, ort.Failure)
        assert "no time was left" in found.message


def test_the_worker_has_no_more_memory_than_is_left() -> None:
    large = KINDS["constant-of-shape"]().SerializeToString()
    with ort.Worker() as worker:
        with guard.limit_call(None, guard.bytes_in_use() + ROOM_BYTES):
            found = worker.run(large, X)
            assert isinstance(found, ort.Failure)
            assert found.kind == "error"
            assert "needs more than" in found.message
        assert not isinstance(worker.run(loop(3).SerializeToString(), X), ort.Failure)


@pytest.mark.ci
def test_optimize_of_an_endless_model_ends() -> None:
    begin = time.monotonic()
    found = superopt.optimize(loop(2**60).SerializeToString(), budget=8.0)
    assert time.monotonic() - begin < 1.2 * 8.0 + 5
    assert not found.changed
    assert any(
        "took longer than" in n or "was stopped" in n or "was skipped" in n
        for n in found.report.notes
    )


@pytest.mark.ci
def test_verify_of_endless_models_ends_undecided() -> None:
    one, two = loop(2**60), loop(2**60)
    two.graph.node[0].attribute[0].g.node[1].op_type = "Abs"
    begin = time.monotonic()
    verdict = superopt.verify(one.SerializeToString(), two.SerializeToString(), limit=2.0)
    assert time.monotonic() - begin < 1.2 * 2.0 + 5
    assert verdict.decision == "unknown"


@pytest.mark.parametrize(("end", "count"), [(3, 2), (1, 0)])
def test_bench_keeps_the_repetitions_before_its_deadline(
    end: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its deadline a session stops its run with an error of its own."""
    (tmp_path / "short.onnx").write_bytes(loop(3).SerializeToString())
    repetitions: list[list[list[float]]] = []

    def stop_run(*given: Any, **more: Any) -> list[list[float]]:
        if len(repetitions) == end - 1:
            guard.current_guard().deadline = time.monotonic() - 1
            raise RuntimeError("terminate flag being set to true")
        repetitions.append(interleave(*given, **more))
        return repetitions[-1]

    monkeypatch.setattr(benchmark, "interleave", stop_run)
    if count:
        (row,) = superopt.bench([tmp_path / "short.onnx"], seconds=0.5)
        assert row.latency is not None
        assert row.latency.runs == sum(len(times) for (times,) in repetitions)
    else:
        with pytest.raises(OutOfTime, match="timing was stopped"):
            superopt.bench([tmp_path / "short.onnx"], seconds=0.5)
    assert len(repetitions) == count


@pytest.mark.ci
def test_bench_leaves_out_what_takes_longer_than_its_time(tmp_path: Path) -> None:
    for name, trips in (("short", 3), ("endless", 2**60)):
        (tmp_path / f"{name}.onnx").write_bytes(loop(trips).SerializeToString())
    rows = superopt.bench([tmp_path / "short.onnx", tmp_path / "endless.onnx"], seconds=0.5)
    assert rows[0].latency is not None
    assert rows[1].latency is None
    assert rows[1].note == "one run takes longer than 0.5 s"


def test_verify_does_not_compare_elements_beyond_its_memory(tmp_path: Path) -> None:
    """Evaluation of a constant tensor makes a view of one element; who compares it copies it."""
    one, two = KINDS["constant-of-shape"](), KINDS["constant-of-shape"]()
    two.graph.node[1].op_type = "Neg"
    tracemalloc.start()
    try:
        superopt.verify(
            one.SerializeToString(), two.SerializeToString(), method="index", limit=20.0,
            max_memory=guard.bytes_in_use() + ROOM_BYTES,
        )  # fmt: skip
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.3 * ROOM_BYTES


def test_inputs_beyond_the_memory_are_not_drawn() -> None:
    rng = np.random.default_rng(0)
    large = TensorType(F64, (50_000, 50_000))
    with guard.limit_call(None, guard.bytes_in_use() + ROOM_BYTES):
        with pytest.raises(guard.MemoryLimitError, match="an input of shape"):
            random_array(large, "normal", IndexLimit(None), rng)
        assert random_array(TensorType(F64, (3, 4)), "normal", IndexLimit(None), rng).shape == (
            3,
            4,
        )
