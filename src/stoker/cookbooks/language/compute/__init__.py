"""Train many adapters over one frozen base in one step: forward, backward and update on plain tensors.

Guarantees: adapters never mix; every gradient is written where the optimiser reads it; a step can be one CUDA graph.
Start with `passes.py`.
"""
