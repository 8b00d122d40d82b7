"""What a graph costs in onnxruntime: by the nodes that it runs for it.

onnxruntime fuses nodes and lays out tensors in blocks of channels, so that the costs of nodes by
themselves mislead. Here a graph is given to onnxruntime, and its optimized graph is read back. The
nodes of that are timed, each once for all graphs.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from superopt import ort
from superopt.cost.planner import KernelCounts
from superopt.cost.roofline import NODE_OVERHEAD_US
from superopt.ir import graph as ir_graph
from superopt.ir.concrete_graph import concrete_graph
from superopt.ir.op import InferError
from superopt.ir.stand_ins import shrink_tables
from superopt.onnx_io.export.exporter import ExportError, export_graph
from superopt.onnx_io.export.stand_in_file import StandInFile
from superopt.onnx_io.read.packed_parts import to_model_proto
from superopt.onnx_io.runtime_nodes import (
    RuntimeNode,
    drawn_inputs,
    models_of_nodes,
    read_runtime_nodes,
)

UNOPTIMIZED = "disable"  # the level at which an optimized model is loaded: it is not changed again
MAX_PLANNED_BYTES = 512 << 20  # of the weights of a graph that is planned as a whole
MAX_TABLE_BYTES = 32 << 20  # of a table in a plan of which only rows are read
PLAN_LIMIT_SECONDS = 30.0  # of planning one graph
COMPARED_SECONDS, COMPARED_ROUNDS = 0.1, 15  # of nodes before and after a rewrite
DECISIVE_RATIO = 0.7  # of times after a rewrite and before; below it nothing is compared in turns
COMPARED_US, MAX_COMPARED_NODES = 100.0, 64  # of a timed model, for which nodes are repeated


@dataclass(slots=True)
class RuntimePlans:
    """Prices graphs by the nodes that onnxruntime runs; see `superopt.cost.planner.Planner`.

    sizes: of symbols. is_over: True once nothing more may be measured. planned_count: graphs that
    were planned; measured_count: distinct nodes.
    """

    opset: int
    ir_version: int
    threads: int
    sizes: Mapping[str, int]
    is_over: Callable[[], bool] = lambda: False
    free_rules: Collection[str] = ()
    has_streams: bool = False
    planned_count: int = 0
    measured_count: int = 0
    store_hits: int = 0
    estimated_count: int = 0
    nodes: dict[str, RuntimeNode] = field(default_factory=dict)
    _weights: StandInFile = field(default_factory=StandInFile)
    _us: dict[str, float] = field(default_factory=dict)
    _planned: dict[tuple[ir_graph.Value, ...], KernelCounts | None] = field(default_factory=dict)
    _compared: dict[object, float | None] = field(default_factory=dict)

    def kernels_of(self, graph: ir_graph.Graph) -> KernelCounts | None:
        """Return the nodes that onnxruntime runs for a graph; None if it does not run it."""
        if graph.outputs not in self._planned:
            self._planned[graph.outputs] = self._plan(graph)
        return self._planned[graph.outputs]

    def plan_us(self, graph: ir_graph.Graph) -> float:
        """Return the microseconds of a run of a graph; 0 if onnxruntime does not run it."""
        return sum(n * self.us(key) for key, n in (self.kernels_of(graph) or {}).items())

    def us(self, key: str) -> float:
        """Return the microseconds of a node: of its fastest run in any plan."""
        return self._us[key]

    def measure(self, keys: Iterable[str]) -> bool:
        """Return whether there is time to compare nodes in turns: each was timed when it was
        planned."""
        return not self.is_over()

    def compare(self, old: KernelCounts, new: KernelCounts) -> None:
        """Time some nodes in turns with others."""
        pair = _pair(old, new)
        if pair in self._compared:
            return
        back = self._compared.get(_pair(new, old))  # else both directions could gain by noise
        self._compared[pair] = self._ratio_in_turns(old, new) if back is None else 1 / back

    def known_ratio(self, old: KernelCounts, new: KernelCounts) -> float | None:
        """Return the time of `new` over that of `old` if they were timed in turns."""
        return self._compared.get(_pair(old, new))

    def _plan(self, graph: ir_graph.Graph) -> KernelCounts | None:
        self.planned_count += 1
        model = self._export(graph)
        if model is None:
            return None
        plan = ort.node_plan(model, threads=self.threads, limit=PLAN_LIMIT_SECONDS)
        if isinstance(plan, ort.Failure):
            return None
        found = read_runtime_nodes(plan.model, plan.results)
        if found is None:
            return None
        for name, n in found:
            self.nodes.setdefault(n.key, n)
            us = max(plan.us[name], NODE_OVERHEAD_US)
            self._us[n.key] = min(self._us.get(n.key, math.inf), us)
        self.measured_count = len(self._us)
        return Counter(n.key for _, n in found)

    def _export(self, graph: ir_graph.Graph) -> ort.Source | None:
        """Return the model of a graph at these sizes; None if there is none."""
        try:
            made = shrink_tables(concrete_graph(graph, self.sizes), MAX_TABLE_BYTES)
            if sum(w.nbytes for w in ir_graph.constants(made)) > MAX_PLANNED_BYTES:
                return None
            exported = export_graph(made, opset=self.opset, ir_version=self.ir_version)
        except (KeyError, ValueError, ExportError, InferError, ZeroDivisionError):
            return None
        are_shared = self._weights.replace_weights(exported)
        proto = to_model_proto(exported)
        for number, n in enumerate(proto.graph.node):
            n.name = f"n{number}"
        data = bytes(proto.SerializeToString())
        return self._weights.write_model(data) if are_shared else data

    def _ratio_in_turns(self, old: KernelCounts, new: KernelCounts) -> float | None:
        """Return the time of the new nodes over that of the old ones; None if they do not run, or
        if profiles decide."""
        if not old or not new:
            return None
        if sum(old.values()) + sum(new.values()) > MAX_COMPARED_NODES or self.is_over():
            return None
        before, after = (sum(n * self.us(k) for k, n in some.items()) for some in (old, new))
        if after < DECISIVE_RATIO * before:
            return None
        repeats = max(1, min(round(COMPARED_US / min(before, after)), MAX_COMPARED_NODES // 4))
        groups = [
            [self.nodes[k] for k, n in some.items() for _ in range(n * repeats)]
            for some in (old, new)
        ]
        found = ort.time_interleaved(
            models_of_nodes(groups, self._weights), drawn_inputs(groups), threads=self.threads,
            seconds=COMPARED_SECONDS, rounds=COMPARED_ROUNDS, level=UNOPTIMIZED,
        )  # fmt: skip
        if isinstance(found, ort.Failure):
            return None
        old_times, new_times = found
        return statistics.median(b / a for a, b in zip(old_times, new_times, strict=True))


def _pair(old: KernelCounts, new: KernelCounts) -> object:
    return frozenset(old.items()), frozenset(new.items())
