"""The rule library, parsed once per machine.

Parsing its text takes a second of processor time. So the parsed rules are kept in the cache on
disk, by the digest of the library's text and of the sources that give it its meaning; a change of
either is another file. The cache checks the contents by their digest.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from superopt import ir, ops, te
from superopt.cost import disk_cache
from superopt.cost.folder import rules_folder
from superopt.kernels.runtime import file_cache
from superopt.rules.lang.rule import LIBRARY, Rule
from superopt.rules.library import load, packed
from superopt.rules.library.records import FLOATS, remember_proof_keys

SUFFIX = "rules"
DIGEST_BYTES = 16


@lru_cache(maxsize=1)
def load_library() -> tuple[Rule, ...]:
    """`shipped.load_library`, out of the cache where it is there."""
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
    disk_cache.written(len(made))
    return rules


def library_digest() -> str:
    """Of everything that the parsed rules depend on: their text and computed float classes, and
    the sources of the rule language, operators and expressions."""
    found = blake2b(digest_size=DIGEST_BYTES)
    texts = [LIBRARY / name for name in (*load.library_files(), FLOATS)]
    folders = (LIBRARY.parent, *(Path(p) for part in (ops, ir, te) for p in part.__path__))
    sources = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    for path in (*texts, *sources):
        data = path.read_bytes()
        found.update(f"{path.name} {len(data)}\n".encode())
        found.update(data)
    return found.hexdigest()
