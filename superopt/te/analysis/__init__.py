"""Questions about tensor expressions: affine forms, sizes that agree, inlining, traversal."""
