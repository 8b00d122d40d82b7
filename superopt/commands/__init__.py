"""The commands of `superopt`, one file each."""
