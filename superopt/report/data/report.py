"""Reports as plain data: strings, numbers and tuples, to be stored, sent and diffed.

Times are in microseconds where a name ends in `_us`, else in seconds. Errors of outputs are
absolute, against the original model evaluated in float64.
"""

from dataclasses import dataclass
from typing import Literal

from superopt.report.data.attribution import Ablation, WaterfallStage
from superopt.report.data.diagram import PartialRuleUse, RuleDiagram
from superopt.report.data.graph_change import GraphChange
from superopt.report.data.notebook import preformatted

REPORT_VERSION = (
    3  # the version of the stored form; raised when readers of the old form would misread it
)

StepKind = Literal["rule", "tactic", "fold", "cse", "dce"]
# untaken: it matched and would have gained; match: the rule does not match the graph
Reason = Literal[
    "cost", "untaken", "match", "condition", "shape", "cycle", "opset", "unsafe", "rounding"
]
Interval = tuple[float, float, float]  # low, median, high


@dataclass(frozen=True, slots=True)
class Step:
    """A rewrite that was applied.

    where: the values that were rewritten. saves_us: by the cost model; may be negative for a step
    that enables another. tier: the rule's proof; float_class: its float deviation (E0 to E3); both
    as in the rule library.
    """

    rule: str
    kind: StepKind
    where: tuple[str, ...]
    saves_us: float
    tier: str
    float_class: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """A rewrite that was not applied, and why; count: the number of places."""

    rule: str
    where: tuple[str, ...]
    reason: Reason
    detail: str
    count: int


@dataclass(frozen=True, slots=True)
class Latency:
    """The time of one run: the median, and the bounds of its confidence interval."""

    us_median: float
    us_low: float
    us_high: float
    runs: int
    threads: int
    runtime: str
    machine: str


@dataclass(frozen=True, slots=True)
class OutputError:
    """The error of one output against the reference, and the error of the original itself.

    Errors are infinite only where no element can be compared. rms: of the output. steps: the
    largest difference in quantization steps, and the original's own; None if the output is not of
    a quantization.
    """

    name: str
    max_error: float
    mean_error: float
    p99_error: float
    original_max_error: float
    original_mean_error: float
    original_p99_error: float
    rtol: float
    atol: float
    passed: bool
    note: str
    rms: float = 0.0
    steps: int | None = None
    original_steps: int | None = None


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of the numerical check: the number of `inputs`, the `method`, and what was
    skipped."""

    passed: bool
    inputs: int
    outputs: tuple[OutputError, ...]
    method: str
    skipped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorstStep:
    """The step that adds most error to the output that lost most accuracy, found by bisection.

    first, last: its number among the steps, from 1; they differ if time ran out. of: the number of
    all steps. rules, where: of these steps. before, after: the largest error of `output` without
    and with them, on `inputs`, a kind of the check's inputs.
    """

    first: int
    last: int
    of: int
    rules: tuple[str, ...]
    where: tuple[str, ...]
    output: str
    inputs: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class SearchStats:
    graphs_seen: int
    graphs_per_second: float
    seconds: float
    stop_reason: str
    partitions: int
    measured_ops: int
    store_hits: int


# Why rules were never applied to a model. opset: the model's opset lacks their operators; divides:
# they may divide by 0; float, tier: their float class or tier was not allowed; unseen: they matched
# nowhere, or led to no better graph.
UnusedReason = Literal["opset", "divides", "float", "tier", "unseen"]


@dataclass(frozen=True, slots=True)
class UnusedRules:
    """Rules that were applied nowhere, by reason."""

    bar: UnusedReason
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The full result of one optimization.

    speedup: the interval of the ratio of latencies, above 1 when the result is faster; None if
    nothing was timed. opaque: nodes without a tensor expression, each with the reason. operators:
    the number of nodes of each type, before and after. rules: those of the steps, with their
    proofs. worst_step: None if no step adds an error or none was searched for; `worst_step_note`
    says which. partial: applied rules of partially equal programs.
    graph: None if the model did not change, or is too large. compiled: the interval of the ratio of
    the result's latency in onnxruntime to that of the same model compiled by superopt; None if that
    was not timed. cost_source: where costs come from, if that is a plan for a GPU.
    waterfall: from the original to the result; ablation: None if that was not asked for.
    """

    version: int
    model_name: str
    model_sha256: str
    optimized_sha256: str
    nodes_before: int
    nodes_after: int
    operators: tuple[tuple[str, int, int], ...]
    opaque: tuple[tuple[str, str], ...]
    cost_before_us: float
    cost_after_us: float
    latency_before: Latency | None
    latency_after: Latency | None
    speedup: Interval | None
    steps: tuple[Step, ...]
    rules: tuple[RuleDiagram, ...]
    rejected: tuple[Rejected, ...]
    left_out: tuple[UnusedRules, ...]
    check: CheckResult | None
    worst_step: WorstStep | None
    worst_step_note: str
    search: SearchStats | None
    notes: tuple[str, ...]
    machine: str
    changed: bool
    versions: tuple[tuple[str, str], ...]
    partial: tuple[PartialRuleUse, ...] = ()
    graph: GraphChange | None = None
    compiled: Interval | None = None
    cost_source: str = ""
    waterfall: tuple[WaterfallStage, ...] = ()
    ablation: Ablation | None = None


@dataclass(frozen=True, slots=True)
class OutputVerdict:
    """The verdict on one output: `proved` for all inputs; `refuted` by an input on which it
    differs; `unknown`. `reason` is one line."""

    name: str
    decision: Literal["proved", "refuted", "unknown"]
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of comparing two models.

    `proved`: equal by a proof or by structure; `agrees`: equal on every tested input, which proves
    nothing; `within_steps`: so, but for quantized outputs, which differ by at most `steps`
    quantization steps, and rounding explains that; `unknown`: nothing could be compared; `differs`:
    refuted. `certified`, `refused`: the result of replaying a certificate. `reason` is one line.
    `outputs`: one verdict each, in order; empty if the interfaces differ, and for a certificate.
    `steps`: the largest difference on tested inputs; None if no output is of a quantization.
    `proved_steps`: of `proved`, by how many steps quantized outputs may differ in float32; 0 if
    that is not known, or none are quantized.
    """

    decision: Literal[
        "proved", "agrees", "within_steps", "unknown", "differs", "certified", "refused"
    ]
    reason: str
    check: CheckResult | None
    notes: tuple[str, ...] = ()
    outputs: tuple[OutputVerdict, ...] = ()
    steps: int | None = None
    proved_steps: int = 0

    def __repr__(self) -> str:
        return f"<Verdict {self.decision}: {self.reason}>"

    def __str__(self) -> str:
        rows = (f"  {o.name}: {o.decision}: {o.reason}" for o in self.outputs)
        return "\n".join([f"{self.decision}: {self.reason}", *rows])

    def _repr_html_(self) -> str:
        return preformatted(str(self))


@dataclass(frozen=True, slots=True)
class DerivedStep:
    """One rewrite between two models: the rule, its direction (forward: from the first model; else
    back from the second), and the model's outputs afterwards as terms. tier, float_class: the
    rule's, as in `RuleInfo`."""

    rule: str
    forward: bool
    after: str
    tier: str
    float_class: str


@dataclass(frozen=True, slots=True)
class Derivation:
    """Whether the equality of two models follows from the rules, and by which chain. differ: the
    models are not equal, so no chain was searched for."""

    derived: bool
    reason: str
    steps: tuple[DerivedStep, ...]
    graphs: int
    seconds: float
    differ: bool = False


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One model in one runtime; speedup: against the first row's latency."""

    model: str
    runtime: str
    latency: Latency | None
    speedup: Interval | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `superopt doctor`."""

    name: str
    status: Literal["ok", "missing", "problem"]
    version: str
    detail: str


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The location, size and contents of the cost store."""

    path: str
    entries: int
    bytes: int
    machines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RuleInfo:
    """A rule as text, with its tier and float class."""

    name: str
    text: str
    tier: str
    float_class: str
    source: str


@dataclass(frozen=True, slots=True)
class RuleCount:
    """The rules of one file: how many, how many with several outputs, and how many of each float
    class and origin."""

    file: str
    rules: int
    several: int
    float_classes: tuple[tuple[str, int], ...]
    origins: tuple[tuple[str, int], ...]


Decision = Literal["proved", "passed", "untestable", "refuted"]


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """The result of checking a rule: `passed` (the tests) is not `proved`. source: file and line.
    counterexample: the smallest one of a refuted rule, a line for each operand and side.
    float_class: the declared one; computed: that of its operations, if the rule stands.
    """

    name: str
    text: str
    decision: Decision
    detail: str
    source: str = ""
    counterexample: tuple[str, ...] = ()
    float_class: str = ""
    computed: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """An event during a long call. done: the finished part of the call in [0, 1]; None if unknown.
    best_us: the cost of the best graph so far.
    """

    stage: str
    text: str
    done: float | None = None
    best_us: float | None = None
