"""Packed rules are the rules, and reading them runs nothing else."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable

import pytest

from superopt.rules.lang.rule import parse_rules
from superopt.rules.lang.term import Lit, walk
from superopt.rules.library import load, packed
from superopt.rules.library.records import proof_key, rules_digest

CHEAPER = 5.0  # times, at least; measured 30


def cpu_seconds(work: Callable[[], object]) -> float:
    """The least processor time of three runs."""
    best = float("inf")
    for _ in range(3):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best


def test_the_library_is_the_same() -> None:
    rules = load.load_library()
    data = packed.pack(rules)
    found, keys = packed.unpack(data)
    assert found == rules
    assert [(r.text, r.source) for r in found] == [(r.text, r.source) for r in rules]
    assert rules_digest(found) == rules_digest(rules)
    assert keys == tuple(map(proof_key, rules))
    assert [str(r) for r in found] == [str(r) for r in rules]


def test_equal_numbers_of_different_types_are_distinct() -> None:
    (rule,) = parse_rules("r(x): Relu(x) => Relu(x) where 1 == 1.0, True == 1 ; float=E0")
    ((found,), _) = packed.unpack(packed.pack([rule]))
    values = [p.value for f in found.where for p in walk(f) if isinstance(p, Lit)]
    assert [*map(repr, values)] == ["1", "1.0", "True", "1"]


def test_reading_is_many_times_cheaper_than_parsing() -> None:
    files = load.library_files()[::4]
    texts = [(load.LIBRARY / name).read_text(encoding="utf-8") for name in files]
    data = packed.pack([rule for name in files for rule in load.parse_file(name)])
    parsing = cpu_seconds(lambda: [parse_rules(text) for text in texts])
    assert cpu_seconds(lambda: packed.unpack(data)) * CHEAPER < parsing


class Evil:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return pytest.fail, ("code of the file was run",)


@pytest.mark.parametrize(
    "data",
    [b"", b"no pickle", pickle.dumps(1), pickle.dumps((1,)), pickle.dumps(Evil())],
    ids=["empty", "text", "number", "short", "code"],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a file of packed rules"):
        packed.unpack(data)
