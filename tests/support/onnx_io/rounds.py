"""A model read, exported and written, and how to compare it with what it was."""

import os
from collections.abc import Mapping, Sequence
from difflib import unified_diff
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper, parser

from superopt.ir.constant_folding import fold_constants
from superopt.onnx_io.check.validate import validate
from superopt.onnx_io.export.exporter import export_model
from superopt.onnx_io.export.model_file import write_model
from superopt.onnx_io.import_.importer import Model, import_model
from superopt.onnx_io.read.source import read_model

Feeds = Mapping[str, object]


def text(source: str) -> onnx.ModelProto:
    """A model from ONNX's text syntax."""
    return parser.parse_model(source)


def imported(proto: onnx.ModelProto) -> Model:
    """The model's graph; it must be valid."""
    source = read_model(proto)
    validate(source)
    return import_model(source)


def through(proto: onnx.ModelProto, *, folded: bool = False) -> onnx.ModelProto:
    """The model after import, export and a file, and between the two folding if asked for."""
    before = proto.SerializeToString()
    model = imported(proto)
    graph = fold_constants(model.graph).graph if folded else model.graph
    new = export_model(model, graph)
    assert proto.SerializeToString() == before
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        write_model(new, path, original=model.source)
        return onnx.load(path)


def plain(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model in one form of several that mean the same: tensors as raw data, for one."""
    out = onnx.ModelProto()
    out.CopyFrom(proto)
    for f in out.functions:
        for n in f.node:
            _without_empty_fields(n)
    graphs = [out.graph]
    while graphs:
        graph = graphs.pop()
        tensors = list(graph.initializer)
        known = {v.name for v in graph.output} & {t.name for t in graph.initializer}
        twice = [v for v in graph.value_info if v.name in known]  # onnx_ir declares these twice
        for v in twice:
            graph.value_info.remove(v)
        for n in graph.node:
            _without_empty_fields(n)
            for a in n.attribute:
                if a.HasField("t"):
                    tensors.append(a.t)
                if a.HasField("g"):
                    graphs.append(a.g)
                graphs.extend(a.graphs)
        for t in tensors:
            if t.data_type != onnx.TensorProto.STRING and not t.HasField("raw_data"):
                made = numpy_helper.from_array(numpy_helper.to_array(t), t.name)
                made.doc_string = t.doc_string
                made.metadata_props.extend(t.metadata_props)
                t.CopyFrom(made)
    return out


def _without_empty_fields(n: onnx.NodeProto) -> None:
    for field in ("domain", "overload", "name", "doc_string"):
        if not getattr(n, field):
            n.ClearField(field)


def assert_same(proto: onnx.ModelProto) -> None:
    """Nothing at all changes when the model goes through, except how tensors store their data."""
    new, old = plain(through(proto)), plain(proto)
    if new != old:
        lines = unified_diff(str(old).splitlines(), str(new).splitlines(), "before", "after", n=2)
        raise AssertionError("\n".join(line.rstrip()[:120] for line in islice(lines, 100)))


def session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """The model in onnxruntime, as it is."""
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    data = proto.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def assert_runs_alike(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    feeds: Sequence[Feeds],
    rtol: float = 0.0,
    atol: float = 0.0,
) -> None:
    """Both models give the same in onnxruntime for each set of inputs, by default bit for bit."""
    one, two = session(before), session(after)
    assert [o.name for o in one.get_outputs()] == [o.name for o in two.get_outputs()]
    for f in feeds:
        for x, y in zip(one.run(None, dict(f)), two.run(None, dict(f)), strict=True):
            assert_alike(x, y, rtol, atol)


def assert_alike(x: object, y: object, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Two results of a runtime are the same: tensors, lists, maps or None."""
    match x, y:
        case np.ndarray(), np.ndarray():
            assert x.dtype == y.dtype
            assert x.shape == y.shape
            if x.dtype.kind in "fc":
                np.testing.assert_allclose(x, y, rtol, atol)
            else:
                np.testing.assert_array_equal(x, y)
        case list(), list():
            assert len(x) == len(y)
            for a, b in zip(x, y, strict=True):
                assert_alike(a, b, rtol, atol)
        case _:
            assert type(x) is type(y)
            assert x == y
