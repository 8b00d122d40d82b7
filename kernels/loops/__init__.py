"""Schedules as data, loop transformations, and lowering to the tile form (Tile)."""
