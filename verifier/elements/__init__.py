"""Normal forms of output elements."""
