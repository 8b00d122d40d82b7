"""What both targets share before kernels: arguments, sizes, ports, permitted transforms."""
