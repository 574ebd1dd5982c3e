"""How one stage runs: in this process, in a child process, as a program, or in a process shared by several.

Promises: every runner ends what it started, and returns an outcome or a cause.
Start with `stage_runner`.
"""
