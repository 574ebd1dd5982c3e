"""Keeps the queue true and serves it: database, queue, roster, matching, expiry, journal, HTTP."""
