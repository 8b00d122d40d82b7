"""Costs of nodes and graphs: measured, from the store, or by the roofline; and the disk cache."""
