"""The command `superopt`."""

import click

from superopt import __version__


@click.group()
@click.version_option(__version__, prog_name="superopt")
def main() -> None:
    """Make ONNX models faster, and check that they stay the same."""
