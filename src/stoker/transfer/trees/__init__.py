"""Trees and archives between a worker and its coordinator: attempt files, results, checkpoints.

Promises: every transfer resumes; what arrived is checked against its digest.
Start with `tree_upload` and `tree_sources`.
"""
