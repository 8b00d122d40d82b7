"""The result of an optimization, and the files that are written from it.

The files are the optimized model and its decision log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from superopt.cost.graph_cost import GraphCosts
from superopt.cost.machine import Machine
from superopt.cost.speedup import SpeedupInterval
from superopt.cost.store import Times
from superopt.loading.cost_clock import CostClock
from superopt.loading.request import Request
from superopt.onnx_io.export.model_file import copy_unchanged, move_model
from superopt.onnx_io.export.scratch_folder import ScratchFolder
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source, read_model
from superopt.optimization.admit_rules import AdmittedRules
from superopt.optimization.attribution import NO_ATTRIBUTION, Attribution
from superopt.optimization.candidate import Candidate
from superopt.report.data.certificate import Certificate
from superopt.report.data.report import WorstStep
from superopt.search.decision_log import decisions_json
from superopt.search.improve import Outcome
from superopt.search.move import Refusals


@dataclass(frozen=True, slots=True)
class OptimizationResult:
    """The result of an optimization. `winner` is None if no faster candidate passed.

    best: the candidate that was timed; times, ratio: of it and the original; costs: the cost model;
    clock: None if costs are estimates; worst_step: adds the largest error, or why there is none;
    attribution: where the speed comes from.
    """

    source: Source
    model: Model
    request: Request
    machine: Machine
    outcome: Outcome
    refusals: Refusals
    winner: Candidate | None
    best: Candidate | None
    times: Times
    ratio: SpeedupInterval | None
    cost_before: float
    cost_after: float
    costs: GraphCosts
    clock: CostClock | None
    notes: tuple[str, ...]
    scratch: ScratchFolder
    admitted_rules: AdmittedRules
    worst_step: WorstStep | str
    attribution: Attribution = NO_ATTRIBUTION


def save_model(result: OptimizationResult, path: Path) -> Certificate | None:
    """Write the checked file by an atomic rename, or a byte-identical copy of the input. Return the
    file's certificate; None for a copy, and for a model that has none.

    A model with external data is written again: its new data file is named after the model file,
    and weights that are beside it or below already stay there.
    """
    if result.winner is None:
        copy_unchanged(result.source, path)
        return None
    certificate, made = result.winner.certificate, result.winner.source
    if not made.has_external_data:
        copy_unchanged(made, path)
        return certificate
    move_model(made, path, original=result.source, origins=result.winner.origins)
    if certificate is None:
        return None
    written = read_model(path)
    written.share_digests(result.source)
    return replace(certificate, optimized=written.sha256)


def decision_log(result: OptimizationResult) -> str:
    """Return the decision log, which `replay` takes; it has no rounds if nothing changed."""
    steps = result.winner.variant.steps if result.winner else ()
    return decisions_json(steps, result.request.rules, result.source.sha256)
