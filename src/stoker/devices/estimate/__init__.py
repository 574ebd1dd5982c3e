"""How much device memory a training will take, before it starts.

Promises: each term of the sum is shown, with its source.
Start with `terms`.
"""
