"""What a machine has and what fits on it: probes, the memory ledger, memory estimates, meters.

Promises: a probe that fails, hangs or lies never raises; the ledger is true after any crash.
Start with `detection`, then `ledger.ledger`.
"""
