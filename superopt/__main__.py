"""`python -m superopt` runs the command `superopt`."""

from superopt.cli import main

main()
