"""What a worker sends to its coordinator and has from it: attempts' files, results, checkpoints."""
