"""Ids, errors, events, states, units, time and encoding: the nouns that every package shares.

Promises: standard library only, no I/O; the clock and the environment are read in `clock` alone.
Start with `job`, `errors` and `digests`.
"""
