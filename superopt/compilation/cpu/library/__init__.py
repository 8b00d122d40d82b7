"""Compiled models as libraries of machine code."""
