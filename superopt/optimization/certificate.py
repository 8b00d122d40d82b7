"""Certificates: made from the result of an optimization, and checked for two models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from superopt.check.certificate.replay import check_certificate
from superopt.check.graph_identity import CertificateRefused, compare_graphs, folded_tensor
from superopt.errors import CheckFailed, UsageError
from superopt.loading.garbage_collection import raise_gc_thresholds
from superopt.loading.model import load_model
from superopt.loading.package_versions import package_version
from superopt.loading.rule_library import load_library
from superopt.onnx_io.export.atomic_files import atomic_files
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source, page_releaser
from superopt.optimization.admit_rules import prove_user_rule
from superopt.optimization.certificate_rounds import Untraceable, certificate_rounds
from superopt.report.data.certificate import (
    CERTIFICATE_VERSION,
    MAX_CERTIFICATE_BYTES,
    Certificate,
    StatedRule,
    certificate_json,
    certificate_path,
    read_certificate,
)
from superopt.report.data.report import Verdict
from superopt.report.formatting.phrases import count_text
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.library.records import rules_digest, statement, tier
from superopt.rules.trial.float_class import with_computed_class
from superopt.search.move import Step

CERTIFIED_PACKAGES = ("superopt", "onnx", "numpy")  # packages whose versions a certificate records


def make_certificate(
    original: Model, optimized: Source, steps: Sequence[Step], rules: Sequence[Rule]
) -> Certificate:
    """Return the certificate of the rewrites from `original` to the file `optimized`, after
    replaying it.

    Raises CheckFailed if the replay rejects it, or if a user's rule is refuted.
    """
    book, library = {r.name: r for r in rules}, load_library()
    try:
        state, made = certificate_rounds(original.graph, steps, book)
        file = import_model(optimized)
        pairs = compare_graphs(
            state.graph, file.graph, state.name, page_releaser(original.source, optimized)
        )
        folded = {v: folded_tensor(state.name(v), v, c) for v, c in pairs}
        used = sorted({a.rule for some in made for a in some})
        shipped = set(library)
        prove_used_rules(used, [r for r in rules if r not in shipped])
        found = Certificate(
            CERTIFICATE_VERSION,
            original.source.sha256,
            optimized.sha256,
            rules_digest(library),
            tuple((p, package_version(p)) for p in CERTIFIED_PACKAGES),
            tuple(_stated_rule(book[name]) for name in used),
            made,
            tuple(folded.values()),
        )
        check_certificate(found, original, file, book, found.library)
    except (CertificateRefused, Untraceable) as e:
        raise CheckFailed(
            f"{optimized.label}: no certificate could be made",
            str(e),
            "please report this bug in superopt; the model itself passed its check",
        ) from None
    return found


def _stated_rule(rule: Rule) -> StatedRule:
    return StatedRule(rule.name, statement(rule), tier(rule), rule.float_class)


def write_certificate_file(certificate: Certificate, model_path: Path) -> Path:
    """Write a certificate beside its model, by an atomic rename; return its path."""
    path = certificate_path(model_path)
    with atomic_files() as create:
        create(path).file.write(certificate_json(certificate).encode())
    return path


def read_certificate_file(path: Path) -> Certificate:
    """Return the certificate in a file. Raises UsageError if there is none."""
    try:
        if path.stat().st_size > MAX_CERTIFICATE_BYTES:
            raise UsageError(f"{path} is not a certificate", "it is too long", "name another file")
        return read_certificate(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(
            f"{path} cannot be read as a certificate", str(e), "name a file that optimize wrote"
        ) from None


def certificate_verdict(
    a: Source, b: Source, certificate: Certificate, user_rules: Sequence[Rule] = ()
) -> Verdict:
    """Check that a certificate leads from model `a` to model `b`.

    user_rules: rules that it may apply beside the library's. Other rules that it names are proved
    again, from the text that it contains.
    """
    one, two = load_model(a).model, load_model(b).model
    library = load_library()
    rules: dict[str, Rule] = {r.name: r for r in (*library, *user_rules)}
    try:
        if tuple(name for name, _ in certificate.versions) != CERTIFIED_PACKAGES:
            raise CertificateRefused(
                f"it has versions of {certificate.versions}, not of {', '.join(CERTIFIED_PACKAGES)}"
            )
        prove_used_rules((r.name for r in certificate.rules), user_rules)
        rules |= {r.name: _prove_stated_rule(r) for r in certificate.rules if r.name not in rules}
        with raise_gc_thresholds():
            check_certificate(certificate, one, two, rules, rules_digest(library))
    except CheckFailed as e:
        return Verdict("refused", f"{e.what.partition(';')[0]}: {e.why}", None)
    except CertificateRefused as e:
        return Verdict("refused", str(e), None)
    applied = [rules[x.rule] for some in certificate.rounds for x in some]
    reason = (
        f"{count_text(len(applied), 'application')} of"
        f" {count_text(len(certificate.rules), 'rule')} and"
        f" {count_text(len(certificate.folded), 'folded tensor')} lead from {a.label} to {b.label}"
    )
    return Verdict("certified", reason, None, tuple(_verdict_notes(certificate, applied)))


def prove_used_rules(used_names: Iterable[str], user_rules: Iterable[Rule]) -> None:
    """Prove the user's rules that are used, whatever a certificate states: their tier is what is
    found here, within a limit of work, and a different statement is rejected.

    Raises CheckFailed if one of them is refuted.
    """
    names = frozenset(used_names)
    for rule in user_rules:
        if rule.name in names and tier(rule) != "A":
            prove_user_rule(rule)


def _prove_stated_rule(stated: StatedRule) -> Rule:
    """Prove a rule that only the certificate contains (a mutant generated for this model, or a rule
    of a file that is not given): its text is not trusted.

    Raises Refused if it is not proved, CheckFailed if it is refuted.
    """
    what = f"rule {stated.name}, which is not in the library"
    try:
        found = parse_rules(stated.text)
    except UsageError as e:
        raise CertificateRefused(f"{what}, cannot be read: {e.why}") from None
    if [r.name for r in found] != [stated.name]:
        raise CertificateRefused(f"{what}, has another name in its text: {stated.text!r}")
    (rule,) = map(with_computed_class, found)
    why = prove_user_rule(rule)
    if why:
        raise CertificateRefused(
            f"{what}, was not proved ({why}); give the file that holds it as --rules"
        )
    return rule


def _verdict_notes(certificate: Certificate, applied_rules: Sequence[Rule]) -> list[str]:
    def format_counts(counts: Counter[str]) -> str:
        return ", ".join(f"{k}: {n}" for k, n in sorted(counts.items()))

    notes = []
    if applied_rules:
        notes.append(
            f"tiers of the rules applied: {format_counts(Counter(map(tier, applied_rules)))}"
        )
        notes.append(
            f"float classes: {format_counts(Counter(r.float_class for r in applied_rules))}"
        )
    if certificate.folded:
        how = Counter(f.how for f in certificate.folded)
        notes.append(
            f"folded tensors: {how['moved']} moved, bit for bit; {how['rounded']} computed within"
            " 1 unit in the last place"
        )
    notes += dict.fromkeys(f"{r.name}: {r.caveat}" for r in applied_rules if r.caveat)
    here = {name: package_version(name) for name in CERTIFIED_PACKAGES}
    return notes + [
        f"made with {name} {made}, replayed with {here[name]}"
        for name, made in certificate.versions
        if made != here[name]
    ]
