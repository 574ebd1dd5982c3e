"""Detect devices: NVIDIA, AMD, Apple and others, each by several sources that are compared.

Promises: a probe may fail, hang or lie, and never raises.
Start with `inventory`, then `observations`.
"""
