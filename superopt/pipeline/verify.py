"""`verify`: are two models equal? By structure, else on many inputs; proofs come later."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from superopt.check.compare import compare
from superopt.check.inputs import Feeds, feeds
from superopt.check.numeric import Checked, Result, check, opaque_nodes
from superopt.ir import graph as g
from superopt.ir.fold import fold
from superopt.onnx_io.importer import Model, import_model
from superopt.onnx_io.source import Source
from superopt.onnx_io.validate import validate
from superopt.pipeline.inputs import check_inputs
from superopt.pipeline.optimize import original_file
from superopt.pipeline.reporting import check_result
from superopt.pipeline.runtime import runner
from superopt.pipeline.shapes import representative, unequal
from superopt.report.data import Event, Verdict
from superopt.search.view import replace_all


@dataclass(frozen=True, slots=True)
class Question:
    """What the caller asked; see `superopt.api.verify`."""

    inputs: Mapping[str, np.ndarray] | None = None
    shapes: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    progress: Callable[[Event], None] = lambda event: None
    stop: Callable[[], bool] = lambda: False


def verify(a: Source, b: Source, question: Question) -> Verdict:
    """Compare model `b` with model `a`.

    `proved` when both are the same graph after folding constants (then they compute the same for
    all inputs), `differs` with the first disagreement, else `agrees`.
    """
    for source in (a, b):
        validate(source)
    if a.sha256 == b.sha256:
        return Verdict("proved", "both are the same file", None)
    one, two = import_model(a), import_model(b)
    mismatch = _interface(one, two)
    if mismatch:
        return Verdict("differs", mismatch, None)
    question.progress(Event("compare", "structure", 0.1))
    joined = _joined(one, two)
    if joined.outputs == one.graph.outputs:
        return Verdict("proved", "both are the same graph", None)
    cut = opaque_nodes(one.graph) or opaque_nodes(two.graph)
    if not cut and fold(one.graph).graph.outputs == fold(joined).graph.outputs:
        return Verdict("proved", "both are the same graph once constants are folded", None)
    return _numeric(one, two, joined, question)


def _interface(a: Model, b: Model) -> str:
    """How inputs or outputs differ, empty where they do not."""
    mine, theirs = a.source.model.graph, b.source.model.graph
    for what, x, y in (
        ("inputs", [i.name for i in a.graph.inputs], [i.name for i in b.graph.inputs]),
        ("outputs", [v.name for v in mine.outputs], [v.name for v in theirs.outputs]),
    ):
        if x != y:
            return f"{what} are {', '.join(map(str, x))} and {', '.join(map(str, y))}"
    for i, j in zip(a.graph.inputs, b.graph.inputs, strict=True):
        if i.type.dtype != j.type.dtype:
            return f"input {i.name} is {i.type.dtype} and {j.type.dtype}"
        if _fixed(i.type.shape) != _fixed(j.type.shape):
            return f"input {i.name} is {i.type} and {j.type}"
    return ""


def _fixed(shape: tuple[object, ...] | None) -> tuple[object, ...] | None:
    return None if shape is None else tuple(d if isinstance(d, int) else "?" for d in shape)


def _joined(a: Model, b: Model) -> g.Graph:
    """The graph of `b` on the inputs of `a`, where equal nodes become the same objects."""
    change: dict[g.Value, g.Value] = dict(zip(b.graph.inputs, a.graph.inputs, strict=True))
    if any(i.type != j.type for i, j in change.items()):
        return b.graph  # symbolic sizes of other names: structure does not tell
    pool = {(c.type, g.content_key(c.load())): c for c in g.constants(a.graph)}
    for c in g.constants(b.graph):
        same = pool.get((c.type, g.content_key(c.load())))
        if same is not None:
            change[c] = same
    moved = replace_all(b.graph, change)
    return g.Graph(a.graph.inputs, moved.outputs)


def _numeric(one: Model, two: Model, joined: g.Graph, question: Question) -> Verdict:
    check_inputs(one, question.inputs)
    sizes = representative(one, question.shapes)
    sets = list(feeds(one.graph, sizes, question.seed, question.inputs))
    if one.sizes:
        sets += list(feeds(one.graph, unequal(sizes), question.seed + 1, None))
    names = [v.name or "" for v in one.source.model.graph.outputs]
    question.progress(Event("compare", f"{len(sets)} sets of inputs", 0.3))
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="superopt-") as folder:
        files = []
        for n, model in enumerate((one, two)):
            home = Path(folder, str(n))
            home.mkdir()
            files.append(original_file(model.source, home))
        if opaque_nodes(one.graph) or opaque_nodes(two.graph):
            return _whole(one, names, sets, files, failures)
        checked = check(
            one.graph, g.Graph(one.graph.inputs, two.graph.outputs) if joined is two.graph else joined,
            names, sets, sizes,
            run_original=runner(files[0], names, 1, failures),
            run_candidate=runner(files[1], names, 1, failures),
            seed=question.seed, stop=question.stop,
        )  # fmt: skip
    result = check_result(checked, len(sets))
    if checked.failures:
        bad = checked.failures[0]
        return Verdict("differs", f"output {bad.place}: {bad.compared.failure}", result)
    return Verdict("agrees", f"equal on {len(sets)} sets of inputs", result, tuple(checked.skipped))


def _whole(
    one: Model, names: list[str], sets: Sequence[Feeds], files: Sequence[Path], failures: list[str]
) -> Verdict:
    """Both models run whole in onnxruntime: what opaque nodes give is not ours to say."""
    first, second = (runner(f, names, 1, failures) for f in files)
    results: list[Result] = []
    for feed in sets:
        x, y = first(feed.arrays), second(feed.arrays)
        if x is None or y is None:
            return Verdict(
                "unknown", "onnxruntime does not run both models", None, tuple(failures[:2])
            )
        again = first(feed.arrays)
        for name, v, p, q, r in zip(names, one.graph.outputs, x, y, again or x, strict=True):
            if p.dtype.kind == "f" and not np.array_equal(p, r, equal_nan=True):
                return Verdict("unknown", f"output {name} is random: two runs differ", None)
            results.append(Result(name, feed.kind, compare(v.type.dtype, p.astype(np.float64)
                                  if p.dtype.kind == "f" else p, p, q)))  # fmt: skip
    checked = Checked(
        tuple(results), (), "onnxruntime on both: some nodes have no tensor expression"
    )
    if checked.failures:
        bad = checked.failures[0]
        return Verdict(
            "differs",
            f"output {bad.place}: {bad.compared.failure}",
            check_result(checked, len(sets)),
        )
    return Verdict(
        "agrees", f"equal on {len(sets)} sets of inputs", check_result(checked, len(sets))
    )
