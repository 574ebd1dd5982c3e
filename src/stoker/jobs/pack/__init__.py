"""Pack what a job needs on another machine: code, data, environment files, wheels.

Guarantees: a pack is named by its digest; ignored and secret files are left out. Start with `project.py`, then
`code_tree.py`.
"""
