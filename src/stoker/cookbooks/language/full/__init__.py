"""Training of every weight: a model of the known families as plain tensors, and its training, alone."""
