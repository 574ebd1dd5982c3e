"""One process that holds one base and trains many adapters over it, each as if it were alone.

Guarantees: rates, passes, evaluations and stops are decided by pure functions; one adapter's failure stops no other.
Start with `loop.py`, which acts on these decisions. Nothing here is imported before a training starts.
"""
