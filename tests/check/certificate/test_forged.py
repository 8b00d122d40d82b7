"""Whatever is changed in a certificate, be it one character, is refused with a reason.

All places of a certificate are gone through, whatever they hold; test_certificate.py has forgeries
by hand. Two things may be said otherwise and still be true: rounds, or applications of one round,
that do not hang on each other come in another order; and the versions are what a note says of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from superopt.api import functions
from superopt.check.certificate.replay import check_certificate
from superopt.check.graph_identity import CertificateRefused
from superopt.errors import UsageError
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import read_model
from superopt.report.data.certificate import read_certificate
from superopt.rules.lang.rule import Rule
from superopt.rules.library.load import load_library
from superopt.rules.library.records import rules_digest
from tests.support.check.certified import Certified, certified
from tests.support.check.forging import (
    changed,
    double,
    drop,
    exchange,
    forms,
    places,
    put,
    still_true,
)


@dataclass(frozen=True)
class Ready:
    """A certificate as text and as JSON, and what it is checked with."""

    made: Certified
    text: str
    json: dict[str, object]
    original: Model
    optimized: Model
    rules: dict[str, Rule]
    library: str

    def refusal(self, text: str) -> str:
        """Why a certificate is refused, empty where it is not."""
        try:
            check_certificate(
                read_certificate(text), self.original, self.optimized, self.rules, self.library
            )
        except (CertificateRefused, UsageError) as e:
            return str(e)
        return ""


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Ready:
    made = certified(tmp_path_factory.mktemp("forged"))
    text, library = made.certificate.read_text(), load_library()
    one, two = import_model(read_model(made.original)), import_model(read_model(made.optimized))
    rules = {r.name: r for r in library}
    return Ready(made, text, json.loads(text), one, two, rules, rules_digest(library))


def test_the_certificate_as_it_is(ready: Ready) -> None:
    assert ready.refusal(ready.text) == ""
    assert ready.refusal(json.dumps(ready.json)) == ""


def test_every_text_matters(ready: Ready) -> None:
    tried = 0
    for place, value in places(ready.json):
        if not isinstance(value, str):
            continue
        for other in forms(value):
            tried += 1
            assert ready.refusal(changed(ready.json, place, put(other))), (place, other)
    assert tried > 500


def test_every_type_of_value_matters(ready: Ready) -> None:
    others: tuple[object, ...] = (None, 0, -1, 1.5, True, "x", [], {}, [[]])
    for place, value in places(ready.json):
        for other in others:
            if type(other) is type(value) and other == value:
                continue
            assert ready.refusal(changed(ready.json, place, put(other))), (place, other)


@pytest.mark.parametrize("change", [drop, double, exchange])
def test_every_item_of_every_list_matters(change: Callable[..., None], ready: Ready) -> None:
    tried = 0
    for place, _ in places(ready.json):
        if isinstance(place[-1], str) and change is not drop:
            continue
        if still_true(change, place):
            continue
        tried += 1
        assert ready.refusal(changed(ready.json, place, change)), place
    assert tried > 20


def test_a_text_that_is_cut_off_anywhere(ready: Ready, tmp_path: Path) -> None:
    whole = ready.text.rstrip()
    for end in range(len(whole)):
        with pytest.raises(UsageError, match="is not a superopt certificate"):
            read_certificate(whole[:end])
    path = tmp_path / "cut.superopt.json"
    for end in range(0, len(whole), 97):
        path.write_text(whole[:end])
        with pytest.raises(UsageError, match="is not a superopt certificate"):
            functions.verify(ready.made.original, ready.made.optimized, certificate=path)


def test_parts_of_it_in_other_places(ready: Ready) -> None:
    """Each text is put where another one of its kind is: another step's value, type or digest."""
    for place, value in places(ready.json):
        if not isinstance(value, str):
            continue
        kind = tuple(k for k in place if isinstance(k, str))
        for other_place, other in places(ready.json):
            if tuple(k for k in other_place if isinstance(k, str)) == kind and other != value:
                assert ready.refusal(changed(ready.json, place, put(other))), (place, other)


def test_versions_are_said(ready: Ready, tmp_path: Path) -> None:
    """Nothing hangs on them: what they made is made again. A verdict says where they differ."""
    path = tmp_path / "older.superopt.json"
    path.write_text(changed(ready.json, ("versions", 0, 1), put("0.0.1")))
    found = functions.verify(ready.made.original, ready.made.optimized, certificate=path)
    assert found.decision == "certified"
    assert any(n.startswith("made with superopt 0.0.1, replayed with ") for n in found.notes)
    path.write_text(changed(ready.json, ("versions", 0, 0), put("torch")))
    found = functions.verify(ready.made.original, ready.made.optimized, certificate=path)
    assert found.decision == "refused"
    assert "superopt, onnx, numpy" in found.reason
