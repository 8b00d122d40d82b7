"""`rules generate`: rules from families of operators, and from mutants of a model."""
