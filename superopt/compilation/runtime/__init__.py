"""What executables share at a call: segments, output buffers, the background thread."""
