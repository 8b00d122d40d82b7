"""Tests of the compiler and the executable of any target."""
