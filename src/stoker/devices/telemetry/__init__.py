"""The state of devices over time: samples, series on disk, alerts.

Promises: a driver that hangs stops nothing, and files have a fixed size.
Start with `recorder`.
"""
