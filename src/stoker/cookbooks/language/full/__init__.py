"""Train every weight of a model: known families as plain tensors.

Promises: the same result after a resume as without.
Start with `training`.
"""
