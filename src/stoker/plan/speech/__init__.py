"""What a program says: from the bytes that it prints to progress, metrics and checkpoints."""
