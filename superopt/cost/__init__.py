"""What a node costs: measured, from a store, or by the roofline."""
