"""Certificates: made from the result of an optimization, and checked for two models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from superopt.check.certificate.replay import check
from superopt.check.identical import Refused, compare, described
from superopt.errors import CheckFailed, UsageError
from superopt.onnx_io.export.atomic_files import atomic_files
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.pipeline.admit import prove_now
from superopt.pipeline.collect import collecting_rarely
from superopt.pipeline.load import load_model
from superopt.pipeline.rule_library import load_library
from superopt.pipeline.trace import Untraceable, rounds
from superopt.pipeline.versions import version_of
from superopt.report.certificate import (
    CERTIFICATE,
    LONGEST,
    Certificate,
    StatedRule,
    certificate_json,
    certificate_path,
    read_certificate,
)
from superopt.report.data import Verdict
from superopt.report.words import count
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.library.records import rules_digest, statement, tier
from superopt.rules.trial.float_class import with_computed_class
from superopt.search.move import Step

MADE_BY = ("superopt", "onnx", "numpy")  # packages whose versions a certificate records


def certificate(
    original: Model, optimized: Source, steps: Sequence[Step], rules: Sequence[Rule]
) -> Certificate:
    """Return the certificate of the rewrites from `original` to the file `optimized`, after
    replaying it.

    Raises CheckFailed if the replay rejects it, or if a user's rule is refuted.
    """
    book, library = {r.name: r for r in rules}, load_library()
    try:
        state, made = rounds(original.graph, steps, book)
        file = import_model(optimized)
        pairs = compare(state.graph, file.graph, state.name)
        folded = {v: described(state.name(v), v, c) for v, c in pairs}
        used = sorted({a.rule for some in made for a in some})
        shipped = set(library)
        prove_own(used, [r for r in rules if r not in shipped])
        found = Certificate(
            CERTIFICATE,
            original.source.sha256,
            optimized.sha256,
            rules_digest(library),
            tuple((p, version_of(p)) for p in MADE_BY),
            tuple(_stated(book[name]) for name in used),
            made,
            tuple(folded.values()),
        )
        check(found, original, file, book, found.library)
    except (Refused, Untraceable) as e:
        raise CheckFailed(
            f"{optimized.label}: no certificate could be made",
            str(e),
            "please report this bug in superopt; the model itself passed its check",
        ) from None
    return found


def _stated(rule: Rule) -> StatedRule:
    return StatedRule(rule.name, statement(rule), tier(rule), rule.float_class)


def write_file(c: Certificate, model: Path) -> Path:
    """Write a certificate beside its model, by an atomic rename; return its path."""
    path = certificate_path(model)
    with atomic_files() as create:
        create(path).file.write(certificate_json(c).encode())
    return path


def read_file(path: Path) -> Certificate:
    """Return the certificate in a file. Raises UsageError if there is none."""
    try:
        if path.stat().st_size > LONGEST:
            raise UsageError(f"{path} is not a certificate", "it is too long", "name another file")
        return read_certificate(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(
            f"{path} cannot be read as a certificate", str(e), "name a file that optimize wrote"
        ) from None


def verdict(a: Source, b: Source, c: Certificate, own: Sequence[Rule] = ()) -> Verdict:
    """Check that a certificate leads from model `a` to model `b`.

    user_rules: rules that it may apply beside the library's. Other rules that it names are proved
    again, from the text that it contains.
    """
    one, two = load_model(a).model, load_model(b).model
    library = load_library()
    rules: dict[str, Rule] = {r.name: r for r in (*library, *own)}
    try:
        if tuple(name for name, _ in c.versions) != MADE_BY:
            raise Refused(f"it has versions of {c.versions}, not of {', '.join(MADE_BY)}")
        prove_own((r.name for r in c.rules), own)
        rules |= {r.name: _proved(r) for r in c.rules if r.name not in rules}
        with collecting_rarely():
            check(c, one, two, rules, rules_digest(library))
    except CheckFailed as e:
        return Verdict("refused", f"{e.what.partition(';')[0]}: {e.why}", None)
    except Refused as e:
        return Verdict("refused", str(e), None)
    applied = [rules[x.rule] for some in c.rounds for x in some]
    reason = (
        f"{count(len(applied), 'application')} of {count(len(c.rules), 'rule')} and"
        f" {count(len(c.folded), 'folded tensor')} lead from {a.label} to {b.label}"
    )
    return Verdict("certified", reason, None, tuple(_notes(c, applied)))


def prove_own(used: Iterable[str], own: Iterable[Rule]) -> None:
    """Prove the user's rules that are used, whatever a certificate states: their tier is what is
    found here, within a limit of work, and a different statement is rejected.

    Raises CheckFailed if one of them is refuted.
    """
    names = frozenset(used)
    for rule in own:
        if rule.name in names and tier(rule) != "A":
            prove_now(rule)


def _proved(stated: StatedRule) -> Rule:
    """Prove a rule that only the certificate contains (a mutant generated for this model, or a rule
    of a file that is not given): its text is not trusted.

    Raises Refused if it is not proved, CheckFailed if it is refuted.
    """
    what = f"rule {stated.name}, which is not in the library"
    try:
        found = parse_rules(stated.text)
    except UsageError as e:
        raise Refused(f"{what}, cannot be read: {e.why}") from None
    if [r.name for r in found] != [stated.name]:
        raise Refused(f"{what}, has another name in its text: {stated.text!r}")
    (rule,) = map(with_computed_class, found)
    why = prove_now(rule)
    if why:
        raise Refused(f"{what}, was not proved ({why}); give the file that holds it as --rules")
    return rule


def _notes(c: Certificate, applied: Sequence[Rule]) -> list[str]:
    def told(what: Counter[str]) -> str:
        return ", ".join(f"{k}: {n}" for k, n in sorted(what.items()))

    notes = []
    if applied:
        notes.append(f"tiers of the rules applied: {told(Counter(map(tier, applied)))}")
        notes.append(f"float classes: {told(Counter(r.float_class for r in applied))}")
    if c.folded:
        how = Counter(f.how for f in c.folded)
        notes.append(
            f"folded tensors: {how['moved']} moved, bit for bit; {how['rounded']} computed within"
            " 1 unit in the last place"
        )
    notes += dict.fromkeys(f"{r.name}: {r.caveat}" for r in applied if r.caveat)
    here = {name: version_of(name) for name in MADE_BY}
    return notes + [
        f"made with {name} {made}, replayed with {here[name]}"
        for name, made in c.versions
        if made != here[name]
    ]
