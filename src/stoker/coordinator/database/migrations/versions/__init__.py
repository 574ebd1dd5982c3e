"""One module per step, in their order."""
