#!/usr/bin/env python3
"""Find the rules of every family by enumeration: `superopt rules generate` with the default run.

scripts/generate_rules.py --out FOLDER [--max-ops 3] [--jobs 2] [--family NAME ...]
"""

from __future__ import annotations

import sys

from superopt.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["rules", "generate", *sys.argv[1:]]))
