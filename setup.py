"""Refuse to build from a checkout whose symbolic links are text files, as Git makes them on Windows
without core.symlinks: the wheel would lack these packages. Everything else is in pyproject.toml."""

import os

from setuptools import setup

for name in ("rules", "verifier", "kernels"):
    if not os.path.isdir(os.path.join("superopt", name)):
        raise SystemExit(
            f"superopt/{name} is not a folder but should link to {name}/: clone again with "
            "`git clone -c core.symlinks=true`, with Developer Mode on if this is Windows"
        )

setup()
