"""`rules generate --partial`: programs and mutants found by enumeration, with what corrects them.

A family is enumerated at small sizes; each pair of terms that is equal in parts, is no instance of
another one and may save something is made again at larger ones, whose regions and attributes tell
their formulas (`superopt.partial`). What comes of it is proved: that boxes are equal, and
corrections, which are rules.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superopt import __version__
from superopt.cost.fusion import compiled_away
from superopt.cost.model import Costs, by_roofline
from superopt.errors import UsageError
from superopt.generate.build import value
from superopt.generate.enumerated import enumerated, read
from superopt.generate.family import Family
from superopt.generate.image_families import borders, strided
from superopt.generate.journal import Journal
from superopt.generate.partial import Partial, instances
from superopt.ir import graph as g
from superopt.ir.op import InferError
from superopt.onnx_io.atomic import new_files
from superopt.partial.cells import TooMany
from superopt.partial.generalise import pair_of
from superopt.partial.pairs import PartialRule, of_some
from superopt.partial.sizes import Sized
from superopt.partial.symbolic import NoFormula, Part, show
from superopt.partial.terms import parsed
from superopt.pipeline.generate import operators
from superopt.report.data import Event, MutantCount, Mutation
from superopt.te.dtype import F32
from superopt.te.expr import TensorType
from superopt.verifier.prove import Limits
from superopt.verifier.verdict import Proved


@dataclass(frozen=True, slots=True)
class Sizes:
    """A family of any sizes: those at which it is enumerated are its own, and those at which its
    terms are generalised. where: what all of these have in common. priced: at these of a model's
    a mutant must be cheaper than its program."""

    make: Callable[..., Family]
    at: tuple[dict[str, int], ...]
    where: tuple[str, ...]
    priced: dict[str, int]


FAMILIES = {
    "borders": Sizes(
        borders,
        ({"h": 8, "w": 10, "c": 2}, {"h": 12, "w": 15, "c": 3}, {"h": 14, "w": 9, "c": 5}),
        ("h % 2 == 0",),
        {"h": 56, "w": 60, "c": 64},
    ),
    "strided": Sizes(
        strided,
        ({"h": 8, "w": 10, "c": 2}, {"h": 12, "w": 14, "c": 3}, {"h": 14, "w": 6, "c": 5}),
        ("h % 2 == 0", "w % 2 == 0"),
        {"h": 56, "w": 60, "c": 64},
    ),
}
JOURNAL = "mutants.jsonl"
LIMITS = Limits(seconds=10, work=3_000)  # what is proved takes less
NEAR = 1.25  # times a program's price is what a mutant may have: estimates know few kernels
MOST = 400  # pairs of a family that are proved, those that save most
INSTANCE, DEARER = "instances of others", "dearer than the program"


def mutants(
    out: Path, families: Sequence[str], most: int, seed: int, progress: Callable[[Event], None]
) -> Mutation:
    """Generate, and write NAME.pairs, NAME.corrected.rules and NAME.regions.json for each family.
    What was done before a kill is taken from the folder's journal."""
    for name in families:
        if name not in FAMILIES:
            raise UsageError(
                f"there is no family of mutants {name!r}",
                f"there are {', '.join(FAMILIES)}",
                "name one of them, or leave it out",
            )
    chosen = tuple(families) or tuple(FAMILIES)
    run = f"mutants of {', '.join(chosen)}, {most} operators, seed {seed}, superopt {__version__}"
    journal = Journal.open(out / JOURNAL, run)
    try:
        some = [_family(name, out, most, seed, journal, progress) for name in chosen]
    finally:
        journal.close()
    return Mutation(tuple(some), str(out))


def _family(
    name: str, out: Path, most: int, seed: int, journal: Journal, progress: Callable[[Event], None]
) -> MutantCount:
    begin = time.monotonic()
    sizes = FAMILIES[name]
    family = sizes.make()
    count = operators(family, most)
    found = read(enumerated((family, count, seed))).partial
    lines, chosen = _chosen(found, sizes)
    for done, n in enumerate(chosen):
        progress(Event("mutants", f"{name}: {done + 1} of {len(chosen)} pairs", done / len(chosen)))
        key = f"{name} {n}"
        text = journal.known.get(key)
        if text is None:
            text = json.dumps(_one(f"{name}-{n}", found[n], sizes))
            journal.add(key, text)
        lines.append(json.loads(text))
    kept = [line for line in lines if "dropped" not in line]
    pairs = {line["pair"]: line for line in kept}  # other terms of the same sizes are one
    fixed = [r for line in pairs.values() for r in line["corrected"]]
    with new_files() as create:
        for suffix, content in (
            ("pairs", "".join(f"{p}\n" for p in pairs)),
            ("corrected.rules", "".join(f"{r}\n" for r in fixed)),
            ("regions.json", json.dumps(list(pairs.values()), indent=1) + "\n"),
        ):
            create(out / f"{name}.{suffix}").file.write(content.encode())
    dropped = Counter(line["dropped"] for line in lines if "dropped" in line)
    corrected = sum(bool(line["corrected"]) for line in pairs.values())
    seconds = time.monotonic() - begin
    return MutantCount(
        name, len(found), len(pairs), corrected, dict(dropped.most_common()), seconds, count
    )


def _chosen(found: Sequence[Partial], sizes: Sizes) -> tuple[list[dict[str, Any]], list[int]]:
    """What is dropped before anything is proved, and the places of the other pairs, those first
    whose mutant saves most."""
    costs = Costs({}, by_roofline(1), compiled_away)
    family = sizes.make(**sizes.priced)
    of_others = instances(found)
    dropped: list[dict[str, Any]] = [{"dropped": INSTANCE} for _ in of_others]
    saved: list[tuple[float, int]] = []
    for n, p in enumerate(found):
        if n in of_others:
            continue
        given = _inputs(p, family)
        try:
            both = [value(s, family, given) for s in (p.sides.left, p.sides.right)]
        except (InferError, ValueError):
            dropped.append({"dropped": "it does not fit at other sizes"})
            continue
        before, after = (costs.of_graph(g.Graph(given, (v,))) for v in both)
        if before > 0 and after <= NEAR * before:
            saved.append((after / before, n))
        else:
            dropped.append({"dropped": DEARER})
    dropped += [{"dropped": f"beyond the {MOST:,} that save most"} for _ in saved[MOST:]]
    return dropped, [n for _, n in sorted(saved)[:MOST]]


def _inputs(p: Partial, family: Family) -> tuple[g.Input, ...]:
    return tuple(
        g.Input("xyzwabcd"[k], TensorType(F32, family.inputs[i]))
        for k, i in enumerate(p.sides.inputs)
    )


def _one(name: str, p: Partial, sizes: Sizes) -> dict[str, Any]:
    """What is said of a pair, as plain data; or why it is dropped."""
    try:
        some = list(_sized(p, sizes))
        made = of_some(pair_of(name, some, tuple(map(parsed, sizes.where))), some, LIMITS)
    except NoFormula:
        return {"dropped": "no formula of the sizes"}
    except TooMany:
        return {"dropped": "too many break points"}
    except (InferError, ValueError):
        return {"dropped": "it does not fit at other sizes"}
    if not made.parts.equal:
        return {"dropped": "equal nowhere at other sizes"}
    if not made.proved:
        return {"dropped": "not all boxes are proved"}
    return _plain(made)


def _sized(p: Partial, sizes: Sizes) -> Iterator[Sized]:
    for at in sizes.at:
        family = sizes.make(**at)
        given = _inputs(p, family)
        left, right = (value(s, family, given) for s in (p.sides.left, p.sides.right))
        yield Sized(at, left, right)


def _plain(made: PartialRule) -> dict[str, Any]:
    def told(parts: tuple[Part, ...]) -> list[str]:
        return [show(p) for p in parts]

    return {
        "pair": str(made.pair),
        "shape": list(made.parts.shape),
        "equal": told(made.parts.equal),
        "different": told(made.parts.different),
        "proofs": [str(v) for _, v in made.claims if isinstance(v, Proved)],
        "corrected": [str(c.rule) for c in made.corrected if c.proved],
    }
