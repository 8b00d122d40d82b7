"""Other optimizers that models are compared with."""
