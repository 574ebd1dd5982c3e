"""Parse what a program prints: progress, metrics, checkpoints.

Promises: a hostile line costs bounded time and memory.
Start with `parser`.
"""
