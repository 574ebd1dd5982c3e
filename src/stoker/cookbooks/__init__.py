"""The recipes that ship with Stoker, one package for each cookbook. Loaded by name; only `cli` imports from it.

Guarantee: a cookbook uses `stoker.authoring` and what `pyproject.toml` lists; ML libraries are imported inside stages.
Start with `tabular/recipes.py`.
"""
