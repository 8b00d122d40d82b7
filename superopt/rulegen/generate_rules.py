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
from superopt.generate.engine.journal import Journal
from superopt.generate.engine.rule_files import (
    library_text,
    partial_text,
    refuted_text,
    unproved_text,
)
from superopt.generate.engine.run import FamilyAccount, GenerationRequest, run_generation
from superopt.generate.enumeration.custom_family import custom_family, family_text
from superopt.generate.families.family import Family
from superopt.generate.families.registry import FAMILIES
from superopt.onnx_io.export.atomic_files import atomic_files
from superopt.report.data.generation import FamilyCount, Generation, LevelCount
from superopt.report.data.report import Event

if sys.platform != "win32":
    import resource

JOURNAL_FILE = "journal.jsonl"
ACCOUNT_FILE = "account.json"


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """The arguments of `superopt.api.functions.generate_rules`. No families: all of them."""

    out: Path
    families: Sequence[str]
    max_operators: int
    ops: str | None = None
    shapes: str | None = None
    jobs: int = 1
    ray_address: str | None = None
    seed: int = 0
    progress: Callable[[Event], None] = lambda event: None


def generate_rules(request: GenerateRequest) -> Generation:
    """Generate the rules of some families; write a file for each, and the account."""
    begin = time.monotonic()
    made_of = _requested_families(request)
    wanted = GenerationRequest(
        tuple((f, operators_to_enumerate(f, request.max_operators)) for f in made_of),
        request.seed,
        request.jobs,
        request.ray_address,
    )
    names = (f.name if f.name in FAMILIES else family_text(f) for f in made_of)
    data = zlib.crc32(repr(made_of).encode())  # an edited family is a different one
    run = (
        f"{', '.join(names)}, {request.max_operators} operators, seed {request.seed},"
        f" superopt {__version__} {data:08x}"
    )
    journal = Journal.open(request.out / JOURNAL_FILE, run)
    try:
        made = run_generation(
            wanted, journal, lambda line: request.progress(Event("generate", line))
        )
    finally:
        journal.close()
    counts = tuple(_family_count(a) for a in made.accounts)
    with atomic_files() as create:

        def put(name: str, content: str) -> None:
            file = create(request.out / name).file
            file.write(content.encode())
            file.flush()  # now, so that an error names this file

        for name, rules in made.rules.items():
            unproved = [r for r in rules if r.name in made.unproved]
            put(f"{name}.rules", library_text([r for r in rules if r.name not in made.unproved]))
            if unproved:
                put(f"{name}.unproved.rules", unproved_text(unproved, made.unproved))
            if made.refuted_readings[name]:
                put(f"{name}.refuted.txt", refuted_text(made.refuted_readings[name]))
        for family in made_of:
            if family.finds_partial:
                put(f"{family.name}.partial.jsonl", partial_text(made.partial[family.name], family))
        put(ACCOUNT_FILE, json.dumps([a.as_dict() for a in made.accounts], indent=1) + "\n")
    return Generation(
        counts, str(request.out), tuple(journal.lost), time.monotonic() - begin, _peak_memory_mb()
    )


DEFAULT_MAX_OPERATORS = 4  # operators of a default run, for families without a limit of their own


def operators_to_enumerate(family: Family, max_operators: int) -> int:
    """Return the maximum number of operators of a family: its own limit, plus one for each operator
    beyond a default run."""
    return min(max_operators, family.max_ops + max(0, max_operators - DEFAULT_MAX_OPERATORS))


def _requested_families(request: GenerateRequest) -> list[Family]:
    """Return the requested families in order."""
    for one, other in (("ops", "shapes"), ("shapes", "ops")):
        if getattr(request, one) is not None and getattr(request, other) is None:
            raise UsageError(
                f"{one} without {other}", "both together define a family", f"give {other}, too"
            )
    if request.ops is not None and request.shapes is not None:
        if request.families:
            raise UsageError(
                "family and ops exclude each other",
                f"family {', '.join(request.families)} has its own operators, ops {request.ops!r}",
                "give only one of them",
            )
        return [custom_family(request.ops, request.shapes)]
    for name in request.families:
        if name not in FAMILIES:
            raise UsageError(
                f"there is no family {name!r}",
                f"the families are {', '.join(FAMILIES)}",
                "name one of them, or define one by ops and shapes",
            )
    return [
        make()
        for name, make in FAMILIES.items()
        if name in request.families or not request.families
    ]


def _peak_memory_mb() -> float:
    """Return the peak memory of this process or of its largest child in MB; 0 if unknown."""
    if sys.platform == "win32":
        return 0.0
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(own, child) / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def _family_count(account: FamilyAccount) -> FamilyCount:
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
        for v in account.levels
    )
    return FamilyCount(
        account.family, levels, account.doubtful, account.equations, account.pairs, account.laws,
        account.followed, account.claims, account.covered, account.unread, tuple(account.refuted),
        tuple(account.idle), tuple(account.unproved), len(account.derivable), account.rules,
        account.partial, account.enumerating, account.closing, account.wrong,
    )  # fmt: skip
