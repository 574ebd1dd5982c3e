"""Who belongs to the fleet: its CA on disk, invitations, tokens of people, certificates of machines.

What is decided here is pure; rows are written by the queue's verbs, and requests are judged by the service.
"""
