"""Changes of a certificate as JSON, none of which may be accepted; for tests and a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random

Place = tuple[str | int, ...]


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


def drop(inside: list[object] | dict[object, object], k: int) -> None:
    del inside[k]


def double(inside: list[object], k: int) -> None:
    inside.insert(k, inside[k])


def exchange(inside: list[object], k: int) -> None:
    """With the item before it."""
    inside[k], inside[k - 1] = inside[k - 1], inside[k]


def still_true(change: object, place: Place) -> bool:
    """Is it said in another order only, or nothing that is said? What does not hang on each other,
    rounds and applications of one, may come in any."""
    return change is exchange and (place[-1] == 0 or (place[0] == "rounds" and len(place) <= 3))


def forgery(document: object, rng: Random) -> str:
    """The document after a random change of a text, or of a list."""
    every = list(places(document))
    while True:
        place, value = rng.choice(every)
        if isinstance(value, str):
            return changed(document, place, put(rng.choice(sorted(forms(value)))))
        change = rng.choice((drop, double, exchange))
        if isinstance(place[-1], int) and not still_true(change, place):
            made = changed(document, place, change)
            if made != json.dumps(document):  # two that are alike
                return made
