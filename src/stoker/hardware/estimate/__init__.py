"""How much device memory a training will take, before it is spent."""
