"""Download files: ranges, resume, retries, verification.

Guarantee: the final name holds the bytes of exactly one version, or is unchanged. Start with `download.py`;
`resumption.py` and `response_rules.py` are its pure decisions.
"""
