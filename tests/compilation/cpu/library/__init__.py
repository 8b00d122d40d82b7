"""Libraries for other systems."""
