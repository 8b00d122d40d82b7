"""Bytes to protos: files, external data, memory mapping; no meaning of operators."""
