"""The main jobs, each a sequence of the parts: optimize, verify, bench, doctor."""
