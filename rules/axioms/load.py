"""The axioms of the axiom-level prover: rules in `axioms/*.rules`, some for many operators at once.

    each U: Relu Exp Neg
    concat-{U}(x: f, y: f): Concat({U}(x), {U}(y), axis=k) <=> {U}(Concat(x, y, axis=k))

is three axioms (and their converses): concat-Relu, concat-Exp and concat-Neg. The operators of a
line `each` apply to the end of its file.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from superopt.errors import UsageError
from superopt.rules.lang.rule import Rule, parse_rules

AXIOMS = Path(__file__).resolve().parent
_EACH = re.compile(r"each ([A-Z][A-Za-z]*): (.*)")
_HOLE = re.compile(r"\{([A-Za-z]+)\}")


@lru_cache(maxsize=1)
def load_axioms() -> tuple[Rule, ...]:
    """Return all axioms, in order of file name."""
    out: list[Rule] = []
    seen: dict[str, str] = {}
    for path in sorted(AXIOMS.glob("*.rules")):
        for rule in parse_axioms(path.read_text(encoding="utf-8"), path.name):
            if rule.name in seen:
                raise UsageError(f"{rule.source}: {rule.name} is already at {seen[rule.name]}")
            seen[rule.name] = rule.source
            out.append(rule)
    return tuple(out)


def parse_axioms(text: str, source: str) -> list[Rule]:
    """Return the axioms of a text, expanded for all their operators."""
    return parse_rules(_expand_each(text), source)


def _expand_each(text: str) -> str:
    sets: dict[str, list[str]] = {}
    out: list[str] = []
    block: list[str] = []

    def flush() -> None:
        if not block:
            return
        whole = "\n".join(block)
        holes = dict.fromkeys(_HOLE.findall(whole))
        some = [whole]
        for hole in holes:
            some = [s.replace("{" + hole + "}", op) for s in some for op in sets[hole]]
        out.extend(some)
        block.clear()

    for line in text.split("\n"):
        found = _EACH.fullmatch(line.strip())
        if found is not None:
            flush()
            sets[found[1]] = found[2].split()
            out.append("")
        elif line[:1].isspace() and line.strip():
            block.append(line)
        else:
            flush()
            block.append(line)
    flush()
    return "\n".join(out)
