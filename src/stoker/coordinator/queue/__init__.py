"""The queue: commands, decisions, and their rows, many in one commit.

Promises: commands are applied in order by one writer; a repeated request gets the same response.
Start with `queue`, then `writer`, `claims` and `endings`.
"""
