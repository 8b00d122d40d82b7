"""Say of generated rules of floats that they hold for all numbers, where they do.

    python scripts/widen_rules.py [FILE ...]

A generator that knew no integers made a rule of floats of each law of numbers; `superopt rules
generate` does now what this does to files. Without files, to all of rules/library/generated.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from superopt.generate.library import text
from superopt.generate.sound import Held
from superopt.generate.widen import widened
from superopt.rules.rule import LIBRARY, parse_rules


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for path in args.files or sorted((LIBRARY / "generated").glob("*.rules")):
        rules = parse_rules(path.read_text(encoding="utf-8"), path.name)
        wide = [widened(Held(r, True), args.seed).rule for r in rules]
        path.write_text(text(wide), encoding="utf-8")
        changed = sum(str(a) != str(b) for a, b in zip(rules, wide, strict=True))
        print(f"{path.name}: {changed} of {len(rules)} rules", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
