"""The rule language: terms, syntax, conditions, instances of rules."""
