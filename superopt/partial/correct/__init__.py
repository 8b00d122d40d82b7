"""Corrections of partially equivalent programs, and the rules made of them."""
