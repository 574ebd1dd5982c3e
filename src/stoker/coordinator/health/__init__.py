"""Symptoms of machines and devices: found in events, reported once, and cordoned where that helps.

Promises: pure over facts read from the queue.
Start with `symptoms`.
"""
