"""Metrics: the file that holds them, its writer, and its readers.

Promises: appended, durable, readable while it grows.
Start with `metrics_file`.
"""
