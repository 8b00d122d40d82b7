"""`python -m superopt` is the command `superopt`."""

from superopt.cli import main

main()
