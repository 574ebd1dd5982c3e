"""Pack what a job needs elsewhere: code, data, environment files, wheels.

Promises: what is packed is named by its digest; ignored and secret files stay out.
Start with `project`, then `code_tree`.
"""
