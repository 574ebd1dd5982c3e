"""Repositories of a Hugging Face hub, and the public cache that other programs read too.

Guarantee: a file is linked into the cache only after its digest was verified. Start with `repository.py`.
"""
