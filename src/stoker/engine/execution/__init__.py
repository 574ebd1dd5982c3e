"""The executor and its parts: which node runs next, which attempts run, and how they ended.

Promises: decisions are pure; one failure stops only what depends on it.
Start with `executor`, then `schedule`.
"""
