"""The rule library, parsed once per machine.

Parsing takes a second of CPU time, so the parsed rules are cached on disk, under a digest of the
library's text and of the sources that give it meaning; a change of either selects another file. The
cache verifies contents by their digest.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from superopt import ir, ops, te
from superopt.cost import disk_cache
from superopt.cost.cache_folders import rules_folder
from superopt.kernels.runtime import file_cache
from superopt.rules.lang.rule import LIBRARY, Rule
from superopt.rules.library import load, packed
from superopt.rules.library.records import RECORDS, remember_proof_keys

SUFFIX = "rules"
DIGEST_BYTES = 16


@lru_cache(maxsize=1)
def load_library() -> tuple[Rule, ...]:
    """Return `load.load_library`, from the cache if it has it."""
    folder, key = rules_folder(), library_digest()
    held = file_cache.read(folder, key, SUFFIX)
    if held is not None:
        try:
            rules, keys = packed.unpack(held)
        except ValueError:
            pass
        else:
            remember_proof_keys(dict(zip(rules, keys, strict=True)))
            return rules
    rules = load.load_library()
    made = packed.pack(rules)
    file_cache.write(folder, key, made, SUFFIX)
    disk_cache.record_written(len(made))
    return rules


def library_digest() -> str:
    """Return the digest of everything that the parsed rules depend on: their text and computed
    float classes, and the sources of the rule language, operators and expressions."""
    found = blake2b(digest_size=DIGEST_BYTES)
    texts = [*(LIBRARY / name for name in load.library_files()), RECORDS]
    folders = (LIBRARY.parent, *(Path(p) for part in (ops, ir, te) for p in part.__path__))
    sources = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    for path in (*texts, *sources):
        data = path.read_bytes()
        found.update(f"{path.name} {len(data)}\n".encode())
        found.update(data)
    return found.hexdigest()
