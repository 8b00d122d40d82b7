"""The public functions about rules; a part of `superopt.api`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from superopt.errors import UsageError

if TYPE_CHECKING:
    from superopt.onnx_io.read.source import ModelLike
    from superopt.report.data import Event, Generation, RuleCount, RuleInfo, RuleVerdict
    from superopt.report.diagram import RuleDiagram
    from superopt.report.library import RuleReport
    from superopt.report.mutation import Mutation
    from superopt.report.partial import PartialPage
    from superopt.rules.lang.rule import Rule

CORRECTED = ".corrected.rules"  # as `rules generate --partial` names them


def own_rules(files: Sequence[str | Path] | None) -> tuple[Rule, ...]:
    """The rules of files. Raises UsageError for what is none, and for two of one name."""
    from superopt.rules.lang.rule import parse_rules

    if isinstance(files, str):  # which is a sequence of letters
        raise UsageError(f"rules={files!r}", "it is a sequence of files", f"give [{files!r}]")
    out: list[Rule] = []
    for file in files or ():
        try:
            text = Path(file).read_text(encoding="utf-8-sig")  # some editors write a mark in front
        except (OSError, UnicodeDecodeError) as e:
            raise UsageError(
                f"{file} holds no rules", str(e), "name a text file of rules"
            ) from None
        out += parse_rules(text, str(file))
    named: dict[str, Rule] = {}
    for rule in out:
        other = named.setdefault(rule.name, rule)
        if str(other) != str(rule):
            raise UsageError(
                f"two rules are called {rule.name!r}",
                f"in {other.source} and {rule.source}",
                "give one of them another name: rules are told apart by these",
            )
    return tuple(named.values())


def own_pairs(files: Sequence[str | Path] | None) -> dict[str, Rule]:
    """The pairs of which corrected mutants were made, where these lie beside them, by name."""
    beside = [
        Path(str(f).removesuffix(CORRECTED) + ".pairs")
        for f in files or ()
        if str(f).endswith(CORRECTED)
    ]
    try:
        return {p.name: p for p in own_rules([f for f in beside if f.exists()])}
    except UsageError:  # which nobody named; they are for pictures only
        return {}


def _info(rule: Rule) -> RuleInfo:
    from superopt.report.data import RuleInfo
    from superopt.rules.library.records import tier

    return RuleInfo(rule.name, rule.text, tier(rule), rule.float_class, rule.source)


def rules(files: Sequence[str | Path] = ()) -> tuple[RuleInfo, ...]:
    """The library's rules, then those of the files."""
    from superopt.pipeline.rule_library import load_library

    return tuple(_info(r) for r in (*load_library(), *own_rules(files)))


def rule_diagram(name: str, files: Sequence[str | Path] = ()) -> RuleDiagram | None:
    """Both sides of a rule as graphs; None if no rule has this name.

    files: of further rules; a rule of theirs goes before one of the library with its name.
    """
    from superopt.pipeline import known as known_
    from superopt.pipeline.rule_library import load_library

    own = own_rules(files)
    found = [r for r in (*load_library(), *own) if r.name == name]
    if not found:
        return None
    return known_.described(found[-1], found[-1] in own)


def partial_rule(name: str, files: Sequence[str | Path] = ()) -> PartialPage | None:
    """A program and its mutant, where that is right, and what corrects it, all proved anew; None if
    no pair has this name. files: of pairs (`rules/library/partial/families.pairs` says how they are
    written); a pair of theirs goes before one of the library with its name.

    Raises UsageError for a pair of which no regions can be said as formulas of its sizes.
    """
    from superopt.pipeline import partial_page as partial_page_

    try:
        return partial_page_.page(name, own_rules(files))
    except ValueError as e:
        raise UsageError(
            f"nothing is known of {name}",
            str(e),
            "operands need named sizes, as x: f[n, c, h, w], and boxes places that are formulas of"
            " them, at sizes from 8 to 24",
        ) from None


def rule_report(files: Sequence[str | Path] = (), part: str = "") -> RuleReport:
    """What is known of the library's rules and those of the files: both sides, proofs, times.

    part: only of rules with this in their name or the name of their file.
    """
    from superopt.pipeline import known as known_
    from superopt.pipeline.rule_library import load_library

    return known_.report(load_library(), own_rules(files), part)


def rule_stats(files: Sequence[str | Path] = ()) -> tuple[RuleCount, ...]:
    """The library's rules and those of the files, counted by file."""
    from superopt.pipeline import known as known_
    from superopt.pipeline.rule_library import load_library

    return known_.counted((*load_library(), *own_rules(files)))


def check_rules(
    file: str | Path,
    *,
    seed: int = 0,
    limit: float = 20.0,
    progress: Callable[[Event], None] | None = None,
) -> tuple[RuleVerdict, ...]:
    """Try every rule of a file on many shapes, over floats and a prime field, and prove what stands
    that for all sizes. limit: seconds for the proof of each.

    Raises UsageError for a file without rules.
    """
    from superopt.pipeline import judge as judge_
    from superopt.report.data import Event

    out: list[RuleVerdict] = []
    own = own_rules([file])
    if not own:
        raise UsageError(f"{file} holds no rules", "it is empty, or all comment", "add a rule")
    for n, rule in enumerate(own):
        if progress:
            progress(Event("check", rule.name, n / len(own)))
        out.append(judge_.judged(rule, seed, limit))
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
    """Find rules by enumeration, and write them to the folder `out`: a file for each family, and an
    account of what was enumerated, kept and dropped.

    families: by name, all of them by default.
    ops, shapes: a family of one's own instead, named custom: operators, such as "MatMul, Relu,
        Transpose(perm=(1, 0))", and the shapes of inputs and constants, "x=3x3, s=, i=eye:3x3".
    max_ops: operators of a graph at most; see `superopt.generate.family.Family` for `top` and
        `whole`: seven families stop at 3, and of most others those graphs of
        4 are related that have an equal of at most 2. Of a number of operators that would take
        more than 6 GB only every nth graph is tried; `LevelCount.cut` says of which n.
    jobs: processes, at most as many as there are cores.
    ray: the address of a Ray cluster that does the work instead; "local" starts one of `jobs` CPUs.

    The files are the same for the same seed, whoever does the work. A run that was killed goes on
    when it is asked for again with the same folder.

    Raises UsageError for a family that is unknown, for operators and shapes that do not fit, for a
    folder of another run or one that cannot be written, and where there is no Ray.
    """
    from superopt.pipeline import generate as generate_

    for name, value, least in (("max_ops", max_ops, 1), ("jobs", jobs, 1), ("seed", seed, 0)):
        if value < least:
            raise UsageError(f"{name} {value}", f"it is at least {least}", "give another")
    order = generate_.Order(
        Path(out),
        tuple(families),
        max_ops,
        ops,
        shapes,
        jobs,
        ray,
        seed,
        progress or (lambda event: None),
    )
    return generate_.generation(order)


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
    """Find programs that are equal in parts by enumeration, prove which parts these are, for all
    sizes, and what corrects the others. Writes to the folder `out`, for each family: NAME.pairs,
    programs and mutants; NAME.corrected.rules, rules that are proved; NAME.regions.json, what is
    known of each.

    families: by name, all of them by default. max_ops: operators of a graph at most; of more than 4
    one graph in several is tried, for want of room and time, as `cut` of a family's count says. At
    most 200 pairs of a family are proved, those that save most by what kernels should take. A run
    that was killed goes on when it is asked for again with the same folder.
    model: instead of families, mutants of this model's windows over pictures (convolutions, means),
    and of up to three convolutions or products together, at the shapes that they have (of four
    operators, with max_ops 5 of five); NAME is the model's. Kept are those that cost less, by
    measured costs of superopt's own compiler, which are in `store` (default: the user's cache
    folder).

    Raises UsageError for a family that is unknown, for families of a model, and for a folder of
    another run; ModelError for an invalid model.
    """
    from superopt.onnx_io.read.source import read_model
    from superopt.pipeline import mutants as mutants_
    from superopt.pipeline.own_mutants import own_mutants
    from superopt.pipeline.program_mutants import OPERATORS_OF
    from superopt.pipeline.timed import TIMERS

    show = progress or (lambda event: None)
    if model is not None:
        if families:
            raise UsageError(
                "a model has no families", f"given are {', '.join(families)}", "leave one out"
            )
        if not OPERATORS_OF <= max_ops <= 5:
            raise UsageError(
                f"max_ops {max_ops} of a model",
                f"a model's programs have mutants of {OPERATORS_OF} operators, or of 5",
                "give one of these",
            )
        if seed:
            raise UsageError(
                f"seed {seed} of a model", "nothing is drawn for its mutants", "leave it out"
            )
        source = read_model(model)
        place = None if store is None else Path(store)
        return own_mutants(source, Path(out), place, show, TIMERS, max_ops)
    if max_ops < 1:
        raise UsageError(f"max_ops {max_ops}", "it is at least 1", "give another")
    return mutants_.mutants(Path(out), tuple(families), max_ops, seed, show)
