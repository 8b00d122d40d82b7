"""The numerical check of an optimized graph against the original, and the certificate checker."""
