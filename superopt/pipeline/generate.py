"""`rules generate`: enumerate rules and write them as a library."""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from superopt import __version__
from superopt.errors import UsageError
from superopt.generate.custom import custom, described
from superopt.generate.families import FAMILIES
from superopt.generate.family import Family
from superopt.generate.journal import Journal
from superopt.generate.library import partial_text, refuted_text, text, unproved_text
from superopt.generate.run import Account, Wanted, generate
from superopt.onnx_io.export.atomic_files import atomic_files
from superopt.report.data import Event, FamilyCount, Generation, LevelCount

if sys.platform != "win32":
    import resource

JOURNAL = "journal.jsonl"
ACCOUNT = "account.json"


@dataclass(frozen=True, slots=True)
class Order:
    """The arguments of `superopt.api.generate_rules`. No families: all of them."""

    out: Path
    families: Sequence[str]
    most: int
    ops: str | None = None
    shapes: str | None = None
    jobs: int = 1
    ray: str | None = None
    seed: int = 0
    progress: Callable[[Event], None] = lambda event: None


def generation(order: Order) -> Generation:
    """Generate the rules of some families; write a file for each, and the account."""
    begin = time.monotonic()
    made_of = _families(order)
    wanted = Wanted(
        tuple((f, operators(f, order.most)) for f in made_of), order.seed, order.jobs, order.ray
    )
    names = (f.name if f.name in FAMILIES else described(f) for f in made_of)
    data = zlib.crc32(repr(made_of).encode())  # an edited family is a different one
    run = (
        f"{', '.join(names)}, {order.most} operators, seed {order.seed},"
        f" superopt {__version__} {data:08x}"
    )
    journal = Journal.open(order.out / JOURNAL, run)
    try:
        made = generate(wanted, journal, lambda line: order.progress(Event("generate", line)))
    finally:
        journal.close()
    counts = tuple(_count(a) for a in made.accounts)
    with atomic_files() as create:

        def put(name: str, content: str) -> None:
            file = create(order.out / name).file
            file.write(content.encode())
            file.flush()  # now, so that an error names this file

        for name, rules in made.rules.items():
            unproved = [r for r in rules if r.name in made.unproved]
            put(f"{name}.rules", text([r for r in rules if r.name not in made.unproved]))
            if unproved:
                put(f"{name}.unproved.rules", unproved_text(unproved, made.unproved))
            if made.wrong[name]:
                put(f"{name}.refuted.txt", refuted_text(made.wrong[name]))
        for family in made_of:
            if family.partial:
                put(f"{family.name}.partial.jsonl", partial_text(made.partial[family.name], family))
        put(ACCOUNT, json.dumps([a.plain() for a in made.accounts], indent=1) + "\n")
    return Generation(
        counts, str(order.out), tuple(journal.lost), time.monotonic() - begin, _peak()
    )


WHOLE = 4  # operators of a default run, for families without a limit of their own


def operators(f: Family, most: int) -> int:
    """Return the maximum number of operators of a family: its own limit, plus one for each operator
    beyond a default run."""
    return min(most, f.top + max(0, most - WHOLE))


def _families(order: Order) -> list[Family]:
    """Return the requested families in order."""
    for one, other in (("ops", "shapes"), ("shapes", "ops")):
        if getattr(order, one) is not None and getattr(order, other) is None:
            raise UsageError(
                f"{one} without {other}", "both together define a family", f"give {other}, too"
            )
    if order.ops is not None and order.shapes is not None:
        if order.families:
            raise UsageError(
                "family and ops exclude each other",
                f"family {', '.join(order.families)} has its own operators, ops {order.ops!r}",
                "give only one of them",
            )
        return [custom(order.ops, order.shapes)]
    for name in order.families:
        if name not in FAMILIES:
            raise UsageError(
                f"there is no family {name!r}",
                f"the families are {', '.join(FAMILIES)}",
                "name one of them, or define one by ops and shapes",
            )
    return [
        make() for name, make in FAMILIES.items() if name in order.families or not order.families
    ]


def _peak() -> float:
    """Return the peak memory of this process or of its largest child in MB; 0 if unknown."""
    if sys.platform == "win32":
        return 0.0
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(own, child) / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def _count(a: Account) -> FamilyCount:
    levels = tuple(
        LevelCount(
            v.candidates,
            v.classes,
            v.pairs,
            v.unrelated,
            v.fresh,
            v.enumerating,
            v.relating,
            v.cut,
        )
        for v in a.levels
    )
    return FamilyCount(
        a.family, levels, a.doubtful, a.equations, a.pairs, a.laws, a.followed, a.claims, a.covered,
        a.unread, tuple(a.refuted), tuple(a.idle), tuple(a.unproved), len(a.derivable), a.rules,
        a.partial, a.enumerating, a.closing, a.wrong,
    )  # fmt: skip
