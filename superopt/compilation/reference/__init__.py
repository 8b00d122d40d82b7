"""The reference target: numpy interprets the kernels. It is the oracle of kernel tests."""
