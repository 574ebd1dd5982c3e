"""The recipes that ship with Stoker, one package for each cookbook. Loaded by name; `cli` alone imports from it.

Promises: a cookbook uses `stoker.authoring` and what `pyproject.toml` lists; ML libraries load inside stages.
Start with `tabular.recipes`.
"""
