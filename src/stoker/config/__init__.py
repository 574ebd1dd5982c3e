"""Read files and command-line words into typed values: cluster file, manifest, layered configuration, sweeps.

Promises: every value knows the file and line it came from; all diagnostics of a file are reported at once.
Start with `compose` (layers into one configuration) and `manifest_file`; recipes' schemas are passed in.
"""
