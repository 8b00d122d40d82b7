"""The commands of `superopt`, one file each; `contract` is what they call."""
