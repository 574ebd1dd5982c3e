"""Bytes under their digest: blobs, trees, records that name them, and what is kept how long.

Promises: nothing is visible under its name before its bytes are durable; what is read has been verified; what is
damaged is moved aside with its reason and never served. Knows nothing of plans: a record's body is its writer's
business. Trusts whoever may write to its folders: against another user who can, it does not defend.
"""
