"""The graph IR to protos and files; provenance of nodes."""
