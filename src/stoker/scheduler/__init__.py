"""What fits where, score, prices, order and shares, explanations, simulation: one pure policy.

Promises: no I/O and no clock; the coordinator and the simulation call the same functions.
Start with `scheduler`, then `policy`.
"""
