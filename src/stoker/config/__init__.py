"""Files and words into values: layered configuration whose every leaf knows where it came from, overrides, sweeps.

Recipes' schemas are handed in; nothing here knows a stage, a store or a machine.
"""
