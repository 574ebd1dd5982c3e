"""Read a user's text into rows of tokens: chat templates, masks, packing, a cursor for each adapter.

Promises: the same rows for the same seed, from any checkpoint.
Start with `batches`.
"""
