"""Tests of the reference target."""
