"""Algorithms, schedules and cost models for GPUs."""
