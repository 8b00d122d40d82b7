"""Whatever is changed in a certificate, be it one character, is refused with a reason.

All places of a certificate are gone through, whatever they hold; test_certificate.py has forgeries
by hand. Two things may be said otherwise and still be true: rounds, or applications of one round,
that do not hang on each other come in another order; and the versions are what a note says of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import pytest

from superopt import api
from superopt.check.certificate.replay import check
from superopt.check.identical import Refused
from superopt.errors import UsageError
from superopt.onnx_io.importer import import_model
from superopt.onnx_io.model import Model
from superopt.onnx_io.source import read
from superopt.report.certificate import read_certificate
from superopt.rules.rule import Rule, load_library
from superopt.rules.stated import digest
from tests.check.certified import Certified, certified

Place = tuple[str | int, ...]


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
            check(read_certificate(text), self.original, self.optimized, self.rules, self.library)
        except (Refused, UsageError) as e:
            return str(e)
        return ""


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Ready:
    made = certified(tmp_path_factory.mktemp("forged"))
    text, library = made.certificate.read_text(), load_library()
    one, two = import_model(read(made.original)), import_model(read(made.optimized))
    rules = {r.name: r for r in library}
    return Ready(made, text, json.loads(text), one, two, rules, digest(library))


def places(held: object, here: Place = ()) -> Iterator[tuple[Place, object]]:
    """Each value in a JSON value, with the way to it; but the versions."""
    if here[:1] == ("versions",):
        return
    if here:
        yield here, held
    if isinstance(held, dict):
        for k, one in held.items():
            yield from places(one, (*here, k))
    elif isinstance(held, list):
        for n, one in enumerate(held):
            yield from places(one, (*here, n))


def changed(document: object, place: Place, change: Callable[..., None]) -> str:
    """The document where `change` did something to what holds the place's value."""
    made = deepcopy(document)
    inside = made
    for k in place[:-1]:
        inside = inside[k]  # type: ignore[index]
    change(inside, place[-1])
    return json.dumps(made)


def put(value: object) -> Callable[..., None]:
    def change(inside: dict[str | int, object], k: str | int) -> None:
        inside[k] = value

    return change


def forms(text: str) -> set[str]:
    """Texts that differ from one by a character or two, by a digit or by its last part."""
    out = {"", text + " ", " " + text, text[:-1], text[1:], text + "0", text.swapcase()}
    out |= {text.replace(" ", ""), text.replace("v", "v0"), text.replace("1", "\u0661")}
    out |= {f"{text[:i]}{(int(c) + 1) % 10}{text[i + 1 :]}"
            for i, c in enumerate(text) if c.isdigit()}  # fmt: skip
    return out - {text}


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


def _drop(inside: list[object] | dict[object, object], k: int) -> None:
    del inside[k]


def _double(inside: list[object], k: int) -> None:
    inside.insert(k, inside[k])


def _exchange(inside: list[object], k: int) -> None:
    inside[k], inside[k - 1] = inside[k - 1], inside[k]


@pytest.mark.parametrize("change", [_drop, _double, _exchange])
def test_every_item_of_every_list_matters(change: Callable[..., None], ready: Ready) -> None:
    tried = 0
    for place, _ in places(ready.json):
        if isinstance(place[-1], str) and change is not _drop:
            continue
        same_at_once = change is _exchange and place[0] == "rounds" and len(place) in (2, 3)
        if same_at_once or (change is _exchange and place[-1] == 0):
            continue
        tried += 1
        assert ready.refusal(changed(ready.json, place, change)), place
    assert tried > 20


def test_a_text_that_is_cut_off_anywhere(ready: Ready, tmp_path: Path) -> None:
    whole = ready.text.rstrip()
    for end in range(len(whole)):
        with pytest.raises(UsageError, match="is no certificate"):
            read_certificate(whole[:end])
    path = tmp_path / "cut.superopt.json"
    for end in range(0, len(whole), 97):
        path.write_text(whole[:end])
        with pytest.raises(UsageError, match="is no certificate"):
            api.verify(ready.made.original, ready.made.optimized, certificate=path)


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
    found = api.verify(ready.made.original, ready.made.optimized, certificate=path)
    assert found.decision == "certified"
    assert any(n.startswith("made with superopt 0.0.1, replayed with ") for n in found.notes)
    path.write_text(changed(ready.json, ("versions", 0, 0), put("torch")))
    found = api.verify(ready.made.original, ready.made.optimized, certificate=path)
    assert found.decision == "refused"
    assert "superopt, onnx, numpy" in found.reason
