"""`simplify`: folding and the rules that remove nodes, without a search."""
