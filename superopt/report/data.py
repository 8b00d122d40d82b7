"""Reports as plain data: strings, numbers and tuples, so that they can be stored, sent and diffed.

Times are in microseconds where a name ends in `_us`, in seconds otherwise.  Errors of outputs are
absolute, against the original model evaluated in float64.
"""

from dataclasses import dataclass
from typing import Literal

from superopt.report.diagram import InParts, RuleDiagram

FORMAT = 2  # the version of the stored form; raised when a reader of the old form would go wrong

StepKind = Literal["rule", "tactic", "fold", "cse", "dce"]
# untaken: it matched and would have gained; match: the graph is not as the rule wants it
Reason = Literal[
    "cost", "untaken", "match", "condition", "shape", "cycle", "opset", "unsafe", "rounding"
]
Interval = tuple[float, float, float]  # low, middle, high


@dataclass(frozen=True, slots=True)
class Step:
    """One rewrite that was applied.

    `where` names the values that were rewritten; `saves_us` is by the cost model, and may be
    negative for a step that only prepares another.  `tier` says how far the rule is proved, and
    `float_class` (E0 to E3) how far it may move a float; both as in the rule library.
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
    """A rewrite that was not applied, and why; `count` places were alike."""

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
    """How far one output is from the reference, beside how far the original itself is."""

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


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The numerical check: over how many `inputs`, by which `method`, and what it left out."""

    passed: bool
    inputs: int
    outputs: tuple[OutputError, ...]
    method: str
    skipped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorstStep:
    """The step that adds most to the error of the output to which rewriting added most, found by
    bisection.

    first, last: its number among the steps, from 1; two numbers where time ran out before it was
    one step. of: all steps. rules, where: of these steps. before, after: the largest error of
    `output` without and with them, on `inputs`, a kind of those of the check.
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


# Why rules were never tried on a model.  opset: it cannot say what they make; divides: by what may
# be 0; float, tier: they change floats too much, or are proved too little, for what was asked;
# unseen: they may be used, and nothing came of it: they match nowhere, or led to no better graph.
Bar = Literal["opset", "divides", "float", "tier", "unseen"]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rules that were not applied anywhere, by what stood in the way."""

    bar: Bar
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All that is known of one optimization.

    `speedup` is the interval of the ratio of latencies, above 1 when the result is faster; None
    where nothing was timed.  `opaque`: nodes that were carried through untouched, each with why.
    `operators`: how many nodes of each type there are, before and after. `rules`: those of the
    steps, with their proofs. `worst_step`: None where no step adds any error, and where nobody
    looked: `worst_step_note` says which. `partial`: of rules of programs that are equal in parts.
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
    left_out: tuple[LeftOut, ...]
    check: CheckResult | None
    worst_step: WorstStep | None
    worst_step_note: str
    search: SearchStats | None
    notes: tuple[str, ...]
    machine: str
    changed: bool
    versions: tuple[tuple[str, str], ...]
    partial: tuple[InParts, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputVerdict:
    """What is known of one output: `proved` for all inputs; `refuted` by an input on which it
    differs; `unknown`, and what is open. `reason` is one line."""

    name: str
    decision: Literal["proved", "refuted", "unknown"]
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What comparing two models found.

    `proved`: equal by a proof or by structure; `agrees`: equal on every input tried, which proves
    nothing; `unknown`: nothing could be compared; `differs`: refuted.  `certified`, `refused`: what
    the replay of a certificate says.  `reason` is one line.  `outputs`: each by itself, in order;
    none where inputs or outputs are not the same, and of a certificate.
    """

    decision: Literal["proved", "agrees", "unknown", "differs", "certified", "refused"]
    reason: str
    check: CheckResult | None
    notes: tuple[str, ...] = ()
    outputs: tuple[OutputVerdict, ...] = ()


@dataclass(frozen=True, slots=True)
class DerivedStep:
    """One rewrite between two models: the rule, whether it was applied on the way from the first
    one (else it leads back from the second), and the model's outputs afterwards as terms. tier,
    float_class: the rule's, as in `RuleInfo`."""

    rule: str
    forward: bool
    after: str
    tier: str
    float_class: str


@dataclass(frozen=True, slots=True)
class Derivation:
    """Whether the equality of two models follows from the rules, and by which chain of them.
    differ: they are not equal, so that no chain was looked for."""

    derived: bool
    reason: str
    steps: tuple[DerivedStep, ...]
    graphs: int
    seconds: float
    differ: bool = False


@dataclass(frozen=True, slots=True)
class LevelCount:
    """A level of an enumeration: candidates; distinct tensors and equal pairs up to it; pairs that
    earlier equations did not explain, and the equations that do. Seconds for either part. cut: the
    candidates are every nth of all, as many as there is memory for."""

    candidates: int
    tensors: int
    pairs: int
    unexplained: int
    equations: int
    enumerating: float
    relating: float
    cut: int = 1


@dataclass(frozen=True, slots=True)
class FamilyCount:
    """What became of a family's candidates, down to its rules. doubtful: pairs that no equation
    can say. laws: equations, and pairs beside them; followed: those that follow from rules of
    others. unread: claims of which no reading survived. refuted: laws that hold at the family's
    sizes only, as rules for these. idle: claims of which the rules do nothing. unproved:
    rules that are tried and not proved. partial: pairs that are equal in parts. Seconds of each
    part. wrong: readings of claims that were refuted, of each claim the most general one."""

    family: str
    levels: tuple[LevelCount, ...]
    doubtful: int
    equations: int
    pairs: int
    laws: int
    followed: int
    claims: int
    covered: int
    unread: int
    refuted: tuple[str, ...]
    idle: tuple[str, ...]
    unproved: tuple[str, ...]
    derivable: int
    rules: int
    partial: int
    enumerating: float
    closing: float
    wrong: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """A run of the rule generator. folder: where its files are. lost: numbers of the lines of its
    journal that could not be read. MB, seconds."""

    families: tuple[FamilyCount, ...]
    folder: str
    lost: tuple[int, ...]
    seconds: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One model in one runtime; `speedup` is against the first row's latency."""

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
    """What the cost store holds."""

    path: str
    entries: int
    bytes: int
    machines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RuleInfo:
    """A rule as people read it."""

    name: str
    text: str
    tier: str
    float_class: str
    source: str


@dataclass(frozen=True, slots=True)
class RuleCount:
    """The rules of one file: how many, how many with several outputs, how many of each float class
    and of each origin."""

    file: str
    rules: int
    several: int
    float_classes: tuple[tuple[str, int], ...]
    origins: tuple[tuple[str, int], ...]


Decision = Literal["proved", "passed", "untestable", "refuted"]


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """What checking a rule found: `passed` the tests is not `proved`. source: file and line.
    counterexample: the smallest one of a rule that is refuted, a line for each operand and side.
    float_class: that its text says; computed: that of its operations, of a rule that stands."""

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
    """Something that happened during a long call. `done` is the part of the whole call behind us,
    in [0, 1]; None where it cannot be said. `best_us` is the cost of the best graph so far."""

    stage: str
    text: str
    done: float | None = None
    best_us: float | None = None
