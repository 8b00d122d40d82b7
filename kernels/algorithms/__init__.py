"""Algorithms for a tensor expression: one file each, with options, schedules and costs."""
