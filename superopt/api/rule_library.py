"""The public functions for rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from superopt.api.event_log import log_events
from superopt.errors import UsageError

if TYPE_CHECKING:
    from superopt.onnx_io.read.source import ModelLike
    from superopt.report.data.diagram import RuleDiagram
    from superopt.report.data.generation import Generation
    from superopt.report.data.mutation import Mutation
    from superopt.report.data.report import Event, RuleCount, RuleInfo, RuleVerdict
    from superopt.report.text.library_counts import RuleReport
    from superopt.report.text.partial_rule import PartialPage
    from superopt.rules.lang.rule import Rule

CORRECTED_SUFFIX = (
    ".corrected.rules"  # the suffix of the files that `rules generate --partial` writes
)


def read_rules(files: Sequence[str | Path] | None) -> tuple[Rule, ...]:
    """Parse rule files. Raises UsageError for an invalid file, and for two rules with one name."""
    from superopt.rules.lang.rule import parse_rules

    if isinstance(files, str):  # a str is a sequence, too
        raise UsageError(f"rules={files!r}", "it must be a sequence of files", f"pass [{files!r}]")
    out: list[Rule] = []
    for file in files or ():
        try:
            text = Path(file).read_text(
                encoding="utf-8-sig"
            )  # some editors write a byte order mark
        except (OSError, UnicodeDecodeError) as e:
            raise UsageError(
                f"{file} is not a file of rules", str(e), "pass a text file of rules"
            ) from None
        out += parse_rules(text, str(file))
    named: dict[str, Rule] = {}
    for rule in out:
        other = named.setdefault(rule.name, rule)
        if str(other) != str(rule):
            raise UsageError(
                f"two rules have the name {rule.name!r}",
                f"in {other.source} and {rule.source}",
                "rename one of them: names must be unique",
            )
    return tuple(named.values())


def rules_of_call(
    files: Sequence[str | Path] | None, library: bool, partial: bool
) -> tuple[tuple[Rule, ...], tuple[Rule, ...], dict[str, Rule]]:
    """The library's rules, those of the files, and the pairs of these; see `superopt.optimize`."""
    from superopt.loading.rule_library import load_library
    from superopt.rules.trial.float_class import with_computed_class

    own = tuple(map(with_computed_class, read_rules(files)))
    found = load_library() if library else ()
    return tuple(r for r in found if partial or not r.is_from_pair), own, read_pairs(files)


def read_pairs(files: Sequence[str | Path] | None) -> dict[str, Rule]:
    """Return the pairs of programs behind corrected mutants, by name, if their files are beside the
    rules."""
    beside = [
        Path(str(f).removesuffix(CORRECTED_SUFFIX) + ".pairs")
        for f in files or ()
        if str(f).endswith(CORRECTED_SUFFIX)
    ]
    try:
        return {p.name: p for p in read_rules([f for f in beside if f.exists()])}
    except UsageError:  # the user did not name these files; they are for drawings only
        return {}


def _rule_info(rule: Rule) -> RuleInfo:
    from superopt.report.data.report import RuleInfo
    from superopt.rules.library.records import tier

    return RuleInfo(rule.name, rule.text, tier(rule), rule.float_class, rule.source)


def rules(files: Sequence[str | Path] = ()) -> tuple[RuleInfo, ...]:
    """Return the library's rules, then those of the files."""
    from superopt.loading.rule_library import load_library

    return tuple(_rule_info(r) for r in (*load_library(), *read_rules(files)))


def rule_diagram(name: str, files: Sequence[str | Path] = ()) -> RuleDiagram | None:
    """Return both sides of a rule as graphs; None if no rule has this name.

    files: of additional rules; one of them hides a library rule with the same name.
    """
    from superopt.loading.rule_library import load_library
    from superopt.optimization.report import rule_report as known_

    own = read_rules(files)
    found = [r for r in (*load_library(), *own) if r.name == name]
    if not found:
        return None
    return known_.describe_rule(found[-1], found[-1] in own)


def partial_rule(name: str, files: Sequence[str | Path] = ()) -> PartialPage | None:
    """Return a program and its mutant, where they are equal, and the correction, all proved again;
    None if no pair has this name.

    files: of additional pairs (format: `rules/library/partial/families.pairs`); one of them hides a
        library pair with the same name. Raises UsageError if the equal regions cannot be written as
        formulas of the sizes.
    """
    from superopt.optimization.report import partial_rule_page as partial_page_

    try:
        return partial_page_.partial_rule_page(name, read_rules(files))
    except ValueError as e:
        raise UsageError(
            f"no regions are known for {name}",
            str(e),
            "operands need named sizes, as x: f[n, c, h, w], and the bounds of boxes must be "
            "formulas of them, at sizes from 8 to 24",
        ) from None


def rule_report(files: Sequence[str | Path] = (), name_filter: str = "") -> RuleReport:
    """Return both sides, proofs and times of the rules of the library and the files.

    name_filter: only rules with this text in their name or the name of their file.
    """
    from superopt.loading.rule_library import load_library
    from superopt.optimization.report import rule_report as known_

    return known_.report_rules(load_library(), read_rules(files), name_filter)


def rule_stats(files: Sequence[str | Path] = ()) -> tuple[RuleCount, ...]:
    """Count the rules of the library and the files, by file."""
    from superopt.loading.rule_library import load_library
    from superopt.optimization.report import rule_report as known_

    return known_.count_rules((*load_library(), *read_rules(files)))


def check_lowering_rules(limit: float = 20.0) -> tuple[RuleVerdict, ...]:
    """Prove the rules by which `compile` lowers programs, for all sizes.

    limit: seconds for the proof of each rule.
    """
    from superopt.verification.lowering_verdicts import judge_lowering_rules

    return judge_lowering_rules(limit)


def check_rules(
    file: str | Path,
    *,
    seed: int = 0,
    limit: float = 20.0,
    progress: Callable[[Event], None] | None = None,
) -> tuple[RuleVerdict, ...]:
    """Test each rule of a file on many shapes, over floats and a prime field, and prove for all
    sizes those that pass.

    limit: seconds for the proof of each rule. Raises UsageError for a file without rules.
    """
    from superopt.report.data.report import Event
    from superopt.verification import rule_verdict as judge_

    out: list[RuleVerdict] = []
    own = read_rules([file])
    if not own:
        raise UsageError(
            f"{file} contains no rules", "it is empty, or has only comments", "add a rule"
        )
    for n, rule in enumerate(own):
        if progress:
            progress(Event("check", rule.name, n / len(own)))
        out.append(judge_.judge_rule(rule, seed, limit))
    return tuple(out)


def generate_rules(
    out: str | Path,
    *,
    families: Sequence[str] = (),
    ops: str | None = None,
    shapes: str | None = None,
    max_ops: int = 4,
    jobs: int = 1,
    ray: str | None = None,
    seed: int = 0,
    progress: Callable[[Event], None] | None = None,
) -> Generation:
    """Find rules by enumeration and write them to the folder `out`: a file for each family, and
    account.json with counts of what was enumerated, kept and dropped.

    families: by name, default all.
    ops, shapes: a custom family instead: operators, such as "MatMul, Relu, Transpose(perm=(1, 0))",
        and the shapes of inputs and constants, "x=3x3, s=, i=eye:3x3".
    max_ops: the most operators of a graph; see `max_ops` and `complete_ops` of
        `superopt.generate.families.family.Family`. Seven families stop at 3; of most others, graphs
        of 4 operators are related only if they have an equal of at most 2. If the graphs of a level
        would take more than 6 GB, only every nth one is tried; `LevelCount.cut` is n.
    jobs: processes, at most as many as there are cores.
    ray: the address of a Ray cluster that does the work instead; "local" starts one with `jobs`
        CPUs.

    The files depend only on the arguments and the seed. A run that was killed continues when it is
    called again with the same folder.

    Raises UsageError for an unknown family, for operators and shapes that do not fit, for a folder
    of another run or one that is not writable, and if Ray is unavailable.
    """
    from superopt.rulegen import generate_rules as generate_

    for name, value, least in (("max_ops", max_ops, 1), ("jobs", jobs, 1), ("seed", seed, 0)):
        if value < least:
            raise UsageError(
                f"invalid {name}: {value}", f"it must be at least {least}", "pass a larger number"
            )
    order = generate_.GenerateRequest(
        Path(out),
        tuple(families),
        max_ops,
        ops,
        shapes,
        jobs,
        ray,
        seed,
        log_events("superopt.generate", progress),
    )
    return generate_.generate_rules(order)


def generate_mutants(
    out: str | Path,
    *,
    families: Sequence[str] = (),
    max_ops: int = 4,
    seed: int = 0,
    model: ModelLike | None = None,
    store: str | Path | None = None,
    progress: Callable[[Event], None] | None = None,
) -> Mutation:
    """Find partially equal programs by enumeration, prove for all sizes where they are equal, and
    find corrections of the rest.

    Writes to the folder `out`, for each family: NAME.pairs, programs and mutants;
    NAME.corrected.rules, proved rules; NAME.regions.json, the regions of each pair.

    families: by name, default all.
    max_ops: the most operators of a graph; of more than 4, one graph in several is tried, for want
        of memory and time (`cut` of a family's count). At most 200 pairs of a family are proved,
        those with the largest predicted saving. A run that was killed continues when it is called
        again with the same folder.
    model: instead of families, mutants of this model's own windows over images (convolutions,
        means), and of up to three convolutions or products together, at the model's shapes (of four
        operators, with max_ops 5 of five); NAME is the model's name. Mutants are kept if they cost
        less, by measured costs of superopt's own compiler, which are in `store` (default: in the
        user's cache folder).

    Raises UsageError for an unknown family, for families together with a model, and for a folder of
    another run; ModelError for an invalid model.
    """
    from superopt.compilation.node_timing import COMPILED_TIMERS
    from superopt.onnx_io.read.source import read_model
    from superopt.rulegen import family_mutants as mutants_
    from superopt.rulegen.model_mutants import generate_model_mutants
    from superopt.rulegen.subprogram_mutants import MAX_OPERATORS

    show = log_events("superopt.generate", progress)
    if model is not None:
        if families:
            raise UsageError(
                "model and families exclude each other",
                f"the families are {', '.join(families)}",
                "pass one of them",
            )
        if not MAX_OPERATORS <= max_ops <= 5:
            raise UsageError(
                f"invalid max_ops {max_ops} with a model",
                f"a model's programs have mutants of {MAX_OPERATORS} or 5 operators",
                "pass one of these",
            )
        if seed:
            raise UsageError(
                f"seed {seed} with a model",
                "the mutants of a model are not random",
                "leave the seed out",
            )
        source = read_model(model)
        place = None if store is None else Path(store)
        return generate_model_mutants(source, Path(out), place, show, COMPILED_TIMERS, max_ops)
    if max_ops < 1:
        raise UsageError(
            f"invalid max_ops {max_ops}", "it must be at least 1", "pass a larger number"
        )
    return mutants_.generate_family_mutants(Path(out), tuple(families), max_ops, seed, show)
