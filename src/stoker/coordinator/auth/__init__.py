"""Who belongs to the fleet: the CA on disk, invites, API tokens, certificates of machines.

Promises: decisions are pure; the queue writes the rows and `http` applies the decisions to requests.
Start with `membership`.
"""
