"""What operator definitions share: broadcasting, sizes, windows, precision."""
