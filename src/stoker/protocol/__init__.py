"""The messages that our programs exchange, and the client that sends them.

Promises: every message is bounded and checked; unknown fields are refused or ignored as documented.
Start with `job_messages` and `client`.
"""
