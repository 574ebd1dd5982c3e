"""Programs that do a stage's work: start, watch and judge them, and keep what they made.

Promises: the whole process tree ends with its attempt; its memory limit holds.
Start with `program_runner`.
"""
