"""Conditions as a reader would write them hold for the same numbers."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from superopt.rules.lang.readable import merge_conditions, readable_condition
from superopt.rules.library.records import Proof, Scope, library_records


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("(h + -1) // 2 >= 2", "h >= 5"),
        ("30 > h", "h <= 29"),
        ("w - 1 < w", ""),
        ("((h + -1) // 2) + 1 == (h + 1) // 2", ""),
        ("0 == (x2 + -3) // 2", "3 <= x2 <= 4"),
        ("h == max(((h * -1) + 30), 0) + max(0, min(((h * 2) + -30), h))", "h >= 15"),
        ("z0 == 1 or (x0 + z0 + -1) == 1", "z0 == 1 or x0 + z0 - 1 == 1"),
        ("n == max(0, max(((i.0.value * -1) + m), -3))", "n == max(0, m - i.0.value, -3)"),
        ("m == 30 + (h * -1)", "m == 30 - h"),
        ("(b.s0 + -1) % x2 > 0", "(b.s0 - 1) % x2 > 0"),
        ("h % 2 == 1", "h % 2 == 1"),
        ("h <= 5000", "h <= 5000"),  # numbers that large are not tried
        ("const(x)", "const(x)"),
        ("x.mode == 'edge'", "x.mode == 'edge'"),
        ("a / 2 < 3", "a / 2 < 3"),
    ],
)
def test_what_is_said(given: str, said: str) -> None:
    assert readable_condition(given) == said


def test_several_that_must_hold() -> None:
    boxes = "1 < h - 1, 1 < w - 1, w - 1 < w, 0 <= w - 1, h - 1 < h, 0 <= h - 1"
    assert merge_conditions(boxes.split(", "), 1) == ("h >= 3", "w >= 3")
    even = "w % 2 == 0, 0 < w // 2, w // 2 + 1 < w, 0 <= w // 2 + 1"
    assert merge_conditions(even.split(", "), 1) == ("w % 2 == 0", "w >= 3")
    assert merge_conditions(("0 < 2 * h - 30", "2 * h - 30 < h", "3 < v + w"), 1) == (
        "16 <= h <= 29",
        "3 < v + w",
    )
    assert merge_conditions(("h >= 1",), 1) == ()
    assert merge_conditions(("a < a + b", "w + 1 < w + v", "a + b > c"), 1) == (
        "v >= 2",
        "a + b > c",
    )
    assert merge_conditions(("a < a + b",)) == ("b >= 1",)


def holds(condition: str, **at: int) -> bool:
    chain = re.sub(r"(\d+) <= (\w+) <= (\d+)", r"(\1 <= \2) and (\2 <= \3)", condition)
    return bool(eval(chain or "True", {"min": min, "max": max}, at))


def some(rng: random.Random, depth: int, names: str) -> str:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice((*names, str(rng.randint(-9, 9))))
    a, b = (some(rng, depth - 1, names) for _ in range(2))
    match rng.randrange(6):
        case 0:
            return f"({a} + {b})"
        case 1:
            return f"({a} * {rng.randint(-3, 3)})"
        case 2:
            return f"({a} - {b})"
        case 3:
            return f"({a} {rng.choice(('//', '%'))} {rng.randint(1, 5)})"
        case 4:
            return f"{rng.choice(('min', 'max'))}({a}, {b})"
    return f"({a} * {b})"


@pytest.mark.one_in(0)
def test_random_conditions_hold_where_they_did() -> None:
    rng = random.Random(0)
    for _ in range(250):
        names = rng.choice(("h", "hw", "hwn"))
        a, b = (some(rng, rng.randint(1, 3), names) for _ in range(2))
        given = f"{a} {rng.choice(('<', '<=', '==', '!=', '>', '>='))} {b}"
        if rng.random() < 0.3:
            given = f"{given} {rng.choice(('or', 'and'))} {some(rng, 1, names)} == 2"
        said = readable_condition(given)
        for at in itertools.product((-40, -3, 0, 1, 2, 5, 33), repeat=3):
            sizes = dict(zip("hwn", at, strict=True))
            assert holds(given, **sizes) == holds(said, **sizes), (given, said)


def test_no_proof_of_the_library_adds_numbers_below_0() -> None:
    every = {c for p in library_records().proof.values() for c in p.readable_conditions}
    assert every
    assert not any("+ -" in c or "* -1" in c for c in every)


def test_what_always_holds_is_not_needed() -> None:
    needs = ("((h + -1) // 2) + 1 == (h + 1) // 2", "(h + -1) // 2 >= 2")
    proof = Proof(Scope("ranks 0 to 4", 1, ()), needs, 0, 0, 0.0)
    assert proof.summary == "ranks 0 to 4; 1 way to fit; refused unless h >= 5"
