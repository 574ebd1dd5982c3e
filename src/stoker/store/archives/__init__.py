"""Trees as one file: deterministic archives, and untrusted archives unpacked safely.

Promises: the same tree packs to the same bytes; no member leaves its folder or its limits.
Start with `pack` and `unpack`.
"""
