"""The jobs: optimize, compile, verify, bench, doctor, and the generation of rules."""
