"""Typed, cached work: kinds, stages, recipes, plans, the cache, and the executor that runs them.

Promises: runs on a laptop without network or devices; a result is stored under its digest before its name.
Start with `stage`, `plan` and `execution.executor`. Authors of cookbooks import `stoker.authoring` alone.
"""
