"""Running the pipeline on small models, and asking onnx's own evaluator what they compute."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from superopt.ir import graph as ir_graph
from superopt.loading.model import load_model
from superopt.loading.request import Request
from superopt.onnx_io.read.source import read_model
from superopt.ops import OPS
from superopt.optimization import optimization_result, optimize
from superopt.optimization.optimization_result import OptimizationResult
from superopt.optimization.report.optimization_report import make_report
from superopt.report.data.report import Report
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.search.move import Step
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

RULES = """
relu-relu(x: f): Relu(Relu(x)) => Relu(x) ; float=E0
transpose-transpose(x: any):
    Transpose(Transpose(x, perm=p), perm=q) => Transpose(x, perm=permute(p, q)) ; float=E0
transpose-identity(x: any): Transpose(x, perm=p) => x where is_identity(p) ; float=E0
relu-transpose(x: f): Relu(Transpose(x, perm=p)) => Transpose(Relu(x), perm=p) ; float=E0
"""


def rules(more: str = "", source: str = "my.rules") -> tuple[Rule, ...]:
    """Four right rules, and those of another text."""
    return (*parse_rules(RULES, "right.rules"), *parse_rules(more, source))


def request(**asked: object) -> Request:
    """A request that measures nothing, with the four rules, which no library has proved, unless it
    asks for something else."""
    usual = {"rules": rules(), "cost": "roofline", "budget": 20.0, "tier": "C"}
    given: dict[str, object] = {**usual, **asked}
    return Request(**given)  # type: ignore[arg-type]


def run(data: bytes | Path, **asked: object) -> OptimizationResult:
    """`optimize` on a model."""
    return optimize.optimize(load_model(read_model(data)), request(**asked))


def report(done: OptimizationResult) -> Report:
    """Its report."""
    digest = done.winner.sha256 if done.winner else done.source.sha256
    return make_report(done, done.request.rules, digest)


def saved(done: OptimizationResult, folder: Path) -> onnx.ModelProto:
    """The model that it writes, which onnx's checker accepts."""
    path = folder / "saved.onnx"
    optimization_result.save_model(done, path)
    onnx.checker.check_model(str(path), full_check=True)
    return onnx.load(str(path))


def values(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What onnx's reference evaluator makes of a model."""
    found = ReferenceEvaluator(model).run(None, dict(feeds))
    return [np.asarray(v) for v in found]


def same(a: onnx.ModelProto, b: onnx.ModelProto, /, **feeds: np.ndarray) -> bool:
    """Do two models give the same (floats nearly) on these inputs?"""
    pairs = zip(values(a, feeds), values(b, feeds), strict=True)
    return all(np.allclose(x, y, 1e-5, 1e-6, equal_nan=True) for x, y in pairs)


def trace(rounds: list[int]) -> tuple[list[Step], list[ir_graph.Graph]]:
    """Steps that each make one more output Neg instead of Abs, in rounds of so many."""
    inputs = [ir_graph.Input(f"x{n}", TensorType(F32, (2,))) for n in range(sum(rounds))]
    outputs: list[ir_graph.Value] = [ir_graph.node(OPS["Abs"], [x]) for x in inputs]
    graph = ir_graph.Graph(tuple(inputs), tuple(outputs))
    graphs, steps = [graph], []
    for count in rounds:
        done = len(steps)
        some = range(done, done + count)
        new = list(graph.outputs)
        for n in some:
            new[n] = ir_graph.node(OPS["Neg"], [inputs[n]])
        after = ir_graph.Graph(tuple(inputs), tuple(new))
        steps += [Step(f"r{n}", None, {outputs[n]: new[n]}, 0.0, graph, after) for n in some]
        graphs.append(after)
        graph = after
    return steps, graphs
