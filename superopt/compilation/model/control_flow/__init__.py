"""Ifs and Loops whose conditions only a call gives: a program for each part."""
