"""Download files: ranges, resume, several connections, checks of what arrived.

Promises: the bytes of exactly one version under the final name, or nothing.
Start with `download`; `response_rules` decides, purely.
"""
