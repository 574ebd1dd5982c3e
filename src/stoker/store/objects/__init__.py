"""Objects under their SHA-256: on this machine's disk, or in an S3 bucket.

Start with `seam`; `local` and `s3` implement it.
"""
