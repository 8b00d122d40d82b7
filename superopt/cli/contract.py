"""The signatures of `superopt.api.functions` that the commands call.

The commands load it by `api()`, so that `superopt --help` loads none of it.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from superopt.report.compilation.compile_report import (
    CompilationReport,
    ExportReport,
    OutputRange,
    TuningReport,
)
from superopt.report.compilation.profile import Profile
from superopt.report.data.diagram import RuleDiagram
from superopt.report.data.mutation import Mutation
from superopt.report.data.report import (
    BenchRow,
    Derivation,
    Event,
    Finding,
    Generation,
    Rejected,
    Report,
    RuleCount,
    RuleInfo,
    RuleVerdict,
    StoreStats,
    Verdict,
)
from superopt.report.text.cache_listing import CacheListing, Pruned
from superopt.report.text.library_counts import RuleReport
from superopt.report.text.partial_rule import PartialPage

API_MODULE = "superopt.api.functions"


class Optimized(Protocol):
    """The result of `optimize`."""

    @property
    def report(self) -> Report: ...
    @property
    def changed(self) -> bool: ...
    @property
    def decisions(self) -> str:
        """Return the decision log as text, for `replay`."""

    def explain(self, names: Iterable[str]) -> tuple[Rejected, ...]:
        """Return the rules among `names`, and the rules at values among `names`, that do not apply,
        each with the reason."""

    def save(self, path: Path) -> Path | None:
        """Write the model and its certificate and return the certificate's path; if nothing
        changed, write a byte-identical copy of the input and no certificate."""


class Api(Protocol):
    def optimize(
        self,
        model: Path,
        *,
        budget: float,
        target: str,
        rules: Sequence[Path],
        library: bool,
        shapes: Mapping[str, int],
        inputs: Path | None,
        threads: int | None,
        seed: int,
        alpha: float | None,
        progress: Callable[[Event], None] | None,
        stop: Callable[[], bool] | None,
        replay: str | None,
        store: Path | None,
        cost: str,
        tier: str = "A",
        float_class: str = "E2",
        partial: bool = True,
        mutants: bool = False,
    ) -> Optimized:
        """Return the best checked model, also once `stop()` is true. Raises ModelError,
        CheckFailed."""

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
        certificate: Path | None,
        rules: Sequence[Path],
        progress: Callable[[Event], None] | None,
        stop: Callable[[], bool] | None,
    ) -> Verdict: ...

    def bench(
        self,
        models: Sequence[Path],
        *,
        vs: Sequence[str] | None,
        threads: int | None,
        seconds: float,
        shapes: Mapping[str, int],
        progress: Callable[[Event], None] | None,
        stop: Callable[[], bool] | None,
        target: str,
        precision: str,
        vendor: bool,
        float_class: str,
    ) -> tuple[BenchRow, ...]: ...

    def tune(
        self,
        model: Path,
        *,
        threads: int | None,
        shapes: Mapping[str, int],
        budget: float | None,
        store: Path | None,
        progress: Callable[[Event], None],
        stop: Callable[[], bool],
        target: str,
        precision: str,
        vendor: bool,
        float_class: str,
    ) -> TuningReport: ...

    def compile_model(
        self,
        model: Path,
        *,
        threads: int | None,
        shapes: Mapping[str, int],
        dump: Path | None,
        float_class: str,
        target: str,
        precision: str,
        vendor: bool,
    ) -> CompilationReport: ...

    def profile(
        self,
        model: Path,
        *,
        threads: int | None,
        shapes: Mapping[str, int],
        inputs: Path | None,
        seconds: float,
        stop: Callable[[], bool],
        target: str,
        precision: str,
        vendor: bool,
        float_class: str,
    ) -> Profile: ...

    def export_model(
        self,
        model: Path,
        *,
        output: Path,
        threads: int | None,
        shapes: Mapping[str, int],
        float_class: str,
    ) -> ExportReport: ...

    def run_model(
        self,
        model: Path,
        *,
        inputs: Path,
        output: Path | None,
        threads: int | None,
        target: str,
        precision: str,
        vendor: bool,
        float_class: str,
    ) -> tuple[OutputRange, ...]: ...

    def derive(
        self,
        a: Path,
        b: Path,
        *,
        rules: Sequence[Path],
        library: bool,
        limit: float,
        progress: Callable[[Event], None] | None,
        stop: Callable[[], bool] | None,
    ) -> Derivation: ...

    def rule_stats(self, files: Sequence[Path]) -> tuple[RuleCount, ...]: ...

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
        progress: Callable[[Event], None] | None,
    ) -> Generation: ...

    def generate_mutants(
        self,
        out: Path,
        *,
        families: Sequence[str],
        max_ops: int,
        seed: int,
        model: Path | None,
        progress: Callable[[Event], None] | None,
    ) -> Mutation: ...

    def node_outputs(self, model: Path, node: str) -> tuple[str, ...]:
        """Return the outputs of the node with this name; empty if there is no such node."""

    def doctor(self) -> tuple[Finding, ...]: ...

    def rules(self, files: Sequence[Path]) -> tuple[RuleInfo, ...]:
        """Return the library's rules, then those of the files."""

    def rule_diagram(self, name: str, files: Sequence[Path]) -> RuleDiagram | None:
        """Return both sides of a rule as graphs; None if no rule has this name."""

    def partial_rule(self, name: str, files: Sequence[Path]) -> PartialPage | None:
        """Return what is known of a program and its mutant; None if no pair has this name."""

    def rule_report(self, files: Sequence[Path], name_filter: str) -> RuleReport:
        """Return the rules of the library and the files with `name_filter` in their name or their
        file's."""

    def check_rules(
        self, file: Path, *, seed: int, limit: float, progress: Callable[[Event], None] | None
    ) -> tuple[RuleVerdict, ...]: ...

    def cache_stats(self, store: Path | None) -> StoreStats: ...
    def cache_list(self) -> CacheListing: ...
    def cache_prune(self, max_size: str | None, older_than: str | None) -> Pruned:
        """Remove files, the least recently used first."""

    def cache_clear(self, store: Path | None) -> int:
        """Remove all entries; return how many there were."""

    def cache_export(self, store: Path | None, file: Path) -> int:
        """Write all entries atomically; return how many there are."""

    def cache_import(self, store: Path | None, file: Path) -> int:
        """Add the entries of an exported store; return how many are new."""


def api() -> Api:
    """Import and return the module `superopt.api.functions`."""
    return cast(Api, importlib.import_module(API_MODULE))
