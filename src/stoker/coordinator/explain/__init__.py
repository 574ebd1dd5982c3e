"""Why a job waits: cases read from the queue, explained by the scheduler's own rules.

Promises: pure; the same reasons that the scheduler decided by.
Start with `verdict`.
"""
