"""`python -m superopt` runs the command `superopt`."""

from superopt.cli.main import main

main()
