"""Enumeration of programs that may be partially equivalent (PET, OSDI 2021, section 4)."""
