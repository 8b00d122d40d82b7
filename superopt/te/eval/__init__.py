"""Evaluation of tensor expressions: over floats, over prime fields, over finite domains, with
rounding bounds. `reference` is the definition; the others are faster and tested against it."""
