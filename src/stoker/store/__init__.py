"""Bytes under their digest: blobs, trees, records that name them, and retention.

Promises: nothing is visible under its name before its bytes are durable; what is read has been verified; what is
damaged is moved aside with its reason and never served. Knows nothing of plans: only its writer reads a record's body.
Not protected against another user who may write to its folders.
"""
