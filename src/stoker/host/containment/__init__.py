"""Limit the memory of a program and end its whole process tree, by the strongest mechanism of this machine.

Promises: a box knows every process in it, however often the program forks.
Start with `mechanisms` (what works here, and why nothing stronger), then `box`.
"""
