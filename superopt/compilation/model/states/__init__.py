"""States that stay in an executable between calls (`Executable.bind_state`)."""
