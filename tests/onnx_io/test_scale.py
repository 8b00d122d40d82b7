"""Large models: memory that does not grow with the weights, time that grows with the nodes only."""

import resource
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from superopt.ir import graph
from superopt.ir.constant_folding import fold_constants
from superopt.onnx_io.check.validate import validate
from superopt.onnx_io.export.exporter import export_model
from superopt.onnx_io.export.model_file import write_model
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.onnx_io.read.weightless import draw_weights
from superopt.ops import OPS
from tests.support.children import in_child, peak_rss_of
from tests.support.onnx_io.files import big_external
from tests.support.onnx_io.models import model, value

MB = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is measured in /proc")


@linux
@pytest.mark.slow
def test_a_model_of_two_gigabytes(tmp_path: Path) -> None:
    """Read, rewritten and written; its weights begin, end and look alike in the middle."""
    path = big_external(tmp_path)
    size = (tmp_path / "w.bin").stat().st_size
    assert size > 2.2e9
    with (tmp_path / "w.bin").open("r+b") as file:
        for i in range(9):
            file.seek(size // 9 * i + size // 27 // 4 * 4)
            file.write(np.float32(i).tobytes())

    def rewrite() -> None:
        source = read_model(path)
        validate(source)
        m = import_model(source)
        done = fold_constants(m.graph)
        first = next(n for n in graph.nodes(done.graph) if n.op.name == "MatMul")
        new = graph.replace(done.graph, {first: graph.node(OPS["Relu"], [first])})
        write_model(export_model(m, new), tmp_path / "n.onnx", original=source)

    try:
        peak = peak_rss_of(rewrite)
        assert peak < 100 * MB, f"{peak / MB:.0f} MB"
        out = read_model(tmp_path / "n.onnx")
        assert [n.op_type for n in out.model.graph][:2] == ["MatMul", "Relu"]
        assert list(out.model.graph.initializers) == [f"w{i}" for i in range(9)]
        assert (tmp_path / "n.onnx.data").stat().st_size >= size
        for i, v in enumerate(out.model.graph.initializers.values()):
            assert v.const_value is not None
            assert v.const_value.numpy().reshape(-1)[size // 27 // 4] == i
    finally:
        for file_ in tmp_path.iterdir():
            file_.unlink()


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory, weightless_models: dict[str, Path]) -> Path:
    path = tmp_path_factory.mktemp("bert") / "bert.onnx"
    onnx.save_model(draw_weights(weightless_models["bert_base_12l"]), path)
    return path


@linux
@pytest.mark.slow
def test_importing_bert_reads_no_weights(bert: Path) -> None:
    source = read_model(bert)
    assert len(source.model.graph.initializers) > 100
    peak = peak_rss_of(lambda: import_model(source))
    assert peak < 60 * MB, f"{peak / MB:.0f} MB"


@linux
@pytest.mark.slow
def test_folding_bert_takes_the_memory_of_its_weights_once(bert: Path) -> None:
    """Its weights are stored transposed, so that nearly all of them are written anew."""
    m = import_model(read_model(bert))
    size = bert.stat().st_size

    def folded() -> tuple[int, list[str]]:
        with open("/proc/self/status") as file:
            (now,) = (int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))
        limit = now + int(1.05 * size)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        done = fold_constants(m.graph)
        return done.removed_nodes, list(done.skipped)

    nodes, skipped = in_child(folded, seconds=600)
    assert skipped == []
    assert nodes >= 72


def chain(count: int) -> onnx.ModelProto:
    kinds = ("Relu", "Neg", "Sigmoid")
    nodes = [
        helper.make_node(kinds[k % 3], [f"v{k}"], [f"v{k + 1}"], f"n{k}") for k in range(count)
    ]
    return model(nodes, [value("v0", ["n", 2])], [value(f"v{count}", ["n", 2])])


def through(count: int) -> tuple[float, float]:
    """CPU seconds for a chain in and out, folded; and out again when a node at its beginning was
    rewritten, so that all others are new ones."""
    source = read_model(chain(count))
    begin = time.process_time()
    m = import_model(source)
    out = export_model(m, fold_constants(m.graph).graph)
    there = time.process_time() - begin
    assert [n.name for n in out.graph] == [f"n{k}" for k in range(count)]
    first = graph.nodes(m.graph)[0]
    new = graph.replace(m.graph, {first: graph.node(OPS["Identity"], first.inputs)})
    begin = time.process_time()
    out = export_model(m, new)
    assert [n.name for n in out.graph][1:] == [f"n{k}" for k in range(1, count)]
    return there, time.process_time() - begin


@pytest.mark.one_in(0)
def test_a_chain_of_twenty_thousand_nodes() -> None:
    """Ten times the nodes take about ten times as long, not a hundred times."""
    few, many = (sum(through(count)) for count in (2_000, 20_000))
    assert many < 60 * few
    assert many < 30


def test_a_wide_graph() -> None:
    """Every node reads one value: what is done once for each pair of nodes would show."""
    nodes = [helper.make_node("Relu", ["x"], ["h"], "first")]
    nodes += [helper.make_node("Add", ["h", f"w{k}"], [f"a{k}"], f"n{k}") for k in range(3000)]
    nodes += [helper.make_node("Sum", [f"a{k}" for k in range(3000)], ["y"], "sum")]
    weights = [
        onnx.numpy_helper.from_array(np.array([k, k], np.float32), f"w{k}") for k in range(3000)
    ]
    m = import_model(read_model(model(nodes, [value("x", [2])], [value("y", [2])], weights)))
    (x,) = m.graph.inputs
    first = graph.nodes(m.graph)[0]
    new = graph.replace(m.graph, {first: graph.node(OPS["Abs"], [x])})
    begin = time.process_time()
    out = export_model(m, new)
    assert time.process_time() - begin < 5
    assert [n.name for n in out.graph][1:] == [*(f"n{k}" for k in range(3000)), "sum"]
