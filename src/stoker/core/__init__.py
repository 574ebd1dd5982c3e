"""Ids, errors, events, states, units, time and encoding: the nouns that every package shares.

Promises: standard library only, no I/O; the clock is read in `clock` alone, and the environment nowhere.
Start with `job`, `errors` and `digests`.
"""
