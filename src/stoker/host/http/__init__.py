"""HTTP from this computer: one client, the only module that imports urllib3.

Promises: every request has limits in time and size; failures have their own classes.
Start with `client`.
"""
