"""What the commands call, in one place: the signatures of `superopt.api`.

The commands reach it through `api()`, so that starting `superopt --help` loads none of it.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from superopt.report.cache import CacheListing, Pruned
from superopt.report.compiled import Compilation, Exported, OutputValue, Tuned
from superopt.report.data import (
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
from superopt.report.diagram import RuleDiagram
from superopt.report.library import RuleReport
from superopt.report.mutation import Mutation
from superopt.report.partial import PartialPage
from superopt.report.profile import Profile

HOME = "superopt.api"


class Optimized(Protocol):
    """What `optimize` returns."""

    @property
    def report(self) -> Report: ...
    @property
    def changed(self) -> bool: ...
    @property
    def decisions(self) -> str:
        """The decision log as text, which `replay` takes."""

    def explain(self, names: Iterable[str]) -> tuple[Rejected, ...]:
        """Why rules do not apply: those among `names`, and all at the values among `names`."""

    def save(self, path: Path) -> Path | None:
        """Writes the model and its certificate, whose path it returns; if nothing changed, a
        byte-identical copy of the input and no certificate."""


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
        """Raises ModelError, CheckFailed; returns the best checked model once `stop()` is true."""

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
    ) -> Tuned: ...

    def compilation(
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
    ) -> Compilation: ...

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
    ) -> Exported: ...

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
    ) -> tuple[OutputValue, ...]: ...

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

    def values_of(self, model: Path, node: str) -> tuple[str, ...]:
        """The values that the node of this name writes; empty if there is no such node."""

    def doctor(self) -> tuple[Finding, ...]: ...

    def rules(self, files: Sequence[Path]) -> tuple[RuleInfo, ...]:
        """The library's rules, then those of the files."""

    def rule_diagram(self, name: str, files: Sequence[Path]) -> RuleDiagram | None:
        """Both sides of a rule as graphs; None if no rule has this name."""

    def partial_rule(self, name: str, files: Sequence[Path]) -> PartialPage | None:
        """What is known of a program and its mutant; None if no pair has this name."""

    def rule_report(self, files: Sequence[Path], part: str) -> RuleReport:
        """What is known of the library's rules and those of the files, of those with `part` in
        their name or their file's."""

    def check_rules(
        self, file: Path, *, seed: int, limit: float, progress: Callable[[Event], None] | None
    ) -> tuple[RuleVerdict, ...]: ...

    def cache_stats(self, store: Path | None) -> StoreStats: ...
    def cache_list(self) -> CacheListing: ...
    def cache_prune(self, max_size: str | None, older_than: str | None) -> Pruned:
        """Remove files, those not used for the longest time first."""

    def cache_clear(self, store: Path | None) -> int:
        """How many entries were removed."""

    def cache_export(self, store: Path | None, file: Path) -> int:
        """How many entries were written, by rename."""

    def cache_import(self, store: Path | None, file: Path) -> int:
        """How many entries were new."""


def api() -> Api:
    """The module `superopt.api`, loaded now."""
    return cast(Api, importlib.import_module(HOME))
