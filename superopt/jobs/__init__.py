"""Jobs that stand on several others: bench, doctor, tune, what `compile` reports."""
