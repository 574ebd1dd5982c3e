"""The engine: one frozen base, banks of adapters over it, and steps that train them together.

Everything is done by hand (forward, backward, update) on plain tensors: nothing is kept that is cheaper to compute
again, every gradient is written where the optimiser reads it, and the whole step can be recorded as one CUDA graph.
Members never mix: a matrix of rows is shared, a sum over members is not.
"""
