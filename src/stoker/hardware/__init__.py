"""What a machine has and what fits on it."""
