"""Where two programs agree: sets of output elements for which equality holds for all inputs."""
