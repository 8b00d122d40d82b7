"""A stand-in for `superopt.api.functions`: answers at once, and keeps what it was asked."""

import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from superopt.errors import Aborted
from superopt.report.compilation.compile_report import (
    CompilationReport,
    ExportReport,
    FallbackNode,
    OutputRange,
    Port,
    TunedKernel,
    TuningReport,
)
from superopt.report.compilation.profile import KernelProfile, Profile
from superopt.report.data.diagram import RuleDiagram
from superopt.report.data.generation import FamilyCount, Generation, LevelCount
from superopt.report.data.mutation import MutantCount, Mutation
from superopt.report.data.report import (
    BenchRow,
    Derivation,
    DerivedStep,
    Event,
    Finding,
    Rejected,
    Report,
    RuleCount,
    RuleInfo,
    RuleVerdict,
    StoreStats,
    Verdict,
)
from superopt.report.text.cache_listing import CachedFile, CacheListing, Pruned
from superopt.report.text.library_counts import RuleReport
from tests.support.report.sample_report import BEFORE, FASTER, UNCHANGED
from tests.support.report.sample_rules import DIAGRAM, RULES

Progress = Callable[[Event], None] | None
Stop = Callable[[], bool] | None


LEVEL = LevelCount(55_128, 46_614, 10_831, 2_146, 69, 0.1, 0.2)
CUT = LevelCount(1_431_271, 1_111_104, 320_172, 2_146, 69, 1.0, 2.0, 3)
FAMILY = FamilyCount(
    *("matrices", (LEVEL, CUT), 0, 85, 1405, 1490, 1452, 80, 16, 2),
    *(("a(x: f[3, 3]): Relu(x) => x",), ("a(x: f): Neg(x) => x",)),
    *(("a(x: f): Log(x) => x",), 0, 63, 7, 0.3, 10.0, 12),
)
GENERATION = Generation((FAMILY,), "found", (7,), 10.5, 110.0)
COMPILATION = CompilationReport(
    *("model.onnx", 2, 1.25, 69, 21, 24, 94_811_000, 8_720_000),
    (FallbackNode("TopK best", "TopK has no tensor expression"),),
    sizes=(("n", 4),),
)
_REDUCTION = "horizontal_reduction lanes=8"
_TILES = "winograd m=4 separate=0 block=2 rows=2 columns=2 vectors=4"
TUNED = TuningReport(
    (
        TunedKernel("f32[1, 64, 55, 55]", 2, 240e-6, 185e-6, "gemm rows=6", _TILES, 111, 111),
        TunedKernel("f32[1, 1000]", 1, 12.1e-6, 12.1e-6, _REDUCTION, _REDUCTION, 3, 7),
    ),
    85.4,
)
_SLOW = KernelProfile(
    "/layer/Relu", ("Conv", "Add", "Relu"), "f32[1, 64, 56, 56]", "winograd m=4", 1e-3,
    75_070_520, 231_211_008, 1_753_088, 6.8e-4, 4e-5,
)  # fmt: skip
PROFILE = Profile(
    "model.onnx", (("n", 4),), 2, "AMD EPYC, 2 cores, Linux", 100, 2e-3, 110e9,
    ((1 << 14, 150e9), (1 << 28, 27e9)),
    (
        KernelProfile(
            "", ("copy",), "f32[1, 3, 224, 224]", "transpose", 1e-4, 0, 0, 1_204_224, 0.0, 1e-5
        ),
        _SLOW,
        KernelProfile("best", ("TopK",), "", "onnxruntime", 8e-4, 0, 0, 0, 0.0, 0.0),
    ),
)  # fmt: skip
OUTPUTS = (
    OutputRange("logits", "float32[1, 1000]", -1.5, 2.25),
    OutputRange("names", "object[3]", None, None),
)
EXPORTED = ExportReport(
    *("model.onnx", "model", 2, ("avx2", "fma")),
    (Port("x", "float32", (1, 3, 224, 224), 602_112),),
    (Port("logits", "float32", (1, 1000), 4000), Port("n", "int64", (), 8)),
    (("out/libmodel.so", 63_624), ("out/model.h", 3004), ("out/model.weights", 46_810_000)),
    system="Linux on x86-64",
)
STEP = DerivedStep("r", True, "Relu(x)", "A", "E1")


@dataclass(frozen=True)
class Optimized:
    report: Report
    source: Path

    @property
    def changed(self) -> bool:
        return self.report.changed

    decisions: str = "decisions\n"

    def explain(self, names: Iterable[str]) -> tuple[Rejected, ...]:
        missed = Rejected("relu-concat", ("h5",), "match", "operand 0 of Relu is from Conv", 1)
        return (missed,) if {"h5", "relu-concat"} & set(names) else ()

    def save(self, path: Path) -> None:
        content = b"faster" if self.changed else self.source.read_bytes()
        path.write_bytes(content)


@dataclass
class FakeApi:
    """Returns what it was made with; raises `error` where one is given."""

    report: Report = FASTER
    error: BaseException | None = None
    verdict: Verdict = field(default=Verdict("agrees", "equal on 5 inputs", FASTER.check))
    derivation: Derivation = field(default=Derivation(True, "by 1 rewrite", (STEP,), 5, 0.1))
    rule_verdicts: tuple[RuleVerdict, ...] = ()
    interrupt: int = 0  # how many SIGINTs to send while optimizing
    sent: signal.Signals = signal.SIGINT  # while mutants are made
    asked: dict[str, object] = field(default_factory=dict)
    stopped: bool = False

    def optimize(
        self,
        model: Path,
        *,
        budget: float | None,
        target: str,
        precision: str = "fp32",
        rules: Sequence[Path],
        library: bool,
        shapes: Mapping[str, int],
        inputs: Path | None,
        threads: int | None,
        seed: int,
        alpha: float | None,
        progress: Progress,
        stop: Stop,
        replay: str | None,
        store: Path | None,
        cost: str,
        tier: str = "A",
        float_class: str = "E2",
        partial: bool = True,
        mutants: bool = False,
        ablate: bool = False,
    ) -> Optimized:
        self.asked = {name: value for name, value in locals().items() if name != "self"}
        assert progress is not None
        assert stop is not None
        progress(Event("load", "320 nodes"))
        progress(Event("search", "100 graphs", 0.5, 1800.0))
        for _ in range(self.interrupt):
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.01)
        self.stopped = stop()
        if self.error:
            raise self.error
        return Optimized(self.report, model)

    def verify(
        self,
        a: Path,
        b: Path,
        *,
        inputs: Path | None,
        shapes: Mapping[str, int],
        seed: int,
        method: str,
        limit: float,
        max_steps: int | None,
        certificate: Path | None,
        rules: Sequence[Path],
        progress: Progress,
        stop: Stop,
    ) -> Verdict:
        return self.verdict

    def rule_stats(self, files: Sequence[Path]) -> tuple[RuleCount, ...]:
        counts = (("E0", 2), ("E1", 1))
        return (RuleCount("some.rules", 3, 1, counts, (("hand", 3),)),)

    def generate_rules(
        self,
        out: Path,
        *,
        families: Sequence[str],
        ops: str | None,
        shapes: str | None,
        max_ops: int,
        jobs: int,
        ray: str | None,
        seed: int,
        progress: Progress,
    ) -> Generation:
        self.asked = {name: value for name, value in locals().items() if name != "self"}
        progress(Event("generate", "rows: 1 operators"))
        for _ in range(self.interrupt):
            signal.raise_signal(signal.SIGINT)
        return GENERATION

    def partial_rule(self, name: str, files: Sequence[Path]) -> None:
        return None

    def generate_mutants(
        self,
        out: Path,
        *,
        families: Sequence[str],
        max_ops: int,
        seed: int,
        model: Path | None,
        progress: Progress,
    ) -> Mutation:
        self.asked = {name: value for name, value in locals().items() if name != "self"}
        progress(Event("mutants", "borders: 1 of 9 pairs", 0.1))
        for _ in range(self.interrupt):
            signal.raise_signal(self.sent)
        count = MutantCount("borders", 9, 4, 3, {"no formula fits the sizes": 5}, 1.25, 3)
        return Mutation((count,), "own")

    def derive(
        self,
        a: Path,
        b: Path,
        *,
        rules: Sequence[Path],
        library: bool,
        limit: float,
        progress: Progress,
        stop: Stop,
    ) -> Derivation:
        self.asked |= {"limit": limit, "rules": rules, "library": library}
        return self.derivation

    def bench(
        self,
        models: Sequence[Path],
        *,
        vs: Sequence[str] | None,
        threads: int | None,
        seconds: float,
        shapes: Mapping[str, int],
        progress: Progress,
        stop: Stop,
        **on: object,
    ) -> tuple[BenchRow, ...]:
        self.asked = {"vs": vs, "seconds": seconds, **on}
        return tuple(
            BenchRow(str(m), name, BEFORE, None) for m in models for name in vs or ("ort",)
        )

    def compile_model(
        self,
        model: Path,
        *,
        threads: int | None,
        shapes: Mapping[str, int],
        dump: Path | None,
        float_class: str,
        **on: object,
    ) -> CompilationReport:
        self.asked = {
            "threads": threads, "shapes": shapes, "dump": dump, "float_class": float_class, **on
        }  # fmt: skip
        return COMPILATION

    def tune(self, model: Path, *, stop: object, progress: object, **asked: object) -> TuningReport:
        self.asked = dict(asked)
        return TUNED

    def profile(self, model: Path, *, stop: object, **asked: object) -> Profile:
        self.asked = dict(asked)
        return PROFILE

    def export_model(self, model: Path, **asked: object) -> ExportReport:
        self.asked = dict(asked)
        return EXPORTED

    def run_model(
        self, model: Path, *, inputs: Path, output: Path | None, threads: int | None, **on: object
    ) -> tuple[OutputRange, ...]:
        self.asked = {"inputs": inputs, "output": output, "threads": threads, **on}
        return OUTPUTS

    def node_outputs(self, model: Path, node: str) -> tuple[str, ...]:
        return {"/cell/MatMul": ("h1_i",), "/cell/Tanh": ("t",)}.get(node, ())

    def doctor(self) -> tuple[Finding, ...]:
        return (
            Finding("onnxruntime", "ok", "1.31.1", "measures and checks"),
            Finding(
                "openvino", "missing", "", "superopt bench --vs openvino: pip install openvino"
            ),
        )

    def rules(self, files: Sequence[Path]) -> tuple[RuleInfo, ...]:
        return (RuleInfo("relu-concat", "relu-concat: Relu(x) => x", "C", "E0", "library"),)

    def rule_diagram(self, name: str, files: Sequence[Path]) -> RuleDiagram | None:
        return DIAGRAM if name == DIAGRAM.name else None

    def rule_report(self, files: Sequence[Path], part: str) -> RuleReport:
        some = tuple(r for r in RULES.rules if part in r.name or part in r.source)
        return replace(RULES, part=part, rules=some)

    def check_rules(
        self, file: Path, *, seed: int, limit: float, progress: Progress
    ) -> tuple[RuleVerdict, ...]:
        return self.rule_verdicts

    def cache_stats(self, store: Path | None) -> StoreStats:
        return StoreStats("costs.sqlite", 41, 16_384, ("AMD EPYC 7B13, 2 cores",))

    def cache_list(self) -> CacheListing:
        files = (
            CachedFile("constants/ab.constant", "packed constants", 3_000_000, 0.0),
            CachedFile("objects/cd.o", "object code", 2_000, 86_400.0),
            CachedFile("objects/ef.o", "object code", 1_000, 0.0),
        )
        return CacheListing("cache", 4 << 30, 3_003_000, files)

    def cache_prune(self, max_size: str | None, older_than: str | None) -> Pruned:
        assert (max_size, older_than) == ("2GiB", "30d")
        return Pruned("cache", 2, 3_001_000, 2_000)

    def cache_clear(self, store: Path | None) -> int:
        return 41

    def cache_export(self, store: Path | None, file: Path) -> int:
        file.write_text("costs")
        return 41

    def cache_import(self, store: Path | None, file: Path) -> int:
        raise Aborted("aborted")


UNCHANGED_API = FakeApi(report=UNCHANGED)
