"""Rules on tensor expressions: their language, the matcher, and the library `library/te/`."""
