"""Repositories of a Hugging Face hub, and the public cache that other programs read as well.

Promises: a file is linked into the cache only when its digest was checked.
Start with `repository`.
"""
