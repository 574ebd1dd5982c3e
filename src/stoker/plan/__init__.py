"""Typed, cached work: kinds, stages, recipes, plans, and the engine that runs them.

Runs on a laptop without network or devices. Whoever writes a cookbook imports `stoker.plan.authoring` and nothing else.
"""
